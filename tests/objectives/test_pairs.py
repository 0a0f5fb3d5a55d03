"""flowrl.objectives.pairs: who is paired with whom, and how much a pair counts."""

from __future__ import annotations

import pytest
import torch

from flowrl.objectives import pairs

SCORES = torch.tensor([[0.5, 2.0, -1.0], [1.0, 1.0, 0.0], [3.0, 3.0, 3.0]])


def _listed(found):
    return [rows.nonzero().tolist() for rows in found]


def test_best_against_worst():
    """The first of equals; nobody wins where all are equal."""
    assert _listed(pairs.choose("best_worst", SCORES)) == [[[1, 2]], [[0, 2]], []]


def test_every_pair():
    """1 beats 0 and 2, 0 beats 2; equals make no pair."""
    assert _listed(pairs.choose("all", SCORES)) == [[[0, 2], [1, 0], [1, 2]], [[0, 2], [1, 2]], []]


def test_mu_2sigma_spares_the_freak():
    """Mean -0.6, mean square 110 / 20, std sqrt(5.5 - 0.36) = 2.27: -3 is nearer to -5.13 than -10."""
    scores = torch.tensor([[1.0, *[0.0] * 17, -3.0, -10.0]])
    assert _listed(pairs.choose("mu_2sigma", scores)) == [[[0, 18]]]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_in_a_small_group_mu_2sigma_is_the_worst(size):
    """No sample of n lies more than sqrt(n - 1) standard deviations below the mean, 2 of five."""
    scores = torch.randn(200, size, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pairs.choose("mu_2sigma", scores), pairs.choose("best_worst", scores))


def test_gap_weights_by_hand():
    """1 + 0.5 gap is 1, 2 and 3, of mean 2; where there is no pair the weight is 0 and no part of the mean."""
    gaps = torch.tensor([0.0, 2.0, 4.0])
    assert pairs.gap_weights(gaps, 0.5).tolist() == [0.5, 1.0, 1.5]
    assert pairs.gap_weights(gaps, 0.5, torch.tensor([False, True, True])).tolist() == pytest.approx([0.0, 0.8, 1.2])
    assert pairs.gap_weights(gaps, 0.5, torch.zeros(3, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]


def test_kappa_0_weighs_nothing():
    """Ones, bit for bit."""
    assert torch.equal(pairs.gap_weights(torch.rand(7), 0.0), torch.ones(7))


def test_a_tied_pair_has_no_strength():
    """2 sigmoid(0) - 1 = 0, and ln 3 gives 2 * 3 / 4 - 1 = 1 / 2."""
    assert pairs.gap_strength(torch.tensor([1.0, 3.0]).log()).tolist() == pytest.approx([0.0, 0.5])
