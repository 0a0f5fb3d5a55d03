"""flowrl.objectives.stepwise_grpo: gains of steps, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from flowrl.adapters import WeightCopy
from flowrl.objectives import Seeds, Work
from flowrl.objectives.exchange import with_groups
from flowrl.objectives.stepwise_grpo import StepwiseGRPO, joint_advantages

from .. import tiny


def brightness(images):
    """The mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


def test_joint_advantages_by_hand():
    """Gains 0, 3, 0, 1: mean 1, deviations -1, 2, -1, 0, variance 6 / 4."""
    found = joint_advantages(torch.tensor([[[0.0, 3.0], [0.0, 1.0]]]))
    wanted = [value / math.sqrt(1.5) for value in (-1, 2, -1, 0)]
    assert found.flatten().tolist() == pytest.approx(wanted)


def test_they_have_mean_0_and_std_1_over_samples_and_steps():
    """Jointly: a step by itself keeps its own mean, so an early step that gains more counts more."""
    gains = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0)) + torch.tensor([3.0, 1, 0, 0, 0])
    found = joint_advantages(gains)
    torch.testing.assert_close(found.flatten(1).mean(dim=1), torch.zeros(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.flatten(1).std(dim=1, correction=0), torch.ones(3))
    assert (found[..., 0].mean(dim=1) > 1).all()


def test_only_the_step_that_gains_gets_credit():
    """Everything is worth the same until the last step of one sample: the others share the rest."""
    found = joint_advantages(torch.tensor([[[0.0, 0.0], [0.0, 4.0]]]))[0]
    assert found[1, 1] > 0
    rest = [float(found[0, 0]), float(found[0, 1]), float(found[1, 0])]
    assert rest == pytest.approx([-1 / math.sqrt(3)] * 3)


def test_what_could_not_be_scored_is_left_out():
    """NaN gets 0 and moves nobody else's; a group without spread gets 0."""
    found = joint_advantages(torch.tensor([[[1.0, math.nan], [-1.0, math.nan]], [[2.0, 2.0], [2.0, 2.0]]]))
    assert found.tolist() == [[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]


def _scene(train_steps):
    policy = tiny.policy("sd3", "flow_sde")
    objective = StepwiseGRPO()
    call = tiny.arguments("sd3", guided=False)
    rollout = policy.rollout(**call, train_steps=train_steps, keep_steps=objective.keep_steps(tiny.STEPS))
    pieces = objective.pieces(policy, rollout, Seeds(0, [1, 2]))
    copies = {"rollout": WeightCopy(policy.parameters)}
    work = Work(torch.zeros(2), copies, True, score=brightness)
    return policy, objective, rollout, pieces, work


def test_gains_add_up_to_what_the_trajectory_gained():
    """From the first state's prediction to the final picture; each state is worth its decoded prediction."""
    policy, objective, rollout, _, work = _scene([0, 1, 2, 3])
    with torch.no_grad():
        gains = objective.measure(policy, rollout, range(tiny.STEPS), work)
        first = brightness(policy.finish(rollout, 0, jump=True))
        middle = brightness(policy.finish(rollout, 2, jump=True))
    torch.testing.assert_close(gains.sum(dim=1), brightness(rollout.images) - first)
    torch.testing.assert_close(gains[:, :2].sum(dim=1), middle - first)


def test_the_loss_is_that_of_grpo_with_these_advantages():
    """On-policy it is minus the advantage of the sample's step."""
    policy, objective, rollout, pieces, work = _scene([0, 2])
    work = with_groups(objective, policy, {0: (rollout, pieces, work)}, 2)[0]
    wanted = -joint_advantages(work.group.measured)[0]
    assert wanted.abs().max() > 0.5
    for column, piece in enumerate(pieces):
        terms = objective.loss(policy, rollout, piece, work)
        torch.testing.assert_close(terms.loss.detach(), wanted[:, column])
        torch.testing.assert_close(terms.metrics["step/gain"], work.group.measured[0, :, column])


def test_later_updates_have_the_gains_of_the_rollouts_weights():
    """What a state was worth does not change because the policy has."""
    policy, objective, rollout, pieces, work = _scene([1])
    with torch.no_grad():
        before = objective.measure(policy, rollout, pieces, work)
        tiny.set_b(policy, 0.3)
        assert torch.equal(objective.measure(policy, rollout, pieces, work), before)
