"""Lucy Edit: edits a video by a prompt."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import LucyEditPipeline, WanTransformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
}


def edit() -> LucyEditPipeline:
    """A Wan transformer with a timestep for each token; the video's latents as channels."""
    torch.manual_seed(0)
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=8,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
    ).eval()
    return LucyEditPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        vae=parts.wan_vae(),
        scheduler=parts.flow_unipc(flow_shift=5.0),
        transformer=transformer,
        expand_timesteps=True,
    )


def _videos(count: int) -> dict[str, Any]:
    videos = [parts.film(5, seed=seed) for seed in range(count)]
    return {"height": 16, "width": 16, "num_frames": 5, "max_sequence_length": 16, "video": videos}


CASES = [Case("LucyEditPipeline", "video to video", edit, _videos, GUIDANCE)]
