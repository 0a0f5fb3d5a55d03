"""flowrl.updates: shares of a step, and the learning rate."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.config import RunConfig
from flowrl.updates import learning_rate, shares

CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)
"""Sizes of a step's micro-batches."""


def samples(share, counts):
    """The samples of a share by their number in the step."""
    starts = {index: sum(list(counts.values())[:index]) for index in counts}
    return [starts[index] + row for index, part in share.items() for row in range(counts[index])[part]]


@given(CUTS, st.integers(1, 20))
def test_shares_hold_every_sample_once(sizes, updates):
    """In order, in shares whose sizes differ by at most one, as many as there are updates or samples."""
    counts = dict(enumerate(sizes))
    found = [samples(share, counts) for share in shares(counts, updates)]
    assert [number for share in found for number in share] == list(range(sum(sizes)))
    lengths = [len(share) for share in found]
    assert len(lengths) == min(updates, sum(sizes))
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1


@given(CUTS, st.integers(1, 20))
def test_shares_do_not_depend_on_the_cut(sizes, updates):
    """Which samples an update trains on is the same for every micro-batch size."""
    counts, whole = dict(enumerate(sizes)), {0: sum(sizes)}
    cut = [samples(share, counts) for share in shares(counts, updates)]
    assert cut == [samples(share, whole) for share in shares(whole, updates)]


@given(CUTS, st.integers(1, 20))
def test_shares_name_only_what_they_train_on(sizes, updates):
    """No part of a share is empty or reaches over its micro-batch, and the parts lie side by side."""
    counts = dict(enumerate(sizes))
    for share in shares(counts, updates):
        assert all(0 <= part.start < part.stop <= counts[index] for index, part in share.items())
        for (index, part), (following, after) in pairwise(share.items()):
            assert following == index + 1
            assert (part.stop, after.start) == (counts[index], 0)


def config(**fields):
    """A run with a learning rate of 1."""
    return RunConfig(model={"path": "a"}, rewards={"b": 1}, learning_rate=1.0, **fields)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, {0: 1.0, 1000: 1.0}),
        ({"warmup_steps": 4}, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 1000: 1.0}),
        ({"warmup_steps": 1}, {0: 1.0, 1: 1.0}),
        ({"learning_rate_half_life": 10}, {0: 1.0, 10: 0.5, 15: 0.5**1.5, 20: 0.25}),
        # Both at once: step 1 is half of the warm-up, and a tenth of the half-life is gone.
        ({"warmup_steps": 4, "learning_rate_half_life": 10}, {1: 0.5 * 0.5**0.1, 10: 0.5}),
    ],
)
def test_learning_rate_by_hand(fields, wanted):
    """A linear warm-up that ends at the full rate, and a half for every half-life."""
    assert {step: learning_rate(config(**fields), step) for step in wanted} == pytest.approx(wanted)
