"""A small world of coloured shapes on a plain ground: its captions, their grammar, and a renderer.

Captions come in three kinds, and :func:`parse` reads all of them back:

===========  ==========================================
kind         example
===========  ==========================================
``single``   ``a red circle``
``count``    ``three blue squares``
``relation`` ``a green triangle left of a yellow circle``
===========  ==========================================

The (colour, shape) pairs in :data:`HELD_OUT_PAIRS` never occur in prompts for RL training, so a prompt that
contains one asks for a *combination* that the training reward has never scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

SIZE = 48
"""Side of a picture in pixels."""

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (45, 80, 220),
    "yellow": (245, 210, 40),
    "purple": (140, 50, 180),
    "orange": (245, 130, 30),
}
SHAPES = ("circle", "square", "triangle", "cross")
COUNTS = {"two": 2, "three": 3, "four": 4}
RELATIONS = ("left of", "right of", "above", "below")
HELD_OUT_PAIRS = frozenset(
    {
        ("red", "square"),
        ("green", "circle"),
        ("blue", "cross"),
        ("yellow", "triangle"),
        ("purple", "square"),
        ("orange", "circle"),
    }
)

_PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}
_SINGULARS = {plural: shape for shape, plural in _PLURALS.items()}
_COLOUR = "(" + "|".join(PALETTE) + ")"
_SHAPE = "(" + "|".join(SHAPES) + ")"
_SINGLE = re.compile(f"an? {_COLOUR} {_SHAPE}")
_COUNT = re.compile(f"({'|'.join(COUNTS)}) {_COLOUR} ({'|'.join(_SINGULARS)})")
_RELATION = re.compile(f"an? {_COLOUR} {_SHAPE} ({'|'.join(RELATIONS)}) an? {_COLOUR} {_SHAPE}")


@dataclass(frozen=True)
class Scene:
    """What a caption asks for: (colour, shape) of every object, and how the first stands to the second."""

    objects: tuple[tuple[str, str], ...]
    relation: str | None = None

    @property
    def kind(self) -> str:
        """``single``, ``count`` or ``relation``."""
        if self.relation is not None:
            return "relation"
        return "single" if len(self.objects) == 1 else "count"

    @property
    def held_out(self) -> bool:
        """Whether a (colour, shape) pair of the scene is kept from RL training."""
        return any(pair in HELD_OUT_PAIRS for pair in self.objects)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def caption(scene: Scene) -> str:
    """Write the caption of a scene.

    >>> caption(Scene((("orange", "cross"), ("red", "circle")), "above"))
    'an orange cross above a red circle'
    >>> caption(Scene((("blue", "cross"),) * 3))
    'three blue crosses'
    """
    colour, shape = scene.objects[0]
    first = f"{_article(colour)} {colour} {shape}"
    if scene.kind == "single":
        return first
    if scene.kind == "count":
        word = next(word for word, count in COUNTS.items() if count == len(scene.objects))
        return f"{word} {colour} {_PLURALS[shape]}"
    colour, shape = scene.objects[1]
    return f"{first} {scene.relation} {_article(colour)} {colour} {shape}"


def parse(text: str) -> Scene:
    """Read a caption back into its scene.

    Raises:
        ValueError: the text is not a caption of this world; the message shows the three forms.

    >>> parse("two blue squares")
    Scene(objects=(('blue', 'square'), ('blue', 'square')), relation=None)
    """
    words = " ".join(text.lower().split()).rstrip(".")
    if match := _SINGLE.fullmatch(words):
        return Scene(((match[1], match[2]),))
    if match := _COUNT.fullmatch(words):
        return Scene(((match[2], _SINGULARS[match[3]]),) * COUNTS[match[1]])
    if match := _RELATION.fullmatch(words):
        return Scene(((match[1], match[2]), (match[4], match[5])), match[3])
    raise ValueError(
        f"{text!r} is not a caption of the shapes world. Write one of: 'a red circle', 'three blue squares', "
        f"'a green triangle left of a yellow circle'; colours: {', '.join(PALETTE)}; shapes: {', '.join(SHAPES)}; "
        f"relations: {', '.join(RELATIONS)}."
    )


def all_scenes() -> Iterator[Scene]:
    """Every scene of the world, in a fixed order: singles, counts, then relations of two different pairs."""
    pairs = [(colour, shape) for colour in PALETTE for shape in SHAPES]
    for pair in pairs:
        yield Scene((pair,))
    for count in COUNTS.values():
        for pair in pairs:
            yield Scene((pair,) * count)
    for first in pairs:
        for second in pairs:
            if first != second:
                for relation in RELATIONS:
                    yield Scene((first, second), relation)


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene: a fifth singles, two fifths counts, two fifths relations, uniform inside each kind."""
    colours, shapes = list(PALETTE), list(SHAPES)

    def pair() -> tuple[str, str]:
        return colours[rng.integers(len(colours))], shapes[rng.integers(len(shapes))]

    kind = rng.choice(3, p=[0.2, 0.4, 0.4])
    if kind == 0:
        return Scene((pair(),))
    if kind == 1:
        return Scene((pair(),) * int(rng.integers(2, 5)))
    first = second = pair()
    while second == first:
        second = pair()
    return Scene((first, second), RELATIONS[rng.integers(len(RELATIONS))])


