"""Epipolar consistency: the distance by hand, synthetic cameras, and videos of layers that move rigidly or not."""

import importlib.util

import numpy as np
import pytest
import torch
from scipy import ndimage

from flowrl.errors import UserError
from flowrl.reward import RewardBatch
from flowrl.rewards.epipolar import EpipolarReward, epipolar_share, matches_of, sampson

needs_opencv = pytest.mark.skipif(
    importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed: pip install 'flowrl[geometry]'"
)
SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
"""The fundamental matrix of a camera that moves sideways: matches stay on their row."""


def two_views(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random points before two cameras `[N, 2]` each, and the true fundamental matrix."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-2, -2, 4], [2, 2, 8], (count, 3))
    intrinsics = np.array([[200.0, 0, 128], [0, 200, 128], [0, 0, 1]])
    angle, shift = 0.1, np.array([0.5, 0.1, 0.2])
    turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    moved = points @ turn.T + shift
    first, second = (p @ intrinsics.T / p[:, 2:] for p in (points, moved))
    cross = np.array([[0, -shift[2], shift[1]], [shift[2], 0, -shift[0]], [-shift[1], shift[0], 0]])
    inverse = np.linalg.inv(intrinsics)
    return first[:, :2], second[:, :2], inverse.T @ cross @ turn @ inverse


def layers(shifts, frames: int = 9, side: int = 128) -> torch.Tensor:
    """Four horizontal bands of texture, each moved by its (x, y) a frame: `[F, 3, side, side]`."""
    rng = np.random.default_rng(0)
    textures = [ndimage.gaussian_filter(rng.random((2 * side, 2 * side)), 1.2) for _ in shifts]
    video = np.zeros((frames, side, side), dtype=np.float32)
    band = side // len(shifts)
    for frame in range(frames):
        for index, ((dx, dy), texture) in enumerate(zip(shifts, textures, strict=True)):
            rows = slice(index * band, (index + 1) * band)
            y, x = (40 + round(step * frame) for step in (dy, dx))
            video[frame, rows] = texture[y : y + side, x : x + side][rows]
    low, high = video.min(), video.max()
    return torch.from_numpy((video - low) / (high - low))[:, None].expand(-1, 3, -1, -1)


RIGID = [(1, 0), (2, 0), (3, 0), (4, 0)]
"""A camera that moves sideways before four layers: nearer ones move faster."""
TORN = [(1, -1.5), (2, 1.5), (3, -1.5), (4, 1.5)]
"""The same with layers that part: no rigid scene."""


def score(reward: EpipolarReward, *videos: torch.Tensor) -> list[float]:
    """Its scores of these videos."""
    return reward(RewardBatch(torch.stack(videos), [""] * len(videos), [{}] * len(videos))).tolist()


def test_sampson_by_hand():
    """3 rows off: |q F p| = 3, and both gradients are 1 long: 3 / sqrt(2). The scale of F does not matter."""
    p, q = np.array([[3.0, 5.0], [1.0, 1.0]]), np.array([[8.0, 8.0], [9.0, 1.0]])
    np.testing.assert_allclose(sampson(SIDEWAYS, p, q), [3 / np.sqrt(2), 0])
    np.testing.assert_allclose(sampson(7 * SIDEWAYS, p, q), [3 / np.sqrt(2), 0])


def test_true_matches_have_no_distance():
    """Points seen by two cameras obey their fundamental matrix; moved by noise, by about the noise."""
    first, second, fundamental = two_views()
    assert sampson(fundamental, first, second).max() < 1e-9
    noisy = second + np.random.default_rng(1).normal(scale=0.5, size=second.shape)
    assert 0.1 < sampson(fundamental, first, noisy).mean() < 0.5


@needs_opencv
def test_share_of_rigid_matches():
    """All of the true ones; with 60 of 200 put elsewhere, the 140 and the few that fall near their line by chance."""
    first, second, _ = two_views()
    assert epipolar_share(first, second) == 1
    wrong = second.copy()
    wrong[:60] = np.random.default_rng(2).uniform(0, 256, (60, 2))
    assert 0.7 <= epipolar_share(first, wrong) < 0.75


@needs_opencv
def test_matches_of_a_shift():
    """A picture moved by (6, 0): nearly every match says so; without texture there is none."""
    video = (layers([(3, 0)] * 4, frames=3)[:, 0] * 255).round().byte().numpy()
    p, q = matches_of(video[0], video[2])
    assert len(p) > 100
    np.testing.assert_allclose(np.median(p - q, axis=0), [6, 0], atol=0.1)
    flat = np.zeros((64, 64), dtype=np.uint8)
    assert len(matches_of(flat, flat)[0]) == 0


@needs_opencv
def test_a_rigid_scene_scores_more():
    """Parallax is rigid, layers that part are not; a still video, flat frames, and unrelated frames score 0 or so."""
    rigid, torn, still = layers(RIGID), layers(TORN), layers([(0, 0)] * 4)
    rng = torch.Generator().manual_seed(0)
    unrelated = torch.rand(9, 3, 128, 128, generator=rng)
    scores = score(EpipolarReward(), rigid, torn, still, torch.full_like(rigid, 0.5), unrelated)
    assert scores[0] > 0.95
    assert 0.3 < scores[1] < 0.7
    assert scores[2:4] == [0.0, 0.0]
    assert scores[4] < 0.1
    assert score(EpipolarReward(floor=0.0), still) == pytest.approx([1.0], abs=0.01)


@needs_opencv
def test_floor_by_hand():
    """Everything moves by 2 pixels of 128 a frame, so by 1/32 in the two frames of a pair: half of a floor of 1/16."""
    moving = layers([(2, 0)] * 4, frames=5)
    full, half = score(EpipolarReward(gap=2), moving)[0], score(EpipolarReward(gap=2, floor=1 / 16), moving)[0]
    assert full > 0.95
    assert half == pytest.approx(full / 2, rel=0.02)


@needs_opencv
def test_scores_repeat_and_stand_alone():
    """The random numbers of the search are the same each time."""
    videos = [layers(RIGID), layers(TORN)]
    together = score(EpipolarReward(), *videos)
    assert together == score(EpipolarReward(), *videos)
    assert together == [score(EpipolarReward(), video)[0] for video in videos]


@needs_opencv
def test_short_videos():
    """A gap longer than the video is the whole video; a single frame is none."""
    assert score(EpipolarReward(gap=100), layers(RIGID))[0] > 0.95
    with pytest.raises(ValueError, match="at least 2 frames, got 1"):
        score(EpipolarReward(), layers(RIGID)[:1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": 0}, "gap: wanted at least 1, got 0"),
        ({"matches": 7}, "matches: wanted at least 8, got 7"),
        ({"threshold": 0.0}, "threshold: wanted at least 1e-06, got 0.0"),
    ],
)
def test_options_out_of_range(options, message):
    """Named when the reward is made."""
    with pytest.raises(UserError, match=message):
        EpipolarReward(**options)


@needs_opencv
def test_floor_out_of_range():
    """The message shows a value to write."""
    with pytest.raises(UserError, match=r"floor: wanted a number from 0 to 1, such as 0.01, got 2"):
        EpipolarReward(floor=2)


def test_missing_package_names_the_extra(monkeypatch):
    """The message says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs OpenCV, not installed: pip install 'flowrl\[geometry\]'"):
        EpipolarReward()
