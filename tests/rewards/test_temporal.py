"""Videos from frame to frame: values by hand, flow on clips that move by a known amount, and frozen clips that lose."""

import pytest
import torch

from flowrl.errors import UserError
from flowrl.reward import RewardBatch, RewardSet
from flowrl.rewards._flow import blurred, optical_flow, warp
from flowrl.rewards.temporal import (
    FeatureConsistencyReward,
    FlickerReward,
    MotionReward,
    WarpErrorReward,
    consistency,
    flicker,
    motion_and_warp_error,
    motion_gate,
    pixel_features,
)

REWARDS = [FlickerReward, FeatureConsistencyReward, WarpErrorReward, MotionReward]


def texture(height: int, width: int, count: int = 1, seed: int = 0) -> torch.Tensor:
    """Smooth random colours, `[count, 3, height, width]`."""
    noise = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))
    return (blurred(noise) - 0.4).mul(5).clamp(0, 1)


def moving(dx: int, dy: int = 0, frames: int = 6, side: int = 48) -> torch.Tensor:
    """A texture that moves by (dx, dy) pixels a frame, to the right and down; no frame shows an edge of it."""
    margin = (frames - 1) * max(abs(dx), abs(dy))
    canvas = texture(side + 2 * margin, side + 2 * margin)[0]
    starts = [(margin - dy * t, margin - dx * t) for t in range(frames)]
    return torch.stack([canvas[:, y : y + side, x : x + side] for y, x in starts])


