"""Stable Diffusion and SDXL under control: ControlNet, ControlNet Union, ControlNet-XS and T2I adapters."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import ControlNetModel, ControlNetUnionModel, ControlNetXSAdapter

from . import Arguments, Case
from .sd import GUIDANCE, SIZE, masks, parts, pictures, stirred, unet
from .sdxl import ADAPTED, adapter, xl_parts, xl_unet
from .sdxl import GUIDANCE as XL_GUIDANCE

CONTROL = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "attention_head_dim": 8,
    "norm_num_groups": 4,
    "conditioning_embedding_out_channels": (8,),  # one level: latents are as large as the pictures
}
WINDOW = {"control_guidance_start": 0.2, "control_guidance_end": 0.6}
"""The control starts after the first step, and ends before the last."""
NO_LOADER = {"lora": "diffusers has no LoRA loader for a UNet that is joined with a ControlNet-XS"}


def controlnet(**changes: Any) -> Any:
    """A ControlNet for `sd.unet`, trained a little, so to speak: its last layers are not zero."""
    torch.manual_seed(2)
    return stirred(ControlNetModel(**{**CONTROL, "cross_attention_dim": 16, **changes}))


def _xl_settings() -> dict[str, Any]:
    config = xl_unet().config
    keys = (
        "cross_attention_dim",
        "use_linear_projection",
        "transformer_layers_per_block",
        "addition_embed_type",
        "addition_time_embed_dim",
        "projection_class_embeddings_input_dim",
    )
    return {**CONTROL, **{key: config[key] for key in keys}}


def xl_controlnet() -> Any:
    """A ControlNet for `sdxl.xl_unet`."""
    torch.manual_seed(2)
    return stirred(ControlNetModel(**_xl_settings()))


def union() -> Any:
    """A ControlNet for two kinds of control."""
    torch.manual_seed(2)
    settings = {"num_trans_channel": 8, "num_trans_head": 2, "num_proj_channel": 8, "num_control_type": 2}
    return stirred(ControlNetUnionModel(**_xl_settings(), **settings))


def _control(name: str, **unet_changes: Any) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**parts(unet=unet(**unet_changes), controlnet=controlnet()))


def _xl_control(name: str, make: Any = xl_controlnet) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**xl_parts(unet=xl_unet(), controlnet=make()))


def _xs(name: str, components: dict[str, Any], width: int) -> Any:
    torch.manual_seed(2)
    control = ControlNetXSAdapter(
        base_block_out_channels=(8, 16),
        block_out_channels=(4, 8),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        num_attention_heads=1,
        cross_attention_dim=width,
        conditioning_embedding_out_channels=(8,),
        max_norm_num_groups=4,
    )
    return getattr(diffusers, name)(**components, controlnet=stirred(control))


def _sd_xs() -> Any:
    torch.manual_seed(1)
    # Diffusers joins the two for two layers a block and linear projections alone.
    components = parts(unet=unet(layers_per_block=2, use_linear_projection=True))
    return _xs("StableDiffusionControlNetXSPipeline", components, 16)


def _xl_xs() -> Any:
    torch.manual_seed(1)
    return _xs("StableDiffusionXLControlNetXSPipeline", xl_parts(unet=xl_unet(layers_per_block=2)), 32)


def _adapted() -> Any:
    torch.manual_seed(1)
    return diffusers.StableDiffusionAdapterPipeline(**parts(unet=unet(**ADAPTED), adapter=adapter()))


def controlled(count: int) -> Arguments:
    """A control for each sample."""
    return {"image": pictures(count, seed=5), "height": SIZE, "width": SIZE}


def from_picture(count: int) -> Arguments:
    """A picture to start from and a control for each sample."""
    return {"image": pictures(count), "control_image": pictures(count, seed=5), "strength": 0.8}


def painted(count: int) -> Arguments:
    """A picture, a mask and a control for each sample."""
    return {**from_picture(count), "mask_image": masks(count), "height": SIZE, "width": SIZE}


def both_controls(count: int) -> Arguments:
    """Two kinds of control for ControlNet Union."""
    return {"control_image": [pictures(count, seed=5), pictures(count, seed=6)], "control_mode": [0, 1]}


CASES = [
    Case(
        "StableDiffusionControlNetPipeline",
        "control",
        lambda: _control("StableDiffusionControlNetPipeline"),
        controlled,
        guidance={**GUIDANCE, "guess": {**GUIDANCE["on"], "guess_mode": True}, "window": {**GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionControlNetImg2ImgPipeline",
        "control",
        lambda: _control("StableDiffusionControlNetImg2ImgPipeline"),
        lambda count: {**from_picture(count), "height": SIZE, "width": SIZE},
        guidance={**GUIDANCE, "window": {**GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionControlNetInpaintPipeline",
        "control",
        lambda: _control("StableDiffusionControlNetInpaintPipeline"),
        painted,
        guidance={**GUIDANCE, "window": {**GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetPipeline"),
        controlled,
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetImg2ImgPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetImg2ImgPipeline"),
        lambda count: {**from_picture(count), "height": SIZE, "width": SIZE},
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetInpaintPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetInpaintPipeline"),
        painted,
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetUnionPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetUnionPipeline", union),
        both_controls,
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetUnionImg2ImgPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetUnionImg2ImgPipeline", union),
        lambda count: {**both_controls(count), "image": pictures(count), "strength": 0.8},
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetUnionInpaintPipeline",
        "control",
        lambda: _xl_control("StableDiffusionXLControlNetUnionInpaintPipeline", union),
        lambda count: {**painted(count), **both_controls(count)},
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "StableDiffusionAdapterPipeline",
        "control",
        _adapted,
        controlled,
        guidance=GUIDANCE,
        kernel="ddim",
        skip={
            "pictures": "this pipeline returns arrays, which carry no gradients",
            "lora": "diffusers has no LoRA loader for this class",
        },
    ),
    Case(
        "StableDiffusionControlNetXSPipeline",
        "control",
        _sd_xs,
        controlled,
        guidance={**GUIDANCE, "window": {**GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "StableDiffusionXLControlNetXSPipeline",
        "control",
        _xl_xs,
        controlled,
        guidance={**XL_GUIDANCE, "window": {**XL_GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
        skip=NO_LOADER,
    ),
]
