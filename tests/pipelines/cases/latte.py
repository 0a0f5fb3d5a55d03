"""Latte."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, LattePipeline, LatteTransformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 7.5, "negative_prompt": "a blue circle"},
}


def text_to_video() -> LattePipeline:
    """Spatial and temporal blocks in turn; half of the output is a variance that is thrown away."""
    torch.manual_seed(0)
    transformer = LatteTransformer3DModel(
        sample_size=4,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=16,
        in_channels=4,
        cross_attention_dim=16,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
        video_length=3,
    ).eval()
    return LattePipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        vae=AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8).eval(),
        transformer=transformer,
        scheduler=DDIMScheduler(beta_start=0.0001, beta_end=0.02, clip_sample=False),
    )


def _frames(count: int) -> dict[str, Any]:
    return {"height": 8, "width": 8, "video_length": 3, "clean_caption": False}


CASES = [
    Case(
        "LattePipeline",
        "text to video",
        text_to_video,
        _frames,
        GUIDANCE,
        "ddim",
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
