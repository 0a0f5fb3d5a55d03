"""ConsisID: keeps the identity of a face. diffusers exports it where OpenCV is installed."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ConsisIDPipeline, ConsisIDTransformer3DModel
from diffusers.utils import is_opencv_available

from ... import tiny
from .. import video_parts as parts
from . import Case
from .cogvideox import GUIDANCE, SIZE, scheduler, vae


def identity_to_video() -> ConsisIDPipeline:
    """CogVideoX with layers that look at a face."""
    torch.manual_seed(0)
    transformer = ConsisIDTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=8,
        out_channels=4,
        time_embed_dim=4,
        text_embed_dim=16,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        sample_frames=5,
        patch_size=2,
        temporal_compression_ratio=4,
        max_text_seq_length=16,
        use_rotary_positional_embeddings=True,
        cross_attn_interval=1,
        is_train_face=True,
        cross_attn_dim_head=4,
        cross_attn_num_heads=2,
        LFE_id_dim=4,
        LFE_vit_dim=4,
        LFE_depth=5,
        LFE_dim_head=8,
        LFE_num_heads=2,
        LFE_num_id_token=1,
        LFE_num_querie=2,
        LFE_output_dim=21,  # two thirds of the width
        LFE_ff_mult=1,
        LFE_num_scale=1,
    ).eval()
    return ConsisIDPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        vae=vae(),
        transformer=transformer,
        scheduler=scheduler(),
    )


def _faces(count: int) -> dict[str, Any]:
    return {
        **SIZE,
        "num_frames": 5,
        "image": [parts.picture(seed=seed) for seed in range(count)],
        "id_vit_hidden": [parts.numbers(1, 3, 4)],
        "id_cond": parts.numbers(1, 4, seed=1),
    }


CASES = [Case("ConsisIDPipeline", "image to video", identity_to_video, _faces, GUIDANCE, "ddim")]
if not is_opencv_available():
    CASES.clear()
