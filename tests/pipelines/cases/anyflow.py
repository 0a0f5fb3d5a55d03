"""AnyFlow: flow maps, which take any step in one go."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AnyFlowPipeline, AnyFlowTransformer3DModel, FlowMapEulerDiscreteScheduler

from ... import tiny
from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0, "negative_prompt": "a blue circle"},
}


def text_to_video() -> AnyFlowPipeline:
    """The model is told where a step ends, and predicts its mean velocity."""
    torch.manual_seed(0)
    transformer = AnyFlowTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
        gate_value=0.25,
        deltatime_type="r",
    ).eval()
    return AnyFlowPipeline(
        tokenizer=tiny.tokenizer(),
        text_encoder=parts.t5(),
        transformer=transformer,
        vae=parts.wan_vae(),
        scheduler=FlowMapEulerDiscreteScheduler(shift=5.0),
    )


def _frames(count: int) -> dict[str, Any]:
    return {"height": 16, "width": 16, "num_frames": 5, "max_sequence_length": 16}


CASES = [
    Case(
        "AnyFlowPipeline",
        "text to video",
        text_to_video,
        _frames,
        GUIDANCE,
        skip={"predict": "the model's output depends on where the step ends, not on its place alone"},
    )
]

REFUSED = {
    "AnyFlowFARPipeline": "it draws a video in chunks, each with a schedule of its own that begins anew",
}
