"""Files of what a pipeline draws: PNG for a picture, animated WebP for a clip, which browsers and Pillow read alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

FPS = 8.0
"""Frames a second of a clip whose recipe does not say."""
LOSSLESS_SIDE = 128
"""Clips up to this side, and pictures on a page, keep every pixel; larger ones would be ten times the size."""


def to_frames(pictures: Tensor) -> list[Image.Image]:
    """A picture `[3, H, W]` or a clip `[F, 3, H, W]`, uint8, as one image a frame.

    >>> import torch
    >>> [frame.size for frame in to_frames(torch.zeros(2, 3, 4, 6, dtype=torch.uint8))]
    [(6, 4), (6, 4)]
    """
    clip = pictures if pictures.ndim == 4 else pictures[None]
    return [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip]


def suffix(frames: Sequence[Image.Image]) -> str:
    """The ending of a file that holds these frames."""
    return ".png" if len(frames) == 1 else ".webp"


def write_frames(frames: Sequence[Image.Image], file: Path | BinaryIO, fps: float | None = None) -> None:
    """Write a picture, or the frames of a clip.

    Args:
        frames: of one size; a single one is a picture.
        file: its name may have any ending: the format depends on ``frames`` alone.
        fps: frames a second; None is :data:`FPS`.
    """
    first, *rest = frames
    if not rest:
        first.save(file, "PNG", optimize=True)
        return
    lossless = max(first.size) <= LOSSLESS_SIDE
    duration = max(1, round(1000 / (fps or FPS)))  # in milliseconds
    first.save(
        file, "WEBP", save_all=True, append_images=rest, duration=duration, loop=0, lossless=lossless, quality=90
    )


def read_frames(path: Path, limit: int = 1000) -> tuple[list[Image.Image], int] | None:
    """Read a picture or a clip completely, or nothing of it.

    Equal frames in a row, which the format stores once with a longer duration, come back as many as they were.

    Args:
        path: a file, perhaps written by a run that was killed meanwhile.
        limit: frames that are read at most.

    Returns:
        RGB frames and the milliseconds of one; None if the file is missing, cut off, or no picture.
    """
    frames, durations = [], []
    try:
        with Image.open(path) as picture:
            for number in range(min(getattr(picture, "n_frames", 1), limit)):
                picture.seek(number)
                frames.append(picture.convert("RGB"))
                durations.append(int(picture.info.get("duration", 0)))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        # Pillow raises SyntaxError for a broken PNG chunk, OSError for a file that ends early.
        return None
    shortest = max(1, min(durations))
    repeated = [
        frame
        for frame, duration in zip(frames, durations, strict=True)
        for _ in range(min(limit, max(1, round(duration / shortest))))
    ]
    return repeated[:limit], shortest
