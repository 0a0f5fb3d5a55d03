"""Flaws of generated pictures, drawn by rule: what an artifact detector learns from when there are no labels.

Each is a function ``(picture, rng, strength)`` from a picture `[H, W, 3]`, float32 in [0, 1], to one of the same
shape; the strength lies in [0, 1], from just visible to plain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import fft, ndimage

Artifact = Callable[[np.ndarray, np.random.Generator, float], np.ndarray]

_YCC = np.array([[0.299, 0.587, 0.114], [-0.169, -0.331, 0.5], [0.5, -0.419, -0.081]], dtype=np.float32)


def blocks(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Coarse coefficients in blocks of 8 pixels, as in a JPEG of low quality."""
    height, width = (side // 8 * 8 for side in picture.shape[:2])
    top = int(rng.integers(picture.shape[0] - height + 1))
    left = int(rng.integers(picture.shape[1] - width + 1))
    tiles = picture[top : top + height, left : left + width].reshape(height // 8, 8, width // 8, 8, 3)
    coefficients = fft.dctn(tiles, axes=(1, 3), norm="ortho")
    frequency = np.add.outer(np.arange(8), np.arange(8)).reshape(1, 8, 1, 8, 1)
    step = (0.12 + 0.3 * strength) * (1 + frequency)
    result = picture.copy()
    coarse = fft.idctn(np.round(coefficients / step) * step, axes=(1, 3), norm="ortho")
    result[top : top + height, left : left + width] = coarse.reshape(height, width, 3)
    return np.clip(result, 0, 1)


def ringing(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """A hard cut in the spectrum, then sharpening: waves beside every edge."""
    spectrum = fft.fft2(picture, axes=(0, 1))
    y, x = (fft.fftfreq(side) for side in picture.shape[:2])
    radius = np.hypot(y[:, None], x)
    low = fft.ifft2(spectrum * (radius < 0.33 - 0.15 * strength)[..., None], axes=(0, 1)).real
    return np.clip(low + (0.3 + strength) * (low - ndimage.gaussian_filter(low, (1, 1, 0))), 0, 1).astype(np.float32)


def blur(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Blur of the whole picture."""
    sigma = (0.02 + 0.03 * strength) * min(picture.shape[:2])
    return ndimage.gaussian_filter(picture, (sigma, sigma, 0))


def noise(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Gaussian noise in all channels, alike or not."""
    channels = 3 if rng.random() < 0.5 else 1
    return np.clip(picture + (0.03 + 0.12 * strength) * rng.normal(size=(*picture.shape[:2], channels)), 0, 1)


def speckle(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Single pixels of random colours."""
    hit = rng.random(picture.shape[:2]) < 0.01 + 0.06 * strength
    return np.where(hit[..., None], rng.random(picture.shape), picture)


def banding(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """A soft shading over the picture, in steps."""
    shade = _field(rng, picture.shape[:2], 0.25)
    levels = np.round(shade * 2) / 2
    return np.clip(picture + (0.06 + 0.14 * strength) * levels[..., None], 0, 1)


def bleeding(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Colours that run over the edges of the shapes, and drift aside."""
    side = min(picture.shape[:2])
    ycc = picture @ _YCC.T
    angle, length = rng.uniform(0, 2 * np.pi), (0.03 + 0.07 * strength) * side
    shift = (length * np.sin(angle), length * np.cos(angle))
    for channel in (1, 2):
        soft = ndimage.gaussian_filter(ycc[..., channel], 0.02 * side * (1 + strength), mode="nearest")
        ycc[..., channel] = ndimage.shift(soft, shift, order=1, mode="nearest")
    return np.clip(ycc @ np.linalg.inv(_YCC).T, 0, 1)


def melting(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Shapes out of true: every place moved by a field that changes over a few pixels."""
    height, width = picture.shape[:2]
    length = (0.03 + 0.05 * strength) * min(height, width)
    rows = np.arange(height)[:, None] + length * _field(rng, (height, width), 0.06)
    columns = np.arange(width) + length * _field(rng, (height, width), 0.06)
    return _fetched(picture, rows, columns)


def patches(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Squares of the picture, a few pixels out of place."""
    result, side = picture.copy(), max(4, min(picture.shape[:2]) // 5)
    shift = max(2, round((0.03 + 0.07 * strength) * min(picture.shape[:2])))
    for _ in range(6):
        y, x = (int(rng.integers(length - side)) for length in picture.shape[:2])
        dy, dx = (int(d) for d in rng.choice([-shift, 0, shift], size=2))
        to_y, to_x = np.clip(y + dy, 0, picture.shape[0] - side), np.clip(x + dx, 0, picture.shape[1] - side)
        result[to_y : to_y + side, to_x : to_x + side] = picture[y : y + side, x : x + side]
    return result


def grid(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """A fine pattern of two to six pixels over everything, which training on a reward is known to bring."""
    period, phase = rng.uniform(2, 6, size=2), rng.uniform(0, 2 * np.pi, size=2)
    rows = np.cos(2 * np.pi * np.arange(picture.shape[0]) / period[0] + phase[0])
    columns = np.cos(2 * np.pi * np.arange(picture.shape[1]) / period[1] + phase[1])
    return np.clip(picture + (0.04 + 0.1 * strength) * np.multiply.outer(rows, columns)[..., None], 0, 1)


def ghosting(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """A second, fainter copy of the picture, aside."""
    side, angle = min(picture.shape[:2]), rng.uniform(0, 2 * np.pi)
    length = rng.uniform(0.06, 0.2) * side
    copy = ndimage.shift(picture, (length * np.sin(angle), length * np.cos(angle), 0), order=1, mode="nearest")
    share = 0.15 + 0.3 * strength
    return (1 - share) * picture + share * copy


def tearing(picture: np.ndarray, rng: np.random.Generator, strength: float) -> np.ndarray:
    """Strips of rows or of columns that are moved aside."""
    height, width = picture.shape[:2]
    strips = np.repeat(rng.normal(size=height // 4 + 1), 4)[:height]
    rows = np.arange(height)[:, None] + np.zeros(width)
    columns = np.arange(width) + (0.02 + 0.06 * strength) * width * strips[:, None]
    torn = _fetched(picture, rows, columns)
    if rng.random() < 0.5 and height == width:
        torn = _fetched(picture, columns.T, rows.T)
    return torn


TRAINING: dict[str, Artifact] = {
    "blocks": blocks,
    "ringing": ringing,
    "blur": blur,
    "noise": noise,
    "speckle": speckle,
    "banding": banding,
    "bleeding": bleeding,
    "melting": melting,
    "patches": patches,
}
"""Kinds that a detector is trained on."""
HELD_OUT: dict[str, Artifact] = {"grid": grid, "ghosting": ghosting, "tearing": tearing}
"""Kinds that it never sees, to tell whether it knows flaws or only these kinds."""


def spoil(picture: np.ndarray, rng: np.random.Generator, kinds: dict[str, Artifact]) -> np.ndarray:
    """The picture with one artifact, of a random kind and strength; anew, 20 times at most, if it leaves no trace.

    >>> picture = np.full((48, 48, 3), 0.5, dtype=np.float32)
    >>> bool(spoil(picture, np.random.default_rng(0), {"noise": noise}).std() > 0.02)
    True
    """
    for _ in range(20):
        kind = list(kinds)[rng.integers(len(kinds))]
        spoiled = kinds[kind](picture, rng, float(rng.random())).astype(np.float32)
        # A patch of ground on ground is no flaw: half a step of 8 bits in the mean is the least that counts.
        if np.abs(spoiled - picture).mean() > 0.5 / 255:
            break
    return spoiled


def _field(rng: np.random.Generator, size: tuple[int, int], scale: float) -> np.ndarray:
    """A smooth random field `[H, W]` of standard deviation 1 that changes over ``scale`` of the shorter side."""
    field = ndimage.gaussian_filter(rng.normal(size=size), scale * min(size), mode="wrap")
    return field / field.std()


def _fetched(picture: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Each pixel from another place, bilinear; `rows` and `columns` are `[H, W]`."""
    return np.stack(
        [
            ndimage.map_coordinates(picture[..., channel], [rows, columns], order=1, mode="nearest")
            for channel in range(3)
        ],
        axis=-1,
    )
