"""DeepFloyd IF: pixel UNets with a predicted variance, and the larger ones that read a small picture."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    DDPMScheduler,
    IFImg2ImgPipeline,
    IFImg2ImgSuperResolutionPipeline,
    IFInpaintingPipeline,
    IFInpaintingSuperResolutionPipeline,
    IFPipeline,
    IFSuperResolutionPipeline,
    UNet2DConditionModel,
)

from ..parts_images import fill, holes, pictures, rows
from . import Arguments, Case

WIDTH, SIZE = 12, 8
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 2.0}}
BETAS: dict[str, Any] = {"beta_schedule": "squaredcos_cap_v2", "beta_start": 0.0001, "beta_end": 0.02}


def _build(kind: type, *, larger: bool = False) -> Any:
    torch.manual_seed(0)
    conditions = {"class_embed_type": "timestep"} if larger else {}
    unet = UNet2DConditionModel(
        sample_size=SIZE,
        in_channels=6 if larger else 3,
        out_channels=6,
        layers_per_block=1,
        block_out_channels=(8, 32),
        norm_num_groups=4,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        cross_attention_dim=32,
        encoder_hid_dim=WIDTH,
        attention_head_dim=8,
        addition_embed_type="text",
        addition_embed_type_num_heads=2,
        cross_attention_norm="group_norm",
        resnet_time_scale_shift="scale_shift",
        act_fn="gelu",
        **conditions,
    )
    fill(unet, 0.03)
    parts = dict.fromkeys(("text_encoder", "tokenizer", "safety_checker", "feature_extractor", "watermarker"))
    noising = {"image_noising_scheduler": DDPMScheduler(**BETAS)} if larger else {}
    return kind(
        **parts,
        **noising,
        unet=unet.eval(),
        scheduler=DDPMScheduler(**BETAS, variance_type="learned_range"),
        requires_safety_checker=False,
    )


def _text(count: int) -> Arguments:
    return {"prompt_embeds": rows(count, 5, WIDTH), "negative_prompt_embeds": rows(count, 5, WIDTH, seed=1)}


def _picture(count: int) -> Arguments:
    return {**_text(count), "image": pictures(count, SIZE), "strength": 0.75}


def _small(count: int) -> Arguments:
    return {**_text(count), "image": pictures(count, SIZE // 2), "noise_level": 100}


def _larger(count: int) -> Arguments:
    """A picture to start from, and the small one that the stage before made of it."""
    small = pictures(count, SIZE // 2, seed=9)
    return {**_picture(count), "original_image": pictures(count, SIZE), "image": small, "noise_level": 100}


CASES = [
    Case("IFPipeline", "text to image", lambda: _build(IFPipeline), _text, GUIDANCE, kernel="ddim"),
    Case(
        "IFImg2ImgPipeline",
        "image to image",
        lambda: _build(IFImg2ImgPipeline),
        _picture,
        GUIDANCE,
        kernel="ddim",
        steps=6,
    ),
    Case(
        "IFInpaintingPipeline",
        "inpainting",
        lambda: _build(IFInpaintingPipeline),
        lambda count: {**_picture(count), "mask_image": holes(count, SIZE)},
        GUIDANCE,
        kernel="ddim",
        steps=6,
    ),
    Case(
        "IFSuperResolutionPipeline",
        "control",
        lambda: _build(IFSuperResolutionPipeline, larger=True),
        _small,
        GUIDANCE,
        kernel="ddim",
        steps=4,
    ),
    Case(
        "IFImg2ImgSuperResolutionPipeline",
        "image to image",
        lambda: _build(IFImg2ImgSuperResolutionPipeline, larger=True),
        _larger,
        GUIDANCE,
        kernel="ddim",
        steps=6,
    ),
    Case(
        "IFInpaintingSuperResolutionPipeline",
        "inpainting",
        lambda: _build(IFInpaintingSuperResolutionPipeline, larger=True),
        lambda count: {**_larger(count), "mask_image": holes(count, SIZE)},
        GUIDANCE,
        kernel="ddim",
        steps=6,
    ),
]
