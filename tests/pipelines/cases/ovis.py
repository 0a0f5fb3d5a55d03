"""Ovis-Image."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, OvisImagePipeline, OvisImageTransformer2DModel

from ..parts_images import rows, vae
from . import Arguments, Case


def ovis() -> Any:
    """OvisImagePipeline; embeddings in place of texts."""
    torch.manual_seed(0)
    transformer = OvisImageTransformer2DModel(
        patch_size=1,
        in_channels=16,
        out_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=12,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    return OvisImagePipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae(4),
        text_encoder=None,
        tokenizer=None,
    )


def _call(count: int) -> Arguments:
    embeddings = {"prompt_embeds": rows(count, 6, 12, seed=1), "negative_prompt_embeds": rows(count, 6, 12, seed=2)}
    return {**embeddings, "height": 16, "width": 16, "negative_prompt": None}


CASES = [
    Case(
        "OvisImagePipeline",
        "text to image",
        ovis,
        call=_call,
        guidance={"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 5.0}},
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