def shape_mask(shape: str, side: int, scale: int = 8) -> np.ndarray:
    """Coverage in [0, 1] of a shape that fills a square of ``side`` pixels, `[side, side]`, anti-aliased."""
    big = side * scale
    image = Image.new("L", (big, big), 0)
    draw = ImageDraw.Draw(image)
    end = big - 1
    if shape == "circle":
        draw.ellipse((0, 0, end, end), fill=255)
    elif shape == "square":
        draw.rectangle((0, 0, end, end), fill=255)
    elif shape == "triangle":
        draw.polygon([(end / 2, 0), (end, end), (0, end)], fill=255)
    elif shape == "cross":
        third = big / 3
        draw.rectangle((third, 0, 2 * third, end), fill=255)
        draw.rectangle((0, third, end, 2 * third), fill=255)
    else:
        raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    return np.asarray(image.resize((side, side), Image.Resampling.BOX), dtype=np.float32) / 255


def related(relation: str, first: tuple[float, float], second: tuple[float, float], margin: float = 4.0) -> bool:
    """Whether centre ``first`` (x, y; y grows downwards) stands in ``relation`` to centre ``second``.

    It must do so by more than ``margin`` pixels, and by more than along the other axis.

    >>> related("left of", (10, 20), (30, 25)), related("above", (10, 20), (30, 25))
    (True, False)
    """
    dx, dy = first[0] - second[0], first[1] - second[1]
    along = {"left of": -dx, "right of": dx, "above": -dy, "below": dy}[relation]
    across = abs(dy) if relation in ("left of", "right of") else abs(dx)
    return along > max(across, margin)


def _place(rng: np.random.Generator, scene: Scene) -> list[tuple[int, int, int]]:
    """Sides and upper left corners (x, y, side) of objects that keep two pixels from each other and the edge."""
    low, high = (11, 15) if len(scene.objects) > 2 else (14, 19)
    while True:
        boxes: list[tuple[int, int, int]] = []
        for _ in range(60):
            side = int(rng.integers(low, high))
            x, y = (int(v) for v in rng.integers(2, SIZE - side - 1, size=2))
            if all(
                x + side + 2 <= bx or bx + bs + 2 <= x or y + side + 2 <= by or by + bs + 2 <= y for bx, by, bs in boxes
            ):
                boxes.append((x, y, side))
            if len(boxes) == len(scene.objects):
                break
        if len(boxes) < len(scene.objects):
            continue
        if scene.relation is not None:
            first, second = [(x + side / 2, y + side / 2) for x, y, side in boxes]
            # A wider margin than the judge's, so that a truth is never a close call.
            if not related(scene.relation, first, second, margin=8.0):
                continue
        return boxes


def render(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draw a scene at random places and sizes on a light ground, uint8 `[SIZE, SIZE, 3]`.

    >>> render(parse("a red circle"), np.random.default_rng(0)).shape
    (48, 48, 3)
    """
    picture = np.full((SIZE, SIZE, 3), rng.uniform(200, 250), dtype=np.float32)
    for (colour, shape), (x, y, side) in zip(scene.objects, _place(rng, scene), strict=True):
        ink = np.asarray(PALETTE[colour], dtype=np.float32) + rng.uniform(-8, 8, size=3)
        mask = shape_mask(shape, side)[..., None]
        region = picture[y : y + side, x : x + side]
        region[:] = (1 - mask) * region + mask * ink
    return np.clip(np.round(picture), 0, 255).astype(np.uint8)
