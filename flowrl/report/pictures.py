"""Pictures and clips of a run, packed into the page itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TypeVar

from PIL import Image

from ..media import LOSSLESS_SIDE, write_frames

T = TypeVar("T")

MAX_SIDE = 448
"""Larger pictures are scaled down to this many pixels: twice the width of a pair's picture on the page."""
MAX_FRAMES = 32
"""Frames of a clip on the page; longer clips are thinned, and last as long as they did."""


def fit(picture: Image.Image, side: int) -> Image.Image:
    """Scale a picture so that its longer side is ``side`` pixels; small ones grow in whole steps, pixels kept square.

    >>> fit(Image.new("RGB", (48, 24)), 128).size, fit(Image.new("RGB", (1024, 512)), 128).size
    ((96, 48), (128, 64))
    """
    longest = max(picture.size)
    if longest <= side:
        times = side // longest
        return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    size = (max(1, round(picture.width * side / longest)), max(1, round(picture.height * side / longest)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def thin(frames: Sequence[T], count: int) -> list[T]:
    """At most ``count`` frames, spread evenly over all; the first stays.

    >>> thin([0, 1, 2, 3, 4, 5], 3), thin([0, 1], 3)
    ([0, 2, 4], [0, 1])
    """
    if len(frames) <= count:
        return list(frames)
    return [frames[number * len(frames) // count] for number in range(count)]


def data_uri(frames: Sequence[Image.Image], duration: int = 0) -> str:
    """Pack a picture, or a clip, into a URI, so that the page needs no other file.

    Args:
        frames: one for a picture.
        duration: of a frame of a clip, in milliseconds.

    >>> data_uri([Image.new("RGB", (48, 48))])[:22], data_uri([Image.new("RGB", (600, 600))])[:23]
    ('data:image/png;base64,', 'data:image/jpeg;base64,')
    """
    longest = max(frames[0].size)
    shown = thin([frame if longest <= MAX_SIDE else fit(frame, MAX_SIDE) for frame in frames], MAX_FRAMES)
    buffer = io.BytesIO()
    if len(shown) > 1:
        kind = "webp"
        write_frames(shown, buffer, fps=1000 * len(shown) / (len(frames) * max(1, duration)))
    elif longest <= LOSSLESS_SIDE:
        kind = "png"
        write_frames(shown, buffer)
    else:
        kind = "jpeg"
        shown[0].save(buffer, "JPEG", quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
