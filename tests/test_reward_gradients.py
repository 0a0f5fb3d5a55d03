"""flowrl.reward_gradients: the weighted sum of rewards, with gradients to the pictures."""

from __future__ import annotations

import pytest
import torch

from flowrl.config import RunConfig
from flowrl.errors import UserError
from flowrl.objectives import GRPO
from flowrl.objectives.draft import DRaFT
from flowrl.objectives.stepwise_grpo import StepwiseGRPO
from flowrl.preflight import check_gradients
from flowrl.reward import Reward, RewardBatch, RewardSet
from flowrl.reward_gradients import check_differentiable, reward_with_gradients


class Glow(Reward):
    """Mean of the pixels."""

    differentiable = True

    def __call__(self, batch):
        """One number a picture."""
        return batch.images.mean(dim=(1, 2, 3))


class Darkness(Glow):
    """The same, as something to be lowered."""

    higher_is_better = False


class Blind(Glow):
    """The same without gradients."""

    differentiable = False


def _set(*rewards, weights):
    names = tuple(type(reward).__name__.lower() for reward in rewards)
    return RewardSet(names, rewards, torch.tensor(weights))


def test_the_sum_and_its_gradient_by_hand():
    """2 r - 0.5 r at r = 1/4, and each of 12 pixels has 1.5 / 12 of it; a reward that is only watched is not asked."""
    images = torch.full((2, 3, 2, 2), 0.25, requires_grad=True)
    rewards = _set(Glow(), Darkness(), Blind(), weights=[2.0, 0.5, 0.0])
    total = reward_with_gradients(rewards, RewardBatch(images, ["a", "b"], [{}, {}]))
    assert total.tolist() == pytest.approx([0.375, 0.375])
    total.sum().backward()
    torch.testing.assert_close(images.grad, torch.full_like(images, 1.5 / 12))


def test_a_video_counts_as_the_mean_of_its_frames():
    """Two frames of 0 and 1: one half."""
    clip = torch.stack([torch.zeros(3, 2, 2), torch.ones(3, 2, 2)])[None]
    assert reward_with_gradients(_set(Glow(), weights=[1.0]), RewardBatch(clip, ["a"], [{}])).tolist() == [0.5]


def test_a_reward_without_gradients_is_refused_by_name():
    """Unless it is only watched."""
    check_differentiable("draft", _set(Glow(), Blind(), weights=[1.0, 0.0]))
    with pytest.raises(UserError, match="objective draft needs gradients of its rewards, and blind gives none"):
        check_differentiable("draft", _set(Glow(), Blind(), weights=[1.0, 0.5]))


def test_what_an_objective_needs_is_checked_before_weights_load():
    """Gradients only where they are asked for, and no shared trajectories where each is finished on its own."""

    def config(name, **policy):
        run = {"model": {"path": "a"}, "rewards": {"b": 1}, "objective": name, "micro_batch_size": 16, "group_size": 8}
        return RunConfig(**run, policy=policy)

    blind = _set(Blind(), weights=[1.0])
    check_gradients(config("grpo", branch={}), GRPO(), blind)
    check_gradients(config("stepwise_grpo"), StepwiseGRPO(), blind)
    with pytest.raises(UserError, match="objective draft needs gradients"):
        check_gradients(config("draft"), DRaFT(), blind)
    for objective in (DRaFT(), StepwiseGRPO()):
        with pytest.raises(UserError, match=r"policy.branch: objective .* finishes every sample's own trajectory"):
            check_gradients(config(objective.name, branch={}), objective, blind)
