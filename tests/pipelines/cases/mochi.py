"""Mochi."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLMochi, MochiPipeline, MochiTransformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.5, "negative_prompt": "a blue circle"},
}


def text_to_video() -> MochiPipeline:
    """Sigmas from 1 that fall linearly, then quadratically; inverted time."""
    torch.manual_seed(0)
    transformer = MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=12,
        qk_norm="rms_norm",
        text_embed_dim=16,
        time_embed_dim=4,
        activation_fn="swiglu",
        max_sequence_length=16,
    ).eval()
    vae = AutoencoderKLMochi(
        latent_channels=12,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ).eval()
    return MochiPipeline(
        scheduler=parts.flow_euler(shift=1.0, invert_sigmas=True),
        vae=vae,
        text_encoder=parts.t5(),
        tokenizer=tiny.tokenizer(),
        transformer=transformer,
    )


def _frames(count: int) -> dict[str, Any]:
    return {"height": 32, "width": 32, "num_frames": 7, "max_sequence_length": 16}


CASES = [Case("MochiPipeline", "text to video", text_to_video, _frames, GUIDANCE)]
