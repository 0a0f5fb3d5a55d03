"""VisualCloze: a grid of pictures whose rows are examples of a task, and whose last row is to be filled in."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import VisualClozeGenerationPipeline

from ... import tiny
from ..parts_images import photos
from . import Arguments, Case
from .sd3 import joined, variant


def generation() -> Any:
    """VisualClozeGenerationPipeline, with what FLUX has but for the channels that the grid and its mask need."""
    components = tiny.flux().components
    torch.manual_seed(2)
    transformer = variant(components["transformer"], in_channels=16 + 16 + 4, out_channels=16)
    return joined(VisualClozeGenerationPipeline, components, transformer=transformer, resolution=8)


def _call(count: int) -> Arguments:
    """One example of the task, and a condition for whose row the target is asked."""
    grids = [photos(3, 16, seed=7 + sample) for sample in range(count)]
    return {
        "task_prompt": ["make the circle a square", "paint it red"][:count],
        "content_prompt": ["two blue squares", "a red circle"][:count],
        "image": [[[first, second], [third, None]] for first, second, third in grids],
        "max_sequence_length": 16,
    }


CASES = [
    Case(
        "VisualClozeGenerationPipeline",
        "image editing",
        generation,
        call=_call,
        guidance={"off": {"guidance_scale": 1.0}, "embedded": {"guidance_scale": 30.0}},
    )
]

REFUSED: dict[str, str] = {
    "VisualClozePipeline": (
        "it runs VisualClozeGenerationPipeline and then an upsampler, each with a scheduler of its own; make the first "
        "one the policy."
    )
}
