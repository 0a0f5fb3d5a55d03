"""CogView 4 and its control model, and CogView 3 Plus, which diffuses with DDIM."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    CogView3PlusPipeline,
    CogView3PlusTransformer2DModel,
    CogView4ControlPipeline,
    CogView4Pipeline,
    CogView4Transformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)

from ..parts_images import fill, pictures, rows, vae
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 5.0}}
MODEL: dict[str, Any] = {
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "text_embed_dim": WIDTH,
    "time_embed_dim": 8,
    "condition_dim": 4,
}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _build(kind: type, channels: int) -> Any:
    torch.manual_seed(0)
    transformer = CogView4Transformer2DModel(**MODEL, in_channels=channels, rope_axes_dim=(8, 8))
    fill(transformer)
    return kind(
        transformer=transformer.eval(),
        vae=vae(4),
        scheduler=FlowMatchEulerDiscreteScheduler(
            base_shift=0.25, max_shift=0.75, base_image_seq_len=256, use_dynamic_shifting=True, time_shift_type="linear"
        ),
        text_encoder=None,
        tokenizer=None,
    )


def _cogview3() -> CogView3PlusPipeline:
    torch.manual_seed(0)
    transformer = CogView3PlusTransformer2DModel(**MODEL, in_channels=4, sample_size=8, pos_embed_max_size=8)
    fill(transformer)
    return CogView3PlusPipeline(
        transformer=transformer.eval(),
        vae=vae(4),
        scheduler=CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=4.0,
            timestep_spacing="trailing",
        ),
        text_encoder=None,
        tokenizer=None,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 16, WIDTH),
        "negative_prompt_embeds": rows(count, 16, WIDTH, seed=1),
        "height": 16,
        "width": 16,
    }


def _control(count: int) -> Arguments:
    return {**_call(count), "control_image": pictures(count)}


CASES = [
    Case("CogView4Pipeline", "text to image", lambda: _build(CogView4Pipeline, 4), _call, GUIDANCE),
    Case(
        "CogView4ControlPipeline",
        "control",
        lambda: _build(CogView4ControlPipeline, 8),
        _control,
        GUIDANCE,
        skip=NO_LOADER,
    ),
    Case("CogView3PlusPipeline", "text to image", _cogview3, _call, GUIDANCE, kernel="ddim", skip=NO_LOADER),
]
