"""DreamLite: a small UNet that sees a picture beside its latents; one prompt a call."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderTiny,
    DreamLiteMobilePipeline,
    DreamLitePipeline,
    DreamLiteUNetModel,
    FlowMatchEulerDiscreteScheduler,
)

from .. import qwen_vl
from ..parts_images import fill, photos
from . import Arguments, Case

NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _build(kind: type) -> Any:
    torch.manual_seed(0)
    unet = DreamLiteUNetModel(
        sample_size=8,
        down_block_types=("DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
        up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"),
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=qwen_vl.WIDTH,
        attention_head_dim=8,
        ff_mult=2,
    )
    fill(unet)
    autoencoder = AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    )
    return kind(
        unet=unet.eval(),
        vae=autoencoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        **qwen_vl.parts(),
    )


def _call(count: int) -> Arguments:
    return {"height": 16, "width": 16}


CASES = [
    Case(
        "DreamLitePipeline",
        "text to image",
        lambda: _build(DreamLitePipeline),
        lambda count: {**_call(count), "negative_prompt": "dull"},
        {
            "off": {"guidance_scale": 1.0},
            "editing": {"image": photos(1)[0], "guidance_scale": 3.5, "image_guidance_scale": 2.0},
            "on": {"guidance_scale": 3.5},
        },
        samples=1,
        skip=NO_LOADER,
    ),
    Case(
        "DreamLiteMobilePipeline",
        "text to image",
        lambda: _build(DreamLiteMobilePipeline),
        _call,
        {"editing": {"image": photos(1)[0]}, "off": {}},
        samples=1,
        skip=NO_LOADER,
    ),
]
