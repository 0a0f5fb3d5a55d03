"""The world of shapes in motion: captions of clips, their grammar, and a renderer.

A clip shows one object of :mod:`.world` that moves in a straight line at an even speed:

===========  ==================================
kind         example
===========  ==================================
``plain``    ``a red circle moves right``
``slowly``   ``a red circle slowly moves up``
``quickly``  ``a red circle quickly moves down``
===========  ==================================

A clip without a word for its pace goes at any. Objects of ``world.HELD_OUT_PAIRS`` never occur in prompts for RL
training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from . import world

SIZE = 32
"""Side of a frame in pixels."""
FRAMES = 9
"""Frames of a clip; a video autoencoder wants one more than a multiple of four."""
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Unit steps (x, y); y grows downwards."""
PACES = ("plain", "slowly", "quickly")
_TRAVEL = {"slowly": (5.0, 7.0), "quickly": (12.5, 14.5), "plain": (5.0, 14.5)}
"""Pixels from the first frame to the last."""
_SIDES = (12.0, 14.0)
_MARGIN = 1.5

_CAPTION = re.compile(
    f"an? ({'|'.join(world.PALETTE)}) ({'|'.join(world.SHAPES)})(?: (slowly|quickly))? moves ({'|'.join(DIRECTIONS)})"
)


@dataclass(frozen=True)
class Motion:
    """What a caption asks for."""

    colour: str
    shape: str
    direction: str
    pace: str = "plain"

    @property
    def held_out(self) -> bool:
        """Whether the (colour, shape) pair is kept from RL training."""
        return (self.colour, self.shape) in world.HELD_OUT_PAIRS


def caption(motion: Motion) -> str:
    """Write the caption of a motion.

    >>> caption(Motion("orange", "cross", "up")), caption(Motion("red", "circle", "left", "slowly"))
    ('an orange cross moves up', 'a red circle slowly moves left')
    """
    article = "an" if motion.colour[0] in "aeiou" else "a"
    pace = "" if motion.pace == "plain" else f"{motion.pace} "
    return f"{article} {motion.colour} {motion.shape} {pace}moves {motion.direction}"


def parse(text: str) -> Motion:
    """Read a caption back.

    Raises:
        ValueError: the text is not a caption of this world; the message shows the forms.

    >>> parse("a red circle slowly moves left")
    Motion(colour='red', shape='circle', direction='left', pace='slowly')
    """
    match = _CAPTION.fullmatch(" ".join(text.lower().split()).rstrip("."))
    if match is None:
        raise ValueError(
            f"{text!r} is not a caption of the world of clips. Write one like 'a red circle moves right' or 'a red "
            f"circle slowly moves up'; colours: {', '.join(world.PALETTE)}; shapes: {', '.join(world.SHAPES)}; paces: "
            f"slowly, quickly or none; directions: {', '.join(DIRECTIONS)}."
        )
    colour, shape, pace, direction = match.groups()
    return Motion(colour, shape, direction, pace or "plain")


def all_motions() -> Iterator[Motion]:
    """Every motion of the world, in a fixed order."""
    for pace in PACES:
        for colour in world.PALETTE:
            for shape in world.SHAPES:
                for direction in DIRECTIONS:
                    yield Motion(colour, shape, direction, pace)


def sample_motion(rng: np.random.Generator) -> Motion:
    """Draw a motion, uniform over all."""
    colours, directions = list(world.PALETTE), list(DIRECTIONS)
    return Motion(
        colours[rng.integers(len(colours))],
        world.SHAPES[rng.integers(len(world.SHAPES))],
        directions[rng.integers(len(directions))],
        PACES[rng.integers(len(PACES))],
    )


def render(motion: Motion, rng: np.random.Generator) -> np.ndarray:
    """Draw a clip: random place, size, ground and distance; uint8 `[FRAMES, SIZE, SIZE, 3]`.

    >>> render(parse("a red circle moves right"), np.random.default_rng(0)).shape
    (9, 32, 32, 3)
    """
    side = rng.uniform(*_SIDES)
    travel = rng.uniform(*_TRAVEL[motion.pace])
    step = np.asarray(DIRECTIONS[motion.direction], dtype=float)
    room = SIZE - side - 2 * _MARGIN - travel * np.abs(step)
    start = _MARGIN + rng.uniform(size=2) * room + travel * (step < 0)
    ground, ink = rng.uniform(200, 250), np.asarray(world.PALETTE[motion.colour]) + rng.uniform(-8, 8, size=3)
    corners = start + np.linspace(0, travel, FRAMES)[:, None] * step
    masks = np.stack([_coverage(motion.shape, side, x, y) for x, y in corners])[..., None]
    return np.clip(np.round((1 - masks) * ground + masks * ink), 0, 255).astype(np.uint8)


def _coverage(shape: str, side: float, x: float, y: float, scale: int = 8) -> np.ndarray:
    """Coverage in [0, 1] of a shape whose upper left corner is at (x, y) between the pixels, `[SIZE, SIZE]`."""
    big = world.shape_mask(shape, round(side * scale), scale=1)
    canvas = np.zeros((SIZE * scale, SIZE * scale), dtype=np.float32)
    left, top = round(x * scale), round(y * scale)
    canvas[top : top + big.shape[0], left : left + big.shape[1]] = big
    return np.asarray(Image.fromarray(canvas).resize((SIZE, SIZE), Image.Resampling.BOX))
