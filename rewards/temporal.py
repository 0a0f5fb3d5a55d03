"""Whether a video hangs together from frame to frame, and moves at all; no weights.

Every measure of consistency is best for a video that stands still, so a run that trains on one of them freezes its
videos. Here each is multiplied by ``min(1, motion / floor)``: a frozen video scores 0, and above the floor motion
brings nothing more. Flicker and feature consistency are those of "VBench: Comprehensive Benchmark Suite for Video
Generative Models", Huang et al., https://arxiv.org/abs/2311.17982; the warp error is that of "Learning Blind Video
Temporal Consistency", Lai et al., https://arxiv.org/abs/1808.00449.

Functions take one video `[F, 3, H, W]` in [0, 1] of at least two frames.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import plugins
from ..errors import UserError
from ..reward import Media, Reward, RewardBatch
from ._flow import blurred, optical_flow, warp

Features = Callable[[Tensor], Tensor]
"""From pictures `[N, 3, H, W]` in [0, 1] to features `[N, D]`."""


def flicker(video: Tensor) -> Tensor:
    """Steadiness: 1 minus the mean absolute difference of neighbouring frames; differentiable.

    >>> flicker(torch.tensor([0.0, 0.25, 0.0]).view(3, 1, 1, 1).expand(3, 3, 4, 4)).item()
    0.75
    """
    return 1 - video.diff(dim=0).abs().mean()


def consistency(features: Tensor) -> Tensor:
    """Mean over the frames from the second on of half their likeness to the frame before and half to the first.

    Likeness is the cosine, where negative 0.

    Args:
        features: `[F, D]`, a frame each.

    >>> right, up = [1.0, 0.0], [0.0, 1.0]
    >>> consistency(torch.tensor([right, right, up])).item()  # the second frame scores 1, the third 0
    0.5
    """
    unit = F.normalize(features, dim=-1)
    before = (unit[1:] * unit[:-1]).sum(dim=-1).clamp(min=0)
    first = (unit[1:] * unit[:1]).sum(dim=-1).clamp(min=0)
    return (before + first).mean() / 2


def pixel_features(images: Tensor, side: int = 16) -> Tensor:
    """A picture's own small copy as its features, less its mean colour: `[N, 3 * side^2]`; differentiable.

    >>> pixel_features(torch.rand(2, 3, 48, 64)).shape
    torch.Size([2, 768])
    """
    small = F.interpolate(images, (side, side), mode="bilinear", antialias=True, align_corners=False)
    return (small - small.mean(dim=(2, 3), keepdim=True)).flatten(1)


def motion_and_warp_error(video: Tensor, side: int = 128) -> tuple[Tensor, Tensor]:
    """How far things move, and what the next frame, moved back, does not explain.

    The flow of a place counts as motion where it explains most of the difference between the frames, and brightness and
    contrast of the frames are evened out before: so neither noise nor a flicker of the light is motion. Of each pair of
    frames the fastest twentieth of the places is averaged, as in VBench: a small thing that moves is motion.

    Args:
        video: `[F, 3, H, W]` in [0, 1].
        side: frames with a longer shorter side are reduced to it, in pixels.

    Returns:
        motion: mean over pairs of frames, in shares of the shorter side, a frame.
        error: mean absolute difference of a frame and the next one moved back, in [0, 1], where both see the place.

    Raises:
        ValueError: the video has less than two frames.

    >>> motion, error = motion_and_warp_error(torch.rand(1, 3, 32, 32).expand(3, 3, 32, 32))
    >>> motion.item(), error.item()
    (0.0, 0.0)
    """
    if len(video) < 2:
        raise ValueError(f"wanted a video of at least 2 frames, got {len(video)}")
    frames = _reduced(video, side)
    even = _evened(frames)
    flow = optical_flow(even[:-1], even[1:])
    moved, inside = warp(frames[1:], flow)
    error = ((moved - frames[:-1]).abs() * inside).sum() / (3 * inside.sum()).clamp(min=1)
    speed = flow.norm(dim=1) * _explained(even[:-1], even[1:], warp(even[1:], flow)[0])
    fastest = speed.flatten(1).topk(max(1, speed[0].numel() // 20), dim=1).values
    return fastest.mean() / min(frames.shape[-2:]), error


def motion_gate(motion: Tensor, floor: float) -> Tensor:
    """``min(1, motion / floor)``; 1 for a floor of 0.

    >>> motion_gate(torch.tensor([0.0, 0.001, 0.5]), floor=0.002)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return torch.ones_like(motion) if floor == 0 else (motion / floor).clamp(max=1)


def _reduced(video: Tensor, side: int) -> Tensor:
    shorter = min(video.shape[-2:])
    if shorter <= side:
        return video
    size = [max(1, round(length * side / shorter)) for length in video.shape[-2:]]
    return F.interpolate(video, size, mode="bilinear", antialias=True, align_corners=False)


def _evened(frames: Tensor) -> Tensor:
    """Each frame's colours with the mean and the spread of the video's."""
    mean, spread = frames.mean(dim=(2, 3), keepdim=True), frames.std(dim=(2, 3), keepdim=True)
    return (frames - mean) / spread.clamp(min=1e-3) * spread.mean(dim=0) + mean.mean(dim=0)


