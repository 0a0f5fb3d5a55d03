"""Nucleus-Image: a mixture of experts that choose their tokens."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    NucleusMoEImagePipeline,
    NucleusMoEImageTransformer2DModel,
)

from ..parts_images import fill, mask, rows
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}


def _build() -> NucleusMoEImagePipeline:
    torch.manual_seed(0)
    transformer = NucleusMoEImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 4, 4),
        mlp_ratio=2.0,
        dense_moe_strategy="leave_first_block_dense",
        num_experts=2,
        moe_intermediate_dim=16,
        capacity_factors=[1.0, 1.0],
    )
    for name, parameter in transformer.named_parameters():
        if "experts." in name:  # diffusers leaves them as they come from the memory
            torch.nn.init.normal_(parameter, 0, 0.1)
    fill(transformer)
    autoencoder = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 2.0, 2.5, 1.0],
    )
    return NucleusMoEImagePipeline(
        transformer=transformer.eval(),
        vae=autoencoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=None,
        processor=None,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_embeds_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_embeds_mask": mask(count, 6),
        "height": 32,
        "width": 32,
    }


CASES = [
    Case(
        "NucleusMoEImagePipeline",
        "text to image",
        _build,
        _call,
        GUIDANCE,
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
