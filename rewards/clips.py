"""Reads a clip of the shapes world and checks it against its caption.

The judge looks at pixels only, frame by frame: which object is there (:func:`~.shapes.see`), and where its centre is.
From these it reads three things: identity (the object that was asked for, alone, in every frame), direction with pace,
and smoothness (steps of one length, no jump and no way back). They are those that video benchmarks ask for: see
"VBench: Comprehensive Benchmark Suite for Video Generative Models", Huang et al., https://arxiv.org/abs/2311.17982.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from ..pipelines.shapes import clips
from ..reward import Media, RewardBatch
from ._judged import JudgedReward
from .shapes import see

_SCALE = 2
"""Frames are enlarged before objects are looked for: outlines then lie between their few pixels."""
_FOREGROUND = 0.4
"""Half of the distance between ground and ink, in RGB units of [0, 1]: blur does not move that outline."""
_OVERLAP = 0.66
"""Overlap (IoU) with a shape's template; less than in the larger pictures of the shapes world, as a pixel is more."""
_LEAST = 3.5
"""Pixels from the first frame to the last that count as a motion."""
_SLOW, _QUICK = 9.5, 10.5
"""At most so far is slow, at least so far is quick, in pixels."""
_JUMP = 1.2
"""Pixels by which a step may differ from the mean step."""


class Verdict(NamedTuple):
    """What the judge found; each number in [0, 1].

    Attributes:
        identity: share of the frames that hold the object alone; half for its colour or its shape.
        motion: how far the way from the first frame to the last is the one asked for.
        smoothness: 1 for steps of one length, 0 for a jump of five times the tolerance, or where the object is lost.
        strict: whether nothing is wrong.
    """

    identity: float
    motion: float
    smoothness: float
    strict: bool

    @property
    def partial(self) -> float:
        """The mean of the three; at most 0.95 where something is wrong."""
        return 1.0 if self.strict else min(0.95, (self.identity + self.motion + self.smoothness) / 3)


def judge(clip: np.ndarray, caption: str) -> Verdict:
    """Score one clip against its caption.

    Args:
        clip: `[F, H, W, 3]`, float in [0, 1], of two frames at least.
        caption: a caption of :mod:`flowrl.pipelines.shapes.clips`.

    Raises:
        ValueError: the caption is not one of that world.
    """
    wanted = clips.parse(caption)
    identities = [_identity(frame, wanted) for frame in _enlarged(clip)]
    path = np.stack([_centre(frame) for frame in clip])
    if np.isnan(path).any():  # a frame is empty
        return Verdict(float(np.mean(identities)), 0.0, 0.0, strict=False)
    motion, right_way = _motion(path[-1] - path[0], wanted)
    steps = np.diff(path, axis=0)
    jump = float(np.linalg.norm(steps - steps.mean(axis=0), axis=1).max())
    smoothness = float(np.clip(1 - (jump - _JUMP) / (4 * _JUMP), 0, 1))
    strict = min(identities) == 1 and right_way and jump <= _JUMP
    return Verdict(float(np.mean(identities)), motion, smoothness, strict)


def _enlarged(clip: np.ndarray) -> np.ndarray:
    frames = torch.from_numpy(np.ascontiguousarray(clip)).permute(0, 3, 1, 2)
    return F.interpolate(frames, scale_factor=_SCALE, mode="bilinear").permute(0, 2, 3, 1).numpy()


def _identity(frame: np.ndarray, wanted: clips.Motion) -> float:
    """1 if the object is there alone; half of it for its colour or its shape, less for what else is there."""
    area = 16 * _SCALE**2
    objects, _ = see(frame, area=area, foreground=_FOREGROUND, overlap=_OVERLAP)
    found = max(((seen.colour == wanted.colour) + (seen.shape == wanted.shape) for seen in objects), default=0) / 2
    everything, specks = see(frame, area=area)  # faint objects too: a ghost beside the object is one too many
    alone = len(everything) <= 1 and specks < 2
    return found if alone else found / 2


def _centre(frame: np.ndarray) -> np.ndarray:
    """Centre of mass (x, y) of all that differs from the ground, to a part of a pixel; NaN in an empty frame."""
    border = np.concatenate([frame[0], frame[-1], frame[:, 0], frame[:, -1]])
    distance = np.linalg.norm(frame - np.median(border, axis=0), axis=-1)
    mass = np.clip(distance - 0.1, 0, 0.4)  # the ground's noise weighs nothing, and every ink alike
    if mass.sum() < 4:
        return np.full(2, np.nan)
    rows, columns = np.indices(mass.shape)
    return np.array([(mass * columns).sum(), (mass * rows).sum()]) / mass.sum()


def _motion(way: np.ndarray, wanted: clips.Motion) -> tuple[float, bool]:
    """How far a way (x, y) in pixels is the one asked for, in [0, 1], and whether it is."""
    along = float(way @ np.asarray(clips.DIRECTIONS[wanted.direction]))
    across = float(np.sqrt(max(0.0, way @ way - along**2)))
    straight = across <= max(1.5, 0.25 * along)
    excess = {"plain": 0.0, "slowly": along - _SLOW, "quickly": _QUICK - along}[wanted.pace]
    direction = float(np.clip(along / _LEAST, 0, 1) / (1 + across / max(along, 1.0)))
    pace = float(np.clip(1 - excess / 6, 0, 1))
    return direction * (0.5 + 0.5 * pace), along >= _LEAST and straight and excess <= 0


class ClipsReward(JudgedReward):
    """Whether a clip of the shapes world shows what its caption asks for: :func:`judge`, ``strict`` or ``partial``.

    >>> good, bad = ClipsReward().examples()
    >>> ClipsReward()(good).tolist(), ClipsReward()(bad).tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """

    name = "clips"
    media: Media = "video"
    size = clips.SIZE

    def verdict(self, pixels: np.ndarray, caption: str) -> tuple[float, float]:
        """:func:`judge` of a clip."""
        found = judge(pixels, caption)
        return float(found.strict), found.partial

    def parse(self, caption: str) -> clips.Motion:
        """The motion of a caption."""
        return clips.parse(caption)

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """Rendered clips, and the same clips under captions that are wrong in one word."""
        right = ["a red circle moves right", "a blue square slowly moves up", "a green triangle quickly moves left"]
        wrong = ["a red circle moves left", "a blue square quickly moves up", "a green circle quickly moves left"]
        rng = np.random.default_rng(0)
        rendered = np.stack([clips.render(clips.parse(prompt), rng) for prompt in right])
        videos = torch.from_numpy(rendered).permute(0, 1, 4, 2, 3).float() / 255
        return RewardBatch(videos, right, [{}] * 3), RewardBatch(videos, wrong, [{}] * 3)


class ClipsPartialReward(ClipsReward):
    """:class:`ClipsReward` in the mode ``partial``.

    >>> good, bad = ClipsPartialReward().examples()
    >>> [round(score, 2) for score in ClipsPartialReward()(bad).tolist()]
    [0.67, 0.9, 0.83]
    """

    name = "clips_partial"

    def __init__(self) -> None:
        """No options."""
        super().__init__("partial")
