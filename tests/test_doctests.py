"""Runs the examples in the docstrings of the installed package.

Not by pytest's ``--doctest-modules``: that imports ``rewards/`` and ``pipelines/`` as packages of the top level, where
their relative imports do not hold. Here every module is imported by the name that a user knows.
"""

import doctest
import importlib
import pkgutil

import pytest

import flowrl
import flowrl.pipelines
import flowrl.rewards

PACKAGES = (flowrl, flowrl.pipelines, flowrl.rewards)
MODULES = sorted(
    {
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")  # to import it is to run it
    }
    | {package.__name__ for package in PACKAGES}
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, tmp_path, monkeypatch) -> None:
    """Every example in the module's docstrings prints what it says; files that it writes go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0, "the difference is printed above"
