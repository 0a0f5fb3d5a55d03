"""Pictures of a run, opened with care and packed into the page itself."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

MAX_SIDE = 448
"""Larger pictures are scaled down to this many pixels: twice the width of a pair's picture on the page."""
LOSSLESS_SIDE = 128
"""Pictures up to this side stay PNG, pixel for pixel; larger ones become JPEG, a tenth of the size."""


def open_picture(path: Path) -> Image.Image | None:
    """Open a picture completely, or None if the file is missing, cut off, or no picture.

    Args:
        path: a file, perhaps written by a run that was killed meanwhile.

    Returns:
        An RGB picture.
    """
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        # PIL raises SyntaxError for a broken PNG chunk, OSError for a file that ends early.
        return None


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


def data_uri(picture: Image.Image) -> str:
    """Pack a picture into a URI, so that the page needs no other file.

    >>> data_uri(Image.new("RGB", (48, 48)))[:22], data_uri(Image.new("RGB", (600, 600)))[:23]
    ('data:image/png;base64,', 'data:image/jpeg;base64,')
    """
    longest = max(picture.size)
    small = picture if longest <= MAX_SIDE else fit(picture, MAX_SIDE)
    buffer = io.BytesIO()
    if longest <= LOSSLESS_SIDE:
        small.save(buffer, "PNG", optimize=True)
        kind = "png"
    else:
        small.save(buffer, "JPEG", quality=90)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
