"""Statistics of pixels as rewards: targets, ranges, gradients; ``tests/test_pixels.py`` has the values."""

import math

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch, RewardSet
from flowrl.rewards.image_stats import (
    BlockinessReward,
    ClippingReward,
    ColourEntropyReward,
    DarkShareReward,
    EdgeEnergyReward,
    SaturationReward,
)

REWARDS = [
    SaturationReward,
    ClippingReward,
    EdgeEnergyReward,
    BlockinessReward,
    DarkShareReward,
    ColourEntropyReward,
]


@pytest.mark.parametrize("reward", REWARDS)
def test_scores_stand_alone_and_in_range(reward):
    """A picture has the same score alone and in a batch, inside the range that the reward declares."""
    images = torch.rand(4, 3, 16, 24)
    batch = RewardBatch(images, [""] * 4, [{}] * 4)
    for scorer in (reward(), reward(target=0.5)):
        scores = scorer(batch)
        low, high = scorer.range
        assert ((low <= scores) & (scores <= high)).all()
        alone = torch.cat([scorer(batch.select([index])) for index in range(4)])
        torch.testing.assert_close(alone, scores)


@pytest.mark.parametrize("reward", REWARDS)
def test_gradients_reach_the_images_if_declared(reward):
    """A gradient where it says so, and only there."""
    images = torch.rand(2, 3, 16, 16, requires_grad=True)
    scores = reward()(RewardBatch(images, ["", ""], [{}, {}]))
    assert scores.requires_grad == reward.differentiable
    if reward.differentiable:
        scores.sum().backward()
        assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("reward", REWARDS)
def test_target(reward):
    """At its own value the distance is 0, the best there is; higher is then better, whatever the statistic."""
    batch = RewardBatch(torch.rand(1, 3, 16, 16), [""], [{}])
    value = reward()(batch).item()
    near, far = reward(target=value), reward(target=value - 0.1 if value > 0.5 else value + 0.1)
    assert near(batch).item() == pytest.approx(0, abs=1e-6)
    assert far(batch).item() == pytest.approx(-0.1, abs=1e-6)
    assert near.higher_is_better
    assert near.range[1] == 0
    with pytest.raises(UserError, match=r"target: wanted a number from .* got 1.5"):
        reward(target=1.5)


@pytest.mark.parametrize(
    ("reward", "options"),
    [(ClippingReward, {"margin": 0.5}), (DarkShareReward, {"threshold": 0}), (BlockinessReward, {"period": 1})],
)
def test_options_out_of_range(reward, options):
    """The message names the option and what came."""
    (option, value), *_ = options.items()
    with pytest.raises(UserError, match=rf"{option}: wanted .* got {value}"):
        reward(**options)


def test_in_a_set():
    """By name in a config; a lower-is-better statistic has its sign flipped for the advantage."""
    rewards = RewardSet.from_config({"saturation": 1.0, "dark_share": {"weight": 0.5, "threshold": 0.2}})
    raw = rewards.score(RewardBatch(torch.zeros(1, 3, 8, 8), [""], [{}])).raw
    assert raw.tolist() == [[0.0, 1.0]]
    assert rewards.combine(raw).tolist() == [[0.0, -1.0]]
    assert not math.isnan(raw.sum())
