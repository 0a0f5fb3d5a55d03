"""Every pipeline class as a policy: the checks of `conformance`, over all cases of `cases`."""

import pytest

from .cases import CASES
from .conformance import CHECKS


def _pairs():
    # Case by case, so that the checks of a case share its policy.
    for name, case in CASES.items():
        for check in CHECKS:
            marks = [] if case.fast else [pytest.mark.slow]
            if check in case.skip:
                marks.append(pytest.mark.skip(reason=case.skip[check]))
            yield pytest.param(name, check, id=f"{name}-{check}", marks=marks)


@pytest.mark.filterwarnings("ignore")  # diffusers' own: deprecated classes and arguments
@pytest.mark.parametrize(("name", "check"), list(_pairs()))
def test_conformance(name, check):
    """The class keeps what the check's docstring says."""
    CHECKS[check](CASES[name])
