"""flowrl.objectives.prdp: squared errors of reward differences, in numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from flowrl.errors import RunStopped, UserError
from flowrl.objectives import Seeds, Work
from flowrl.objectives.base import Group
from flowrl.objectives.exchange import groups_of, with_groups
from flowrl.objectives.prdp import PRDP, pair_losses

from .. import tiny


def _group(ratios, advantages, clipped=None):
    """One group, seen by each of its samples."""
    p = torch.tensor(ratios)
    q = p if clipped is None else torch.tensor(clipped)
    return groups_of(torch.tensor(advantages), torch.stack([p, q], dim=1), len(ratios))


def test_pairs_by_hand():
    """Three samples, beta 2: errors 2 (p_i - p_j) - (A_i - A_j)."""
    # p = 0, 1, 3 and A = 0, 1, 5.   (0,1): -2 + 1 = -1.   (0,2): -6 + 5 = -1.   (1,2): -4 + 4 = 0.
    found = pair_losses(_group([0.0, 1.0, 3.0], [0.0, 1.0, 5.0]), beta=2.0)
    assert found.loss.tolist() == [(1 + 1) / 2, (1 + 0) / 2, (1 + 0) / 2]
    # The slope by p_0 is the mean over its pairs of 2 * 2 * beta * error = 8 * -1.
    assert found.slope.tolist() == [-8.0, 4.0, 4.0]
    assert found.accuracy.tolist() == [1.0, 1.0, 1.0]
    assert found.clip_fraction.tolist() == [0.0, 0.0, 0.0]


def test_the_larger_of_the_two_errors_counts():
    """The clipped log-ratios are behind: their error is larger, and so is the loss; the slope is theirs."""
    # A = 0, 3. Unclipped p = 0, 2 err by 1; clipped q = 0, 1 by 2.
    found = pair_losses(_group([0.0, 2.0], [0.0, 3.0], [0.0, 1.0]), beta=1.0)
    assert found.loss.tolist() == [4.0, 4.0]
    assert found.slope.tolist() == [0.0, 0.0]
    assert found.clipped_slope.tolist() == [4 * 2.0, 4 * -2.0]
    assert found.clip_fraction.tolist() == [1.0, 1.0]


def test_slopes_are_the_gradient_of_the_mean_over_all_pairs():
    """By autograd: the mean over ordered pairs of max(plain, clipped), times the group's size."""
    torch.manual_seed(0)
    p, advantages = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    old = p + 0.3 * torch.randn(5, dtype=torch.float64)
    p.requires_grad_()
    q = torch.clamp(p, old - 0.2, old + 0.2)
    wanted = advantages[:, None] - advantages
    errors = [(1.5 * (v[:, None] - v) - wanted).square() for v in (p, q)]
    loss = torch.maximum(*errors).sum() / (5 * 4)
    (gradient,) = torch.autograd.grad(5 * loss, p)
    found = pair_losses(groups_of(advantages, torch.stack([p, q], dim=1).detach(), 5), 1.5)
    inside = (p - old).abs() <= 0.2
    assert 0 < inside.sum() < 5
    torch.testing.assert_close(found.slope + torch.where(inside, found.clipped_slope, 0.0), gradient)
    torch.testing.assert_close(found.loss.mean(), loss.detach())


def test_unclipped_pairs_factorise_through_the_group_mean():
    """The sum over pairs is that of squared distances from the mean of ``beta p - A``: d_i - mean(d)."""
    p, advantages = torch.tensor([0.3, -1.0, 2.0, 0.5]), torch.tensor([1.0, 0.0, -2.0, 0.25])
    d = 2.0 * p - advantages
    found = pair_losses(groups_of(advantages, p[:, None].repeat(1, 2), 4), 2.0)
    # sum_{i != j} (d_i - d_j)^2 = 2 G sum_i (d_i - mean)^2, and the slope is 4 beta G / (G - 1) (d_i - mean).
    torch.testing.assert_close(found.loss.sum() * 3, 2 * 4 * (d - d.mean()).square().sum())
    torch.testing.assert_close(found.slope, 4 * 2.0 * 4 / 3 * (d - d.mean()))


