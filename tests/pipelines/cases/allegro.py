"""Allegro."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AllegroPipeline,
    AllegroTransformer3DModel,
    AutoencoderKLAllegro,
    EulerAncestralDiscreteScheduler,
)

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 7.5, "negative_prompt": "a blue circle"},
}


def text_to_video() -> AllegroPipeline:
    """Scheduled by ancestral Euler, as it ships."""
    torch.manual_seed(0)
    transformer = AllegroTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        cross_attention_dim=24,
        sample_width=4,
        sample_height=4,
        sample_frames=2,
        caption_channels=16,
    ).eval()
    vae = AutoencoderKLAllegro(
        down_block_types=("AllegroDownBlock3D",) * 4,
        up_block_types=("AllegroUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        sample_size=32,
    ).eval()
    # It decodes in tiles only, each of one sample: tiles that are not larger than the video.
    vae.enable_tiling()
    vae.enable_slicing()
    vae.kernel, vae.stride = (8, 32, 32), (4, 16, 16)
    return AllegroPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        vae=vae,
        transformer=transformer,
        scheduler=EulerAncestralDiscreteScheduler(
            beta_start=0.0001, beta_end=0.02, beta_schedule="linear", timestep_spacing="leading"
        ),
    )


def _frames(count: int) -> dict[str, Any]:
    return {"height": 32, "width": 32, "num_frames": 8, "max_sequence_length": 16, "clean_caption": False}


CASES = [
    Case(
        "AllegroPipeline",
        "text to video",
        text_to_video,
        _frames,
        GUIDANCE,
        "ddim",
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
