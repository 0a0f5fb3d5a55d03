"""Rewards with gradients to the pictures, for objectives that climb them directly."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .data import MicroBatch
from .errors import UserError
from .reward import RewardBatch, RewardSet
from .scoring import to_score
from .trajectory import Rollout


def check_differentiable(objective: str, rewards: RewardSet) -> None:
    """Every reward that is trained on gives gradients.

    Raises:
        UserError: one does not; the message names it.
    """
    blind = [
        name
        for name, reward, weight in zip(rewards.names, rewards.rewards, rewards.weights.tolist(), strict=True)
        if weight != 0 and not reward.differentiable
    ]
    if blind:
        raise UserError(
            f"objective {objective} needs gradients of its rewards, and {', '.join(blind)} gives none; write a reward "
            "that says differentiable = True, such as saturation; weight 0 to only watch this one; or an objective "
            "that needs scores alone, such as nft."
        )


def reward_of_pictures(
    rewards: RewardSet, fps: float | None, batch: MicroBatch, rollout: Rollout, images: Tensor
) -> Tensor:
    """The weighted sum of the rewards `[B]` of pictures in place of those of a rollout, see `reward_with_gradients`.

    Args:
        rewards: what is trained on.
        fps: frames a second of videos, if known.
        batch: the micro-batch: its prompts' metadata.
        rollout: its prompts, and latents, for rewards that look at them.
        images: `[B, 3, H, W]`, with gradients.
    """
    return reward_with_gradients(rewards, to_score(batch, replace(rollout, images=images), fps))


def reward_with_gradients(rewards: RewardSet, batch: RewardBatch) -> Tensor:
    """The weighted sum of the rewards `[B]`, larger is better, with gradients to ``batch.images``.

    Rewards for images score a video by the mean over its frames. NaN where a reward could not score.

    Args:
        rewards: those of weight 0 are not called.
        batch: its images may carry gradients.

    >>> from .reward import FunctionReward
    >>> class Brightness(FunctionReward):
    ...     differentiable = True
    ...
    ...     def __call__(self, batch):
    ...         return batch.images.mean(dim=(1, 2, 3))
    >>> rewards = RewardSet(("b",), (Brightness(lambda images, prompts, metadata: 0),), torch.tensor([2.0]))
    >>> reward_with_gradients(rewards, RewardBatch(torch.ones(1, 3, 2, 2), ["a"], [{}]))
    tensor([2.])
    """
    total = torch.zeros(len(batch), device=batch.images.device)
    signs = rewards.combine(rewards.weights)
    for reward, weight in zip(rewards.rewards, signs.tolist(), strict=True):
        if weight == 0:
            continue
        if (reward.media, batch.media) == ("image", "video"):
            scores = reward(batch.frames()).view(len(batch), -1).mean(dim=1)
        else:
            scores = reward(batch)
        total = total + weight * scores.to(total)
    return total
