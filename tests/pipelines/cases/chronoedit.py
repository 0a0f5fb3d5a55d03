"""ChronoEdit: edits a picture by the film that leads from it to the edited one."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ChronoEditPipeline, ChronoEditTransformer3DModel

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
    # The film is cut down to its ends in the middle of the loop.
    "reasoning": {
        "guidance_scale": 5.0,
        "num_frames": 9,
        "enable_temporal_reasoning": True,
        "num_temporal_reasoning_steps": 2,
    },
}


def edit() -> ChronoEditPipeline:
    """A Wan transformer with a CLIP image encoder, scheduled by UniPC."""
    torch.manual_seed(0)
    transformer = ChronoEditTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=12,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        image_dim=8,
        added_kv_proj_dim=24,
        rope_max_seq_len=32,
    ).eval()
    return ChronoEditPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        image_encoder=parts.clip_vision(),
        image_processor=parts.clip_pictures(),
        transformer=transformer,
        vae=parts.wan_vae(),
        scheduler=parts.flow_unipc(),
    )


def _picture(count: int) -> dict[str, Any]:
    return {"image": parts.picture(seed=1), "height": 16, "width": 16, "max_sequence_length": 512}


CASES = [Case("ChronoEditPipeline", "image editing", edit, _picture, GUIDANCE)]