def _explained(first: Tensor, second: Tensor, moved: Tensor) -> Tensor:
    """`[N, H, W]` bool: where, in a window, moving back removes three quarters of the squared difference."""
    before = blurred((second - first).square().mean(dim=1, keepdim=True))
    after = blurred((moved - first).square().mean(dim=1, keepdim=True))
    return (after < before / 4)[:, 0]


class _TemporalReward(Reward):
    """A measure of a video, multiplied by its motion gate."""

    media: Media = "video"
    range = (0.0, 1.0)
    license = "Apache-2.0"
    source = "procedural"

    def __init__(self, floor: float = 0.005) -> None:
        """Set the motion under which a video counts as still, in shares of the shorter side, a frame."""
        if not 0 <= floor < 1:
            raise UserError(f"reward {self.name!r}: floor: wanted a number from 0 to 1, such as 0.005, got {floor!r}.")
        self.floor = floor

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each video, `[B]`."""
        return torch.stack([self._score(video) for video in batch.images])

    def _score(self, video: Tensor) -> Tensor:
        with torch.no_grad():
            motion, error = motion_and_warp_error(video)
        return self.measure(video, error) * motion_gate(motion, self.floor)

    @abstractmethod
    def measure(self, video: Tensor, error: Tensor) -> Tensor:
        """The measure of one video, whose warp error is ``error``; a scalar in [0, 1]."""

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """A texture that moves evenly; the same one standing still, and one anew in every frame."""
        generator = torch.Generator().manual_seed(0)
        canvas = blurred(torch.rand(8, 3, 32, 48, generator=generator)).sub(0.4).mul(5).clamp(0, 1)
        moving = torch.stack([canvas[0, :, :, 2 * t : 2 * t + 32] for t in range(8)])
        still, other = canvas[0, :, :, :32].expand(8, 3, 32, 32), canvas[:, :, :, :32]
        return (
            RewardBatch(moving[None], ["moving"], [{}], fps=8.0),
            RewardBatch(torch.stack([still, other]), ["still", "unrelated frames"], [{}, {}], fps=8.0),
        )


class FlickerReward(_TemporalReward):
    """:func:`flicker` of a video that moves, in [0, 1]: 1 is steady. Gradients reach the frames, past the gate.

    >>> still = RewardBatch(torch.rand(1, 1, 3, 32, 32).expand(1, 4, 3, 32, 32), ["a"], [{}])
    >>> FlickerReward()(still).item(), FlickerReward(floor=0.0)(still).item()
    (0.0, 1.0)
    """

    name = "flicker"
    differentiable = True

    def measure(self, video: Tensor, error: Tensor) -> Tensor:
        """:func:`flicker`."""
        return flicker(video)


class FeatureConsistencyReward(_TemporalReward):
    """:func:`consistency` of a video that moves, in [0, 1]: 1 keeps its features from the first frame to the last.

    >>> still = RewardBatch(torch.rand(1, 1, 3, 32, 32).expand(1, 4, 3, 32, 32), ["a"], [{}])
    >>> round(FeatureConsistencyReward(floor=0.0)(still).item(), 4)
    1.0
    """

    name = "feature_consistency"

    def __init__(self, floor: float = 0.005, features: str | Features | None = None) -> None:
        """Set the motion floor, and what is compared.

        Args:
            floor: motion under which a video counts as still, in shares of the shorter side, a frame.
            features: a plug-in name (``module:object``) or a function, see :data:`Features`; None for
                :func:`pixel_features`, which follow the layout of a picture, and not what it shows.

        Raises:
            UserError: the floor is out of range, or nothing has that name.
        """
        super().__init__(floor)
        self.differentiable = features is None
        self.source = features if isinstance(features, str) else "function" if features else "procedural"
        found = plugins.load("rewards", features) if isinstance(features, str) else features
        self._features: Features = found or pixel_features

    def measure(self, video: Tensor, error: Tensor) -> Tensor:
        """:func:`consistency` of the frames' features."""
        return consistency(self._features(video))


class WarpErrorReward(_TemporalReward):
    """1 minus the warp error of a video that moves, in [0, 1]: 1 if each frame is the one before, moved.

    >>> good, bad = WarpErrorReward().examples()
    >>> bool(WarpErrorReward()(good).min() > WarpErrorReward()(bad).max())
    True
    """

    name = "warp_error"

    def measure(self, video: Tensor, error: Tensor) -> Tensor:
        """1 minus the error."""
        return 1 - error


class MotionReward(_TemporalReward):
    """The motion gate alone, ``min(1, motion / floor)``: 0 for a still video, 1 for one that moves enough.

    >>> good, _ = MotionReward().examples()
    >>> MotionReward()(good).item()
    1.0
    """

    name = "motion"

    def measure(self, video: Tensor, error: Tensor) -> Tensor:
        """Nothing beside the gate."""
        return torch.ones_like(error)

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """A texture that moves, and one that stands still; frames that have nothing in common may count as motion."""
        good, bad = super().examples()
        return good, bad.select([0])
