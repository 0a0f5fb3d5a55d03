"""FLUX.1 and its relatives: tools, ControlNets, Kontext."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FluxControlImg2ImgPipeline,
    FluxControlInpaintPipeline,
    FluxControlNetImg2ImgPipeline,
    FluxControlNetInpaintPipeline,
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxControlPipeline,
    FluxFillPipeline,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxKontextInpaintPipeline,
    FluxKontextPipeline,
)

from ... import tiny
from ..parts_images import holes, pictures
from . import Arguments, Case
from .sd3 import awake, joined, variant

EMBEDDED = {"off": {"guidance_scale": 1.0}, "embedded": {"guidance_scale": 3.5}}
"""The guidance of FLUX.1 [dev], an input of the model. One pass either way."""
TRUE_CFG = {**EMBEDDED, "on": {"guidance_scale": 3.5, "true_cfg_scale": 3.0}}
"""Classifier-free guidance beside it, for the classes that have both; `_negative` gives the negative prompts."""
ENDS_EARLY = {"guidance_scale": 3.5, "control_guidance_end": 0.7}


def _call(count: int) -> dict[str, Any]:
    return {"height": 8, "width": 8, "max_sequence_length": 16}


def _negative(count: int) -> dict[str, Any]:
    return {**_call(count), "negative_prompt": ["a blue circle", "three green squares"][:count]}


def _picture(count: int) -> dict[str, Any]:
    return {"image": pictures(count, 8), "strength": 0.75}


def _control(count: int) -> dict[str, Any]:
    return {"control_image": pictures(count, 8, seed=8)}


def _kontext(count: int) -> Arguments:
    """Sizes as they are: the class would scale pictures to about a megapixel."""
    return {**_negative(count), "image": pictures(count, 8), "max_area": 64, "_auto_resize": False}


def made(kind: type, *, in_channels: int = 16, **more: Any) -> Any:
    """A class of the family; ``in_channels`` counts the latents' 16 and what a class joins to them."""
    components = tiny.flux().components
    torch.manual_seed(2)
    transformer = variant(components["transformer"], in_channels=in_channels, out_channels=16)
    return joined(kind, components, transformer=transformer, **more)


def _with_controlnet(kind: type, modes: int | None = None) -> Any:
    torch.manual_seed(1)
    controlnet = FluxControlNetModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
        num_mode=modes,
    )
    return made(kind, controlnet=awake(controlnet))


CASES = [
    Case("FluxPipeline", "text to image", tiny.flux, call=_negative, guidance=TRUE_CFG, fast=True),
    Case(
        "FluxImg2ImgPipeline",
        "image to image",
        lambda: made(FluxImg2ImgPipeline),
        call=lambda count: {**_negative(count), **_picture(count)},
        guidance=TRUE_CFG,
    ),
    Case(
        "FluxInpaintPipeline",
        "inpainting",
        lambda: made(FluxInpaintPipeline),
        call=lambda count: {**_negative(count), **_picture(count), "mask_image": holes(count, 8)},
        guidance=TRUE_CFG,
    ),
    Case(
        "FluxFillPipeline",
        "inpainting",
        lambda: made(FluxFillPipeline, in_channels=16 + 16 + 4),
        call=lambda count: {**_call(count), "image": pictures(count, 8), "mask_image": holes(count, 8)},
        guidance=EMBEDDED,
    ),
    Case(
        "FluxControlPipeline",
        "control",
        lambda: made(FluxControlPipeline, in_channels=32),
        call=lambda count: {**_call(count), **_control(count)},
        guidance=EMBEDDED,
    ),
    Case(
        "FluxControlImg2ImgPipeline",
        "image to image",
        lambda: made(FluxControlImg2ImgPipeline, in_channels=32),
        call=lambda count: {**_call(count), **_picture(count), **_control(count)},
        guidance=EMBEDDED,
    ),
    Case(
        "FluxControlInpaintPipeline",
        "inpainting",
        lambda: made(FluxControlInpaintPipeline, in_channels=32),
        call=lambda count: {**_call(count), **_picture(count), **_control(count), "mask_image": holes(count, 8)},
        guidance=EMBEDDED,
    ),
    Case(
        "FluxControlNetPipeline",
        "control",
        lambda: _with_controlnet(FluxControlNetPipeline, modes=2),
        call=lambda count: {**_negative(count), **_control(count), "control_mode": 1},
        guidance={**EMBEDDED, "ends-early": ENDS_EARLY, "on": TRUE_CFG["on"]},
    ),
    Case(
        "FluxControlNetImg2ImgPipeline",
        "image to image",
        lambda: _with_controlnet(FluxControlNetImg2ImgPipeline),
        call=lambda count: {**_call(count), **_picture(count), **_control(count)},
        guidance={**EMBEDDED, "ends-early": ENDS_EARLY},
    ),
    Case(
        "FluxControlNetInpaintPipeline",
        "inpainting",
        lambda: _with_controlnet(FluxControlNetInpaintPipeline),
        call=lambda count: {**_call(count), **_picture(count), **_control(count), "mask_image": holes(count, 8)},
        guidance={**EMBEDDED, "ends-early": ENDS_EARLY},
    ),
    Case(
        "FluxKontextPipeline",
        "image editing",
        lambda: made(FluxKontextPipeline),
        call=_kontext,
        guidance=TRUE_CFG,
    ),
    Case(
        "FluxKontextInpaintPipeline",
        "inpainting",
        lambda: made(FluxKontextInpaintPipeline),
        call=lambda count: {**_kontext(count), "mask_image": holes(count, 8), "strength": 0.75},
        guidance=TRUE_CFG,
    ),
]

REFUSED: dict[str, str] = {
    "FluxPriorReduxPipeline": "it encodes a picture for another pipeline's prompt, and samples nothing itself.",
}
