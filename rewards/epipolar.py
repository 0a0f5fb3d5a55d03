"""Whether matched points of a video's frames fit one rigid scene: epipolar geometry; no weights, extra ``geometry``.

See "Epipolar Geometry Improves Video Generation Models", Kupyn et al., https://arxiv.org/abs/2510.21615, which prefers
videos of a small Sampson distance. A video that stands still fits perfectly, so the score is multiplied by
``min(1, motion / floor)``.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..reward import Media, Reward, RewardBatch
from ._cameras import checked_floor, gate


def sampson(fundamental: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """First-order distance of matched points from obeying ``q^T F p = 0``, in pixels.

    ``|q^T F p| / sqrt((Fp)_1^2 + (Fp)_2^2 + (F^T q)_1^2 + (F^T q)_2^2)``

    Args:
        fundamental: F, `[3, 3]`.
        first: p, `[N, 2]`.
        second: q, `[N, 2]`.

    >>> sideways = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # a camera that moves sideways keeps the rows
    >>> sampson(sideways, np.array([[3.0, 5.0]]), np.array([[8.0, 7.0]])).round(4).tolist()  # 2 rows off: 2 / sqrt(2)
    [1.4142]
    """
    p, q = (np.concatenate([points, np.ones((len(points), 1))], axis=1) for points in (first, second))
    fp, fq = p @ fundamental.T, q @ fundamental
    scale = np.sqrt((fp[:, :2] ** 2).sum(axis=1) + (fq[:, :2] ** 2).sum(axis=1))
    return np.abs((q * fp).sum(axis=1)) / np.maximum(scale, 1e-12)


def matches_of(first: np.ndarray, second: np.ndarray, ratio: float = 0.75) -> tuple[np.ndarray, np.ndarray]:
    """Points of one picture and where SIFT finds them in another: two arrays `[N, 2]` of x and y in pixels.

    Args:
        first: uint8 `[H, W]`.
        second: uint8 `[H, W]`.
        ratio: a match must be this much nearer than the second nearest.
    """
    import cv2

    sift = cv2.SIFT_create(contrastThreshold=0.02)
    (points, a), (others, b) = (sift.detectAndCompute(picture, None) for picture in (first, second))
    if a is None or b is None or len(b) < 2:
        return np.zeros((0, 2)), np.zeros((0, 2))
    pairs = [m for m, n in cv2.BFMatcher().knnMatch(a, b, k=2) if m.distance < ratio * n.distance]
    p = np.array([points[m.queryIdx].pt for m in pairs]).reshape(-1, 2)
    return p, np.array([others[m.trainIdx].pt for m in pairs]).reshape(-1, 2)


def epipolar_share(first: np.ndarray, second: np.ndarray, threshold: float = 1.0) -> float:
    """Share of matches that one rigid scene, seen by two cameras, explains: :func:`sampson` under ``threshold`` pixels.

    The fundamental matrix is the one that explains most of them (MAGSAC++, always with the same random numbers).

    Args:
        first: `[N, 2]`, N at least 8.
        second: `[N, 2]`.
        threshold: in pixels.
    """
    import cv2

    fundamental, _ = cv2.findFundamentalMat(first, second, cv2.USAC_MAGSAC, threshold, 0.999, 5000)
    if fundamental is None or fundamental.shape != (3, 3):
        return 0.0
    return float((sampson(fundamental, first, second) < threshold).mean())


class EpipolarReward(Reward):
    """Mean over pairs of frames of :func:`epipolar_share`, times the motion gate, in [0, 1].

    Motion is the median shift of the matches. A pair with too few matches scores 0: frames of one scene do match.

    >>> EpipolarReward.media, EpipolarReward.range
    ('video', (0.0, 1.0))
    """

    name = "epipolar"
    media: Media = "video"
    range = (0.0, 1.0)
    license = "Apache-2.0"
    extra = "geometry"
    source = "procedural"

    def __init__(self, gap: int = 8, threshold: float = 1 / 256, floor: float = 0.01, matches: int = 20) -> None:
        """Set what is compared.

        Args:
            gap: frames between the two of a pair; too few, and any motion looks rigid. At most the whole video.
            threshold: of Sampson's distance, in shares of the shorter side.
            floor: motion between two such frames under which a video counts as still, in shares of the shorter side.
            matches: fewer of them score 0; at least 8.

        Raises:
            UserError: an option is out of range, or OpenCV is missing.
        """
        for option, value, low in (("gap", gap, 1), ("matches", matches, 8), ("threshold", threshold, 1e-6)):
            if value < low:
                raise UserError(f"reward {self.name!r}: {option}: wanted at least {low}, got {value!r}.")
        if importlib.util.find_spec("cv2") is None:
            raise UserError(f"reward {self.name!r} needs OpenCV, not installed: pip install 'flowrl[geometry]'.")
        self.gap, self.threshold, self.matches = gap, threshold, matches
        self.floor = checked_floor(floor, self.name)

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The score of each video, `[B]`."""
        weights = torch.tensor([0.299, 0.587, 0.114], device=batch.images.device).view(3, 1, 1)
        grey = ((batch.images.detach() * weights).sum(dim=2) * 255).round().to("cpu", torch.uint8).numpy()
        return torch.tensor([self._score(video) for video in grey], dtype=torch.float32)

    def _score(self, frames: np.ndarray) -> float:
        gap = min(self.gap, len(frames) - 1)
        if gap < 1:
            raise ValueError(f"wanted a video of at least 2 frames, got {len(frames)}")
        pairs = [self._pair(frames[start], frames[start + gap]) for start in range(0, len(frames) - gap, gap)]
        shares, shifts = np.array(pairs).T
        return float(shares.mean() * gate(shifts.mean(), self.floor))

    def _pair(self, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
        """The share of rigid matches, and their median shift in shares of the shorter side."""
        p, q = matches_of(first, second)
        if len(p) < self.matches:
            return 0.0, 0.0
        side = min(first.shape)
        shift = float(np.median(np.linalg.norm(p - q, axis=1)) / side)
        return epipolar_share(p, q, self.threshold * side), shift
