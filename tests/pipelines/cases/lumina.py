"""Lumina-Next and Lumina 2."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
    LuminaNextDiT2DModel,
    LuminaPipeline,
)

from ..parts_images import fill, mask, rows, vae
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}
GUIDANCE_2 = {
    **GUIDANCE,
    "truncated": {"guidance_scale": 4.0, "cfg_trunc_ratio": 0.5},
    "not normalized": {"guidance_scale": 4.0, "cfg_normalization": False},
}


def _parts(transformer: Any) -> dict[str, Any]:
    fill(transformer)
    return {
        "transformer": transformer.eval(),
        "vae": vae(4),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=6.0),
        "text_encoder": None,
        "tokenizer": None,
    }


def _lumina() -> LuminaPipeline:
    torch.manual_seed(0)
    transformer = LuminaNextDiT2DModel(
        sample_size=8,
        in_channels=4,
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        cross_attention_dim=WIDTH,
    )
    torch.nn.init.normal_(transformer.pad_token)  # diffusers leaves it as it comes from the memory
    return LuminaPipeline(**_parts(transformer))


def _lumina2() -> Lumina2Pipeline:
    torch.manual_seed(0)
    transformer = Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        axes_dim_rope=(4, 4, 4),
        axes_lens=(64, 16, 16),
        cap_feat_dim=WIDTH,
    )
    return Lumina2Pipeline(**_parts(transformer))


def _call(count: int) -> Arguments:
    """The classes think that their autoencoder is 8 times smaller: these are latents of 4 x 4."""
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_attention_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_attention_mask": mask(count, 6),
        "height": 32,
        "width": 32,
    }


CASES = [
    Case(
        "LuminaPipeline",
        "text to image",
        _lumina,
        _call,
        GUIDANCE,
        skip={"lora": "diffusers has no LoRA loader for this class"},
    ),
    Case("Lumina2Pipeline", "text to image", _lumina2, _call, GUIDANCE_2),
]
