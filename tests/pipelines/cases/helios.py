"""Helios: long videos, chunk by chunk. A trajectory is one chunk."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import HeliosPipeline, HeliosScheduler, HeliosTransformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
}


def text_to_video() -> HeliosPipeline:
    """Its own scheduler with one stage: UniPC on flow sigmas."""
    torch.manual_seed(0)
    transformer = HeliosTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_dim=(4, 4, 4),
        has_multi_term_memory_patch=True,
        guidance_cross_attn=True,
        zero_history_timestep=True,
        is_amplify_history=False,
    ).eval()
    return HeliosPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        vae=parts.wan_vae(),
        scheduler=HeliosScheduler(stages=1, stage_range=[0, 1], use_dynamic_shifting=True),
        transformer=transformer,
    )


def _frames(count: int) -> dict[str, Any]:
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "num_latent_frames_per_chunk": 2,
        "history_sizes": [4, 2, 1],
        "max_sequence_length": 16,
    }


CASES = [Case("HeliosPipeline", "text to video", text_to_video, _frames, GUIDANCE)]

REFUSED = {
    "HeliosPyramidPipeline": "it draws each chunk at several sizes, each with a schedule of its own",
}
