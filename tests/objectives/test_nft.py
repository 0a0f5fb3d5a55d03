"""flowrl.objectives.nft: the contrastive loss, in numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from flowrl.errors import UserError
from flowrl.objectives import nft


def test_optimality_by_hand():
    """An advantage of c is certainly good, one of -c certainly bad, 0 undecided."""
    assert nft.optimality(torch.tensor([-5.0, -1.0, 0.0, 2.5, 9.0]), 5.0).tolist() == pytest.approx(
        [0.0, 0.4, 0.5, 0.75, 1.0]
    )


def test_errors_by_hand():
    """The residual of each implicit policy, squared and divided by its own size."""
    # beta = 0.5, v = 1, v_old = 0: v+ = 0.5, v- = -0.5. x_t = 1, sigma = 1, x_0 = 0: residuals 0.5 and 1.5,
    # so the errors are 0.25 / 0.5 and 2.25 / 1.5.
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    positive, negative = nft.implicit_errors(one, zero, one, zero, one, 0.5)
    assert positive.tolist() == pytest.approx([0.5])
    assert negative.tolist() == pytest.approx([1.5])


def test_at_the_old_policy_the_errors_agree_and_an_undecided_sample_teaches_nothing():
    """At v = v_old the two errors are equal and their gradients opposite, so p = 1/2 gives a gradient of 0."""
    v_old, x_t, x_0 = torch.randn(3, 2, 4), torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    v = v_old.clone().requires_grad_()
    positive, negative = nft.implicit_errors(v, v_old, x_t, x_0, torch.tensor(0.7), 0.3)
    torch.testing.assert_close(positive, negative)
    (0.5 * positive + 0.5 * negative).sum().backward()
    torch.testing.assert_close(v.grad, torch.zeros_like(v), rtol=0, atol=1e-7)


@pytest.mark.parametrize(("advantage", "direction"), [(1.0, 1.0), (-1.0, -1.0)])
def test_gradient_pulls_towards_good_samples_and_away_from_bad_ones(advantage, direction):
    """A step against the gradient moves v towards the velocity of a good sample, and away from that of a bad one."""
    x_0, eps, sigma = torch.zeros(1, 3), torch.ones(1, 3), torch.tensor(0.5)
    x_t, v_old = sigma * eps, torch.zeros(1, 3)  # the sample's own velocity is eps - x_0 = 1
    v = v_old.clone().requires_grad_()
    p = nft.optimality(torch.tensor([advantage]), 5.0)
    positive, negative = nft.implicit_errors(v, v_old, x_t, x_0, sigma, 1.0)
    (p * positive + (1 - p) * negative).sum().backward()
    assert torch.equal(torch.sign(-v.grad), torch.full((1, 3), direction))


def test_the_old_policy_follows_by_its_options():
    """The decay rises by its slope from its start, up to its maximum."""
    decay = nft.NFT(decay_slope=0.0075, decay_max=0.999, decay_start=75).copies()["old"]
    assert [decay(step) for step in (0, 75, 76, 1000)] == pytest.approx([0.0, 0.0, 0.0075, 0.999])


def test_more_noise_levels_than_steps_are_refused():
    """A sample's noise levels differ, so there must be enough of them."""
    with pytest.raises(UserError, match=r"objective.times: 6 .* policy.steps is 5"):
        nft.NFT(times=6).check(5)
