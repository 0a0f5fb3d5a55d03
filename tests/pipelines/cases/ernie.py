"""ERNIE-Image."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLFlux2,
    ErnieImagePipeline,
    ErnieImageTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)

from ..parts_images import fill, texts
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}


def _build() -> ErnieImagePipeline:
    torch.manual_seed(0)
    transformer = ErnieImageTransformer2DModel(
        hidden_size=24,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=32,
        in_channels=16,
        out_channels=16,
        text_in_dim=WIDTH,
        rope_axes_dim=(4, 4, 4),
    )
    fill(transformer)
    autoencoder = AutoencoderKLFlux2(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
    )
    return ErnieImagePipeline(
        transformer=transformer.eval(),
        vae=autoencoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=None,
        tokenizer=None,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": texts(count, WIDTH),
        "negative_prompt_embeds": texts(count, WIDTH, seed=5),
        "height": 16,
        "width": 16,
    }


CASES = [Case("ErnieImagePipeline", "text to image", _build, _call, GUIDANCE)]
