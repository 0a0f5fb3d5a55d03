"""JoyImage: editing one picture, or with several."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    JoyImageEditPipeline,
    JoyImageEditPlusPipeline,
    JoyImageEditPlusTransformer3DModel,
    JoyImageEditTransformer3DModel,
)

from .. import qwen_vl
from ..parts_images import fill, mask, photos, rows, wan_vae
from . import Arguments, Case

GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}
TARGETS = ("img_attn_qkv", "img_attn_proj", "txt_attn_qkv")
"""Not the text's output projection: nobody reads what the last block's gives."""
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _parts(transformer: type) -> dict[str, Any]:
    torch.manual_seed(0)
    made = transformer(
        in_channels=4,
        hidden_size=24,
        num_attention_heads=2,
        text_dim=qwen_vl.WIDTH,
        num_layers=2,
        rope_dim_list=[4, 4, 4],
    )
    fill(made)
    return {
        "transformer": made.eval(),
        "vae": wan_vae(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=4.0),
        **qwen_vl.parts(),
    }


def _small(processor: Any) -> None:
    """The classes know sizes of a million pixels only."""
    processor.get_default_height_width = lambda *_: (32, 32)


def _edit() -> JoyImageEditPipeline:
    pipe = JoyImageEditPipeline(**_parts(JoyImageEditTransformer3DModel))
    _small(pipe.vae_image_processor)
    return pipe


def _plus() -> JoyImageEditPlusPipeline:
    pipe = JoyImageEditPlusPipeline(**_parts(JoyImageEditPlusTransformer3DModel))
    _small(pipe.image_processor)
    return pipe


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, qwen_vl.WIDTH),
        "prompt_embeds_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 6, qwen_vl.WIDTH, seed=1),
        "negative_prompt_embeds_mask": mask(count, 6),
        "height": 32,
        "width": 32,
    }


def _several(count: int) -> Arguments:
    """One picture for the first sample, two for the second. The class has no use for embeddings: it reads prompts."""
    images = [photos(row + 1, 32, seed=row) for row in range(count)]
    return {"images": images, "negative_prompt": ["dull"] * count, "height": 32, "width": 32}


CASES = [
    Case(
        "JoyImageEditPipeline",
        "image editing",
        _edit,
        lambda count: {**_call(count), "image": photos(count, 32)},
        GUIDANCE,
        targets=TARGETS,
        skip=NO_LOADER,
    ),
    Case("JoyImageEditPlusPipeline", "image editing", _plus, _several, GUIDANCE, targets=TARGETS, skip=NO_LOADER),
]
