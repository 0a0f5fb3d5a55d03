"""Ideogram 4: a second transformer, which sees no text, for guidance."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Ideogram4Pipeline,
    Ideogram4Transformer2DModel,
)

from .. import qwen_vl
from ..parts_images import fill
from . import Arguments, Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0, "guidance_schedule": None},
    "schedule": {"guidance_schedule": [4.0, 3.0, 2.0, 1.0]},
    "on": {"guidance_scale": 4.0, "guidance_schedule": None},
}
LAYERS = 36
"""Of the text encoder: the class joins what 13 of them give."""


def _transformer() -> Ideogram4Transformer2DModel:
    made = Ideogram4Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=12,
        num_attention_heads=2,
        intermediate_size=32,
        adaln_dim=16,
        llm_features_dim=13 * qwen_vl.WIDTH,
        mrope_section=(2, 2, 2),
    )
    fill(made)
    return made.eval()


def _build() -> Ideogram4Pipeline:
    torch.manual_seed(0)
    autoencoder = AutoencoderKLFlux2(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
    )
    language = qwen_vl.parts(LAYERS)
    return Ideogram4Pipeline(
        transformer=_transformer(),
        unconditional_transformer=_transformer(),
        vae=autoencoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=language["text_encoder"].model,
        tokenizer=language["tokenizer"],
    )


def _call(count: int) -> Arguments:
    return {"height": 16, "width": 16, "max_sequence_length": 24}


CASES = [Case("Ideogram4Pipeline", "text to image", _build, _call, GUIDANCE)]
