"""LongCat-Image."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    LongCatImageEditPipeline,
    LongCatImagePipeline,
    LongCatImageTransformer2DModel,
)
from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit

from .. import qwen_vl
from ..parts_images import fill, photos, vae
from . import Case

GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.5}}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _build(kind: type) -> Any:
    torch.manual_seed(0)
    transformer = LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=qwen_vl.WIDTH,
        pooled_projection_dim=qwen_vl.WIDTH,
        axes_dims_rope=[4, 4, 4],
    )
    fill(transformer)
    language = qwen_vl.older_parts()
    pipe = kind(
        transformer=transformer.eval(),
        vae=vae(16),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        text_encoder=language["text_encoder"],
        tokenizer=language["tokenizer"],
        text_processor=language["processor"],
    )
    pipe.tokenizer_max_length = 24  # every prompt is padded to this length, 512 by default
    return pipe


def _edit() -> LongCatImageEditPipeline:
    # The class makes pictures of a million pixels, whatever it is given, and asks this function for their sides.
    pipeline_longcat_image_edit.calculate_dimensions = lambda *_: (16, 16)
    return _build(LongCatImageEditPipeline)


CASES = [
    Case(
        "LongCatImagePipeline",
        "text to image",
        lambda: _build(LongCatImagePipeline),
        lambda _: {"height": 16, "width": 16, "enable_prompt_rewrite": False, "negative_prompt": ["dull", "blurred"]},
        {**GUIDANCE, "not renormalized": {"guidance_scale": 4.5, "enable_cfg_renorm": False}},
        skip=NO_LOADER,
    ),
    Case(
        "LongCatImageEditPipeline",
        "image editing",
        _edit,
        lambda _: {"image": photos(1)[0], "negative_prompt": "dull"},
        GUIDANCE,
        samples=1,
        skip=NO_LOADER,
    ),
]
