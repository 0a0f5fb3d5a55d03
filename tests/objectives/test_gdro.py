"""flowrl.objectives.gdro: the list-wise loss against DPO, by hand, and at its minimum."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.objectives.gdro import GDRO, group_loss
from flowrl.objectives.preference import dpo_loss, margin


@pytest.mark.parametrize("form", ["full", "top1"])
def test_two_samples_without_temperature_are_dpo(form):
    """For errors and rewards of any kind, with twice the beta."""
    errors = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) / 10
    rewards = torch.tensor([0.0, 1.0]).expand(50, 2)
    found = group_loss(-12.0 * errors, rewards, 1e-4, form)
    torch.testing.assert_close(found, dpo_loss(margin(errors[:, 1], errors[:, 0], 24.0)))


def test_three_samples_by_hand():
    """Rewards 0, ln 2, ln 4 at tau 1 and scores 0, 1, 0: targets 4/7, 2/7, 1/7 of all three, 2/3, 1/3 of the last two.

    In falling order the scores are 0, 1, 0: ln(2 + e) - 2/7, and ln(1 + e) - 2/3.
    """
    rewards, scores = torch.tensor([[1.0, 2.0, 4.0]]).log(), torch.tensor([[0.0, 1.0, 0.0]])
    top = math.log(2 + math.e) - 2 / 7
    assert float(group_loss(scores, rewards, 1.0, "top1")) == pytest.approx(top)
    assert float(group_loss(scores, rewards, 1.0)) == pytest.approx(top + math.log(1 + math.e) - 2 / 3)


@pytest.mark.parametrize("form", ["full", "top1"])
def test_free_scores_are_best_at_the_rewards(form):
    """The gradient is 0 at r / tau and a constant, and not beside it; no random scores do better."""
    rewards = torch.tensor([[0.3, -0.2, 0.5, 0.1]])
    scores = (rewards / 0.25 + 3).requires_grad_()
    best = group_loss(scores, rewards, 0.25, form)
    assert torch.autograd.grad(best.sum(), scores)[0].abs().max() < 1e-6
    beside = scores.detach() + torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    assert (group_loss(beside, rewards.expand(100, 4), 0.25, form) > best).all()


def test_constants_and_order_do_not_matter():
    """Adding to all scores, or dealing the samples in another order, leaves the loss."""
    scores, rewards = torch.tensor([[0.0, 1.0, -1.0, 0.5]]), torch.tensor([[0.3, -0.2, 0.5, 0.1]])
    wanted, order = group_loss(scores, rewards, 0.25), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(group_loss(scores + 7, rewards, 0.25), wanted)
    torch.testing.assert_close(group_loss(scores[:, order], rewards[:, order], 0.25), wanted)


def test_the_objective_by_hand():
    """Scores are -10 (0.3 - 0.4) = 1 and -1: ln(1 + e^-2), and half of the best sample's error of 0.3."""
    objective = GDRO(beta=10.0, tau=1e-3, anchor=0.5)
    judged = objective.judge(torch.tensor([[0.5, 0.3]]), torch.full((1, 2), 0.4), torch.tensor([[-1.0, 1.0]]))
    assert float(judged.loss) == pytest.approx(math.log1p(math.exp(-2)) + 0.15, rel=1e-4)
    found = [float(judged.metrics[f"gdro/{name}"]) for name in ("accuracy", "spread", "anchor")]
    assert found == pytest.approx([1.0, 1.0, 0.3])


def test_a_group_without_spread_teaches_nothing():
    """Neither by its order, nor by the error of a sample that is no better than the others."""
    errors = torch.tensor([[0.5, 0.3]], requires_grad=True)
    judged = GDRO().judge(errors, torch.full((1, 2), 0.4), torch.zeros(1, 2))
    assert judged.loss.tolist() == [0.0]
    assert torch.autograd.grad(judged.loss.sum(), errors)[0].tolist() == [[0.0, 0.0]]