def test_a_constant_on_all_advantages_changes_nothing():
    """Only differences count, so a group's mean reward is free."""
    plain, shifted = (pair_losses(_group([0.0, 1.0], [a, a + 1.0]), 1.0) for a in (0.0, 7.0))
    assert all(torch.equal(one, other) for one, other in zip(plain, shifted, strict=True))


def test_a_group_of_one_teaches_nothing():
    """It has no pairs."""
    found = pair_losses(Group(torch.ones(1, 1), torch.ones(1, 1, 2), torch.zeros(1, dtype=torch.long)), 1.0)
    assert found.loss.tolist() == found.slope.tolist() == [0.0]


def _terms(objective, policy, rollout, *, on_policy):
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    work = Work(torch.tensor([1.0, -2.0]), on_policy=on_policy)
    work = with_groups(objective, policy, {0: (rollout, pieces, work)}, 2)[0]
    return [objective.loss(policy, rollout, piece, work) for piece in pieces]


def _gradients(terms, policy):
    loss = torch.stack([term.loss for term in terms]).mean()
    return torch.autograd.grad(loss, list(policy.parameters.values()))


@pytest.mark.parametrize("over_steps", ["mean", "sum"])
def test_clipped_is_unclipped_at_the_rollouts_weights(over_steps):
    """There no log-probability has moved: losses and gradients agree bit for bit."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0, 2])
    clipped, free = (
        _terms(PRDP(clip_range=clip, over_steps=over_steps), policy, rollout, on_policy=True) for clip in (1e-6, None)
    )
    assert all(torch.equal(one.loss, other.loss) for one, other in zip(clipped, free, strict=True))
    pairs = zip(_gradients(clipped, policy), _gradients(free, policy), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("over_steps", ["mean", "sum"])
@pytest.mark.parametrize("clip", [None, 1e-4])
def test_pieces_together_have_the_gradient_of_the_whole_trajectory(over_steps, clip):
    """The loss written out over both steps at once, for weights that have moved, and its gradient by autograd."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[0, 2])
    tiny.set_b(policy, 0.12)
    terms = _terms(PRDP(beta=50.0, clip_range=clip, over_steps=over_steps), policy, rollout, on_policy=False)
    with torch.no_grad(), policy.reference():
        anchor = torch.stack([policy.replay(rollout, step).log_prob for step in (0, 2)])
    now = torch.stack([policy.replay(rollout, step).log_prob for step in (0, 2)])
    old = torch.stack([rollout.transitions[step].log_prob for step in (0, 2)])
    assert (now - old).abs().max() > 1e-4
    near = now if clip is None else torch.clamp(now, old - clip, old + clip)
    p, q = (getattr(v - anchor, over_steps)(dim=0) for v in (now, near))
    loss = torch.maximum(*[(50 * (v[0] - v[1]) - 3.0).square() for v in (p, q)])
    wanted = torch.autograd.grad(loss, list(policy.parameters.values()))
    torch.testing.assert_close(terms[0].loss.detach(), loss.detach().expand(2), rtol=1e-4, atol=1e-5)
    for found, gradient in zip(_gradients(terms, policy), wanted, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=float(gradient.abs().max()) * 1e-3)


def test_weights_that_have_moved_before_the_first_update_stop_the_run():
    """As for every objective on transitions."""
    policy = tiny.policy("sd3", "flow_sde")
    rollout = policy.rollout(**tiny.arguments("sd3"), train_steps=[1])
    tiny.set_b(policy, 0.2)
    with pytest.raises(RunStopped, match="ratio is not 1 before the first update"):
        _terms(PRDP(), policy, rollout, on_policy=True)


def test_a_single_step_is_refused():
    """It ends on clean data: there is no transition to train."""
    with pytest.raises(UserError, match=r"policy.steps is 1.* prdp"):
        PRDP().check(1)
