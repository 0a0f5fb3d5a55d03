"""Reads a picture of the shapes world and checks it against its caption, in the manner of GenEval.

The judge looks at pixels only: it finds connected regions that differ from the ground, names the colour and the
shape of each, and compares the list with what the caption asks for. See "GenEval: An Object-Focused Framework for
Evaluating Text-to-Image Alignment", Ghosh et al., https://arxiv.org/abs/2310.11513.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from scipy import ndimage

from ..pipelines.shapes import world
from ..reward import RewardBatch
from ._judged import JudgedReward

_MIN_AREA = 24
"""Smaller regions count as specks: two of them are a flaw, one may be a speck of the decoder."""
_FOREGROUND = 0.22
"""Distance from the ground, in RGB units of [0, 1], from which a pixel belongs to an object."""
_OVERLAP = 0.75
"""Overlap (IoU) with a shape's template from which a region shows it."""
_SIDE = 16
_NAMES = tuple(world.PALETTE)
_COLOURS = np.array([world.PALETTE[name] for name in _NAMES], dtype=np.float32) / 255


@dataclass(frozen=True)
class Seen:
    """An object found in a picture; ``colour`` or ``shape`` is None where the region shows none of the world's."""

    colour: str | None
    shape: str | None
    centre: tuple[float, float]


@lru_cache(maxsize=1)
def _templates() -> dict[str, np.ndarray]:
    return {shape: world.shape_mask(shape, _SIDE) for shape in world.SHAPES}


def _shape_of(mask: np.ndarray, least: float) -> str | None:
    """The shape whose template overlaps best with the region, or None under an overlap (IoU) of ``least``."""
    rows, columns = mask.shape
    if max(rows, columns) > 1.45 * min(rows, columns):
        return None
    coverage = Image.fromarray((mask * 255).astype(np.uint8)).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    region = np.asarray(coverage, dtype=np.float32) / 255
    overlaps = {
        shape: float(np.minimum(region, template).sum() / np.maximum(region, template).sum())
        for shape, template in _templates().items()
    }
    best = max(overlaps, key=lambda shape: overlaps[shape])
    return best if overlaps[best] >= least else None


def _colour_of(pixels: np.ndarray) -> str | None:
    """The palette colour of at least 70 % of a region's pixels `[N, 3]`, if its median is near that colour."""
    distance = np.linalg.norm(pixels[:, None] - _COLOURS, axis=-1)
    votes = np.bincount(distance.argmin(axis=1), minlength=len(_NAMES))
    best = int(votes.argmax())
    near = np.linalg.norm(np.median(pixels, axis=0) - _COLOURS[best]) < 0.25
    return _NAMES[best] if near and votes[best] >= 0.7 * len(pixels) else None


def see(
    picture: np.ndarray, *, area: int = _MIN_AREA, foreground: float = _FOREGROUND, overlap: float = _OVERLAP
) -> tuple[list[Seen], int]:
    """Find the objects of a picture.

    Args:
        picture: `[H, W, 3]`, float in [0, 1].
        area: of the smallest object, in pixels; a sixth of it is a speck.
        foreground: distance from the ground, in RGB units of [0, 1], from which a pixel belongs to an object.
        overlap: with a shape's template (IoU) from which an object has that shape.

    Returns:
        The objects, and the number of specks: regions that are too small to be one.
    """
    border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
    ground = np.median(border, axis=0)
    labels, _ = ndimage.label(np.linalg.norm(picture - ground, axis=-1) > foreground)
    objects, specks = [], 0
    for label, window in enumerate(ndimage.find_objects(labels), start=1):
        mask = labels[window] == label
        size = int(mask.sum())
        if size < area:
            specks += size >= area / 6
            continue
        core = ndimage.binary_erosion(mask)
        inside = core if core.sum() >= 8 else mask
        centre = tuple((side.start + side.stop - 1) / 2 for side in reversed(window))
        objects.append(Seen(_colour_of(picture[window][inside]), _shape_of(mask, overlap), centre))
    return objects, specks


def _relation_holds(scene: world.Scene, objects: list[Seen]) -> bool:
    first, second = scene.objects
    return any(
        world.related(scene.relation or "", a.centre, b.centre)
        for a in objects
        if (a.colour, a.shape) == first
        for b in objects
        if b is not a and (b.colour, b.shape) == second
    )


def judge(picture: np.ndarray, caption: str) -> tuple[float, float]:
    """Score one picture against its caption.

    Args:
        picture: `[H, W, 3]`, float in [0, 1].
        caption: a caption of the shapes world.

    Returns:
        ``strict``: 1 if the picture holds exactly the objects asked for, rightly related, and nothing else; else 0.
        ``partial``: in [0, 1]; 1 iff strict. The F1 score of the objects found, where an object with only its colour
        or only its shape right counts 0.4, times 0.6 if the relation does not hold, times 0.9 if there are specks.

    Raises:
        ValueError: the caption is not one of the shapes world.
    """
    scene = world.parse(caption)
    objects, specks = see(picture)
    strict = specks < 2 and Counter((o.colour, o.shape) for o in objects) == Counter(scene.objects)
    strict = strict and (scene.relation is None or _relation_holds(scene, objects))
    if strict:
        return 1.0, 1.0
    partial = 2 * _matched(scene, objects) / (len(objects) + len(scene.objects))
    if scene.relation is not None and not _relation_holds(scene, objects):
        partial *= 0.6
    return 0.0, min(partial * (0.9 if specks >= 2 else 1.0), 0.95)


def _matched(scene: world.Scene, objects: list[Seen]) -> float:
    """Objects asked for that were found: whole ones first, then halves among what is left."""
    wanted, found, total = list(scene.objects), [(o.colour, o.shape) for o in objects], 0.0
    for pair in list(wanted):
        if pair in found:
            wanted.remove(pair)
            found.remove(pair)
            total += 1
    for colour, shape in wanted:
        half = next((f for f in found if f[0] == colour or f[1] == shape), None)
        if half is not None:
            found.remove(half)
            total += 0.4
    return total


class ShapesReward(JudgedReward):
    """Whether a picture of the shapes world shows what its caption asks for: :func:`judge`, ``strict`` or ``partial``.

    >>> good, bad = ShapesReward().examples()
    >>> ShapesReward()(good).tolist(), ShapesReward()(bad).tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """

    name = "shapes"
    size = world.SIZE

    def verdict(self, pixels: np.ndarray, caption: str) -> tuple[float, float]:
        """:func:`judge` of a picture."""
        return judge(pixels, caption)

    def parse(self, caption: str) -> world.Scene:
        """The scene of a caption."""
        return world.parse(caption)

    def examples(self) -> tuple[RewardBatch, RewardBatch]:
        """A rendered scene of each kind, and the same pictures under captions that are wrong in one word."""
        right = ["a red circle", "three blue squares", "a green triangle left of a yellow circle"]
        wrong = ["an orange circle", "two blue squares", "a green triangle right of a yellow circle"]
        rng = np.random.default_rng(0)
        pictures = np.stack([world.render(world.parse(prompt), rng) for prompt in right])
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
        return RewardBatch(images, right, [{}] * 3), RewardBatch(images, wrong, [{}] * 3)


class ShapesPartialReward(ShapesReward):
    """:class:`ShapesReward` in the mode ``partial``.

    >>> good, bad = ShapesPartialReward().examples()
    >>> [round(score, 2) for score in ShapesPartialReward()(bad).tolist()]
    [0.4, 0.8, 0.6]
    """

    name = "shapes_partial"

    def __init__(self) -> None:
        """No options."""
        super().__init__("partial")