def ball(step: int, frames: int = 8, side: int = 64) -> torch.Tensor:
    """A small white disc on grey that moves to the right."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    discs = [((x - 10 - step * t) ** 2 + (y - 30) ** 2 < 36).float() for t in range(frames)]
    return torch.stack(discs)[:, None].expand(-1, 3, -1, -1) * 0.8 + 0.1


def score(reward, *videos: torch.Tensor) -> list[float]:
    """Its scores of these videos."""
    return reward(RewardBatch(torch.stack(videos), [""] * len(videos), [{}] * len(videos))).tolist()


@pytest.mark.parametrize(("dx", "dy"), [(1, 0), (0, -2), (3, -2), (8, 5)])
@pytest.mark.parametrize("side", [48, 96])
def test_flow_of_a_translation(dx, dy, side):
    """A hundredth of a pixel or so away from the truth, wherever both frames see the place."""
    first, second = moving(dx, dy, frames=2, side=side)
    flow = optical_flow(first[None], second[None])
    error = (flow - torch.tensor([dx, dy]).view(1, 2, 1, 1)).norm(dim=1)
    inner = error[..., 10:-10, 10:-10]
    assert inner.median() < 0.03
    assert inner.mean() < 0.1


def test_flow_of_nothing():
    """Equal frames, and frames without texture, have no flow."""
    frame = texture(32, 32)
    assert optical_flow(frame, frame).abs().max() == 0
    assert optical_flow(torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)).abs().max() == 0


def test_warp_by_hand():
    """Half a pixel to the right is the mean of two neighbours; outside, the edge is repeated, and marked."""
    row = torch.tensor([0.0, 1.0, 4.0, 9.0]).view(1, 1, 1, 4)
    half = torch.tensor([0.5, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 4)
    moved, inside = warp(row, half)
    assert moved.flatten().tolist() == [0.5, 2.5, 6.5, 9.0]
    assert inside.flatten().tolist() == [True, True, True, False]


def test_flicker_by_hand():
    """Steps of 0.2 and 0.6 are 0.4 in the mean."""
    frames = torch.tensor([0.1, 0.3, 0.9]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
    assert flicker(frames).item() == pytest.approx(0.6)


def test_consistency_by_hand():
    """Frames at 0, 60 and 120 degrees: cosines .5 and .5 to the one before, .5 and -.5, counted 0, to the first."""
    angles = torch.tensor([0.0, 60.0, 120.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert consistency(features).item() == pytest.approx(((0.5 + 0.5) / 2 + (0.5 + 0.0) / 2) / 2)
    assert consistency(7 * features).item() == pytest.approx(0.375)


def test_pixel_features_ignore_the_mean_colour():
    """A change of brightness leaves the likeness at 1; a picture against its mirror image is less alike."""
    frame = texture(48, 48) * 0.8
    assert consistency(pixel_features(torch.cat([frame, frame + 0.2]))).item() == pytest.approx(1, abs=1e-5)
    assert consistency(pixel_features(torch.cat([frame, frame.flip(3)]))).item() < 0.8


@pytest.mark.parametrize("step", [1, 2, 4])
def test_motion_is_the_speed(step):
    """Pixels a frame over the shorter side, for a texture; within a half, for a small thing on a still ground."""
    assert motion_and_warp_error(moving(step))[0].item() == pytest.approx(step / 48, rel=0.1)
    assert motion_and_warp_error(ball(step))[0].item() == pytest.approx(step / 64, rel=0.5)


def test_motion_does_not_depend_on_resolution():
    """A larger copy of a video has the same motion, also where it is reduced on the way."""
    small = moving(2)
    large = torch.nn.functional.interpolate(small, scale_factor=4, mode="bilinear", align_corners=False)
    expected = motion_and_warp_error(small)[0].item()
    assert motion_and_warp_error(large, side=192)[0].item() == pytest.approx(expected, rel=0.1)
    assert motion_and_warp_error(large, side=96)[0].item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("what", ["noise", "strong noise", "light", "flash"])
def test_what_is_not_motion(what):
    """A still picture under noise or changing light does not move: less than a tenth of the default floor."""
    still = texture(64, 64).expand(6, 3, 64, 64)
    noise = torch.randn(still.shape, generator=torch.Generator().manual_seed(0))
    video = {
        "noise": still + 0.05 * noise,
        "strong noise": still + 0.2 * noise,
        "light": still * torch.linspace(0.6, 1, 6).view(-1, 1, 1, 1),
        "flash": still * torch.tensor([0.7, 1.0] * 3).view(-1, 1, 1, 1),
    }[what]
    motion, error = motion_and_warp_error(video.clamp(0, 1))
    assert motion < 0.0005
    assert error > 0.01


def test_warp_error_sees_what_motion_does_not_explain():
    """Next to none for a translation; noise of standard deviation 0.1 leaves about its own size; cuts leave more."""
    clip = moving(2)
    noise = torch.randn(clip.shape, generator=torch.Generator().manual_seed(0))
    clean, noisy, cut = (
        motion_and_warp_error(video)[1].item()
        for video in (clip, (clip + 0.1 * noise).clamp(0, 1), texture(48, 48, count=6))
    )
    assert clean < 0.005
    # The mean absolute difference of two such noises is 0.1 * 2 / sqrt(pi) = 0.113; bilinear weights and clipping
    # make it smaller.
    assert 0.06 < noisy < 0.113
    assert cut > 0.13


def test_gate_by_hand():
    """Half the floor is half the score; above it nothing is gained; a floor of 0 asks for no motion."""
    motion = torch.tensor([0.0, 0.01, 0.02, 0.4])
    assert motion_gate(motion, 0.02).tolist() == [0.0, 0.5, 1.0, 1.0]
    assert motion_gate(motion, 0.0).tolist() == [1.0] * 4


@pytest.mark.parametrize("reward", REWARDS)
def test_a_frozen_clip_does_not_win(reward):
    """It scores 0, a moving one more; without the floor it has the best score there is."""
    clip = moving(1)
    still = clip[:1].expand_as(clip)
    frozen, alive = score(reward(), still, clip)
    assert frozen == 0
    assert alive > 0.4
    (ungated,) = score(reward(floor=0.0), still)
    assert ungated == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("reward", [FlickerReward, FeatureConsistencyReward, WarpErrorReward])
def test_jitter_costs(reward):
    """The same motion with frames that belong to other clips in between scores less."""
    clip = moving(1)
    broken = clip.clone()
    broken[1::2] = texture(48, 48, count=3, seed=1)
    good, bad = score(reward(), clip, broken)
    assert bad < good


@pytest.mark.parametrize("reward", REWARDS)
def test_examples(reward):
    """What must score well does, better than what must score badly; a still clip for each, cuts for most."""
    good, bad = reward().examples()
    scores = reward()(bad)
    assert reward()(good).min() > scores[0]
    assert reward is MotionReward or reward()(good).min() > scores[1]


@pytest.mark.parametrize("reward", REWARDS)
def test_scores_stand_alone(reward):
    """A video has the same score alone and in a batch, in [0, 1]."""
    videos = [moving(1), moving(3), texture(48, 48, count=6)]
    together = score(reward(), *videos)
    assert all(0 <= value <= 1 for value in together)
    assert together == pytest.approx([score(reward(), video)[0] for video in videos], abs=1e-6)


@pytest.mark.parametrize("reward", REWARDS)
def test_gradients_reach_the_frames_if_declared(reward):
    """A gradient where it says so, and only there."""
    videos = moving(1)[None].clone().requires_grad_()
    scores = reward()(RewardBatch(videos, [""], [{}]))
    assert scores.requires_grad == reward().differentiable
    if scores.requires_grad:
        scores.sum().backward()
        assert videos.grad.abs().sum() > 0


def test_features_of_ones_own(tmp_path):
    """A plug-in name or a function; here the mean colour, which a translation hardly changes."""
    (tmp_path / "mine.py").write_text("def colour(images):\n    return images.mean(dim=(2, 3))\n")
    by_name = FeatureConsistencyReward(features=f"{tmp_path}/mine.py:colour")
    by_function = FeatureConsistencyReward(features=lambda images: images.mean(dim=(2, 3)))
    clip = moving(1)
    assert score(by_name, clip) == score(by_function, clip)
    assert score(by_name, clip)[0] > 0.99
    assert not by_name.differentiable
    with pytest.raises(UserError, match="there is no file"):
        FeatureConsistencyReward(features="nowhere.py:colour")


@pytest.mark.parametrize("reward", REWARDS)
def test_floor_out_of_range(reward):
    """The message shows a value to write."""
    with pytest.raises(UserError, match=r"floor: wanted a number from 0 to 1, such as 0.005, got -1"):
        reward(floor=-1)


def test_one_frame_is_no_video():
    """It is said, not scored."""
    with pytest.raises(ValueError, match="at least 2 frames, got 1"):
        motion_and_warp_error(torch.zeros(1, 3, 16, 16))


def test_in_a_set():
    """By name in a config; they want videos."""
    rewards = RewardSet.from_config({"flicker": 1.0, "motion": {"weight": 0.5, "floor": 0.01}})
    clip = moving(1)
    raw = rewards.score(RewardBatch(torch.stack([clip, clip[:1].expand_as(clip)]), ["a", "b"], [{}, {}])).raw
    assert raw[0, 1] == 1
    assert raw[1].tolist() == [0.0, 0.0]
    with pytest.raises(UserError, match="scores videos"):
        rewards.score(RewardBatch(clip, ["a"] * 6, [{}] * 6))
