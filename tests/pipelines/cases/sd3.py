"""Stable Diffusion 3 and its relatives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from diffusers import (
    SD3ControlNetModel,
    StableDiffusion3ControlNetInpaintingPipeline,
    StableDiffusion3ControlNetPipeline,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3PAGImg2ImgPipeline,
    StableDiffusion3PAGPipeline,
)
from torch import nn

from ... import tiny
from ..parts_images import holes, pictures, vae
from . import Arguments, Case


def awake(module: nn.Module) -> nn.Module:
    """Draw the weights that start at 0, such as a ControlNet's last layers: without them the module has no effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.3, generator=generator)
    return module.eval()


def variant(module: Any, **changes: Any) -> Any:
    """Another random model of the same class, with other settings."""
    # diffusers would take back settings that were defaults of the first one.
    return type(module).from_config({**module.config, "_use_default_values": [], **changes}).eval()


def joined(kind: type, components: Mapping[str, Any], **more: Any) -> Any:
    """A pipeline of another class, made of those components that it takes and of ``more``."""
    known = inspect.signature(kind.__init__).parameters
    return kind(**{name: part for name, part in {**components, **more}.items() if name in known})


GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.5},
    "skip-layer": {
        "guidance_scale": 4.5,
        "skip_guidance_layers": [0],
        "skip_layer_guidance_start": 0.2,
        "skip_layer_guidance_stop": 0.6,
    },
}
CFG = {name: GUIDANCE[name] for name in ("off", "on")}
PAG = {
    "off": {"guidance_scale": 1.0, "pag_scale": 0.0},
    "pag": {"guidance_scale": 1.0, "pag_scale": 2.0},
    "on": {"guidance_scale": 4.5, "pag_scale": 2.0, "pag_adaptive_scale": 0.001},
}
CONTROL = {
    "off": {"guidance_scale": 1.0},
    "ends-early": {"guidance_scale": 4.5, "control_guidance_start": 0.2, "control_guidance_end": 0.6},
    "on": {"guidance_scale": 4.5},
}


def _inpaint() -> StableDiffusion3InpaintPipeline:
    """With 16 channels, at which the class keeps what the mask leaves alone."""
    components = tiny.sd3().components
    torch.manual_seed(1)
    transformer = variant(components["transformer"], in_channels=16, out_channels=16)
    return joined(StableDiffusion3InpaintPipeline, components, transformer=transformer, vae=vae(16, levels=1))


def _control(kind: type, extra_channels: int = 0) -> Any:
    """A class with a ControlNet of one block."""
    components = tiny.sd3().components
    torch.manual_seed(1)
    controlnet = SD3ControlNetModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=4,
        extra_conditioning_channels=extra_channels,
        force_zeros_for_pooled_projection=False,
    )
    return joined(kind, components, controlnet=awake(controlnet))


def _from_picture(count: int) -> Arguments:
    return {"image": pictures(count, 8), "strength": 0.75}


CASES = [
    Case("StableDiffusion3Pipeline", "text to image", tiny.sd3, guidance=GUIDANCE, fast=True),
    Case(
        "StableDiffusion3Img2ImgPipeline",
        "image to image",
        lambda: joined(StableDiffusion3Img2ImgPipeline, tiny.sd3().components),
        call=_from_picture,
        guidance=CFG,
    ),
    Case(
        "StableDiffusion3InpaintPipeline",
        "inpainting",
        _inpaint,
        call=lambda count: {**_from_picture(count), "mask_image": holes(count, 8), "height": 8, "width": 8},
        guidance=CFG,
    ),
    Case(
        "StableDiffusion3ControlNetPipeline",
        "control",
        lambda: _control(StableDiffusion3ControlNetPipeline),
        call=lambda count: {"control_image": pictures(count, 8), "controlnet_conditioning_scale": 0.7},
        guidance=CONTROL,
    ),
    Case(
        "StableDiffusion3ControlNetInpaintingPipeline",
        "inpainting",
        lambda: _control(StableDiffusion3ControlNetInpaintingPipeline, extra_channels=1),
        call=lambda count: {"control_image": pictures(count, 8), "control_mask": holes(count, 8)},
        guidance=CONTROL,
    ),
    Case(
        "StableDiffusion3PAGPipeline",
        "text to image",
        lambda: joined(StableDiffusion3PAGPipeline, tiny.sd3().components, pag_applied_layers=["blocks.1"]),
        guidance=PAG,
    ),
    Case(
        "StableDiffusion3PAGImg2ImgPipeline",
        "image to image",
        lambda: joined(StableDiffusion3PAGImg2ImgPipeline, tiny.sd3().components, pag_applied_layers=["blocks.0"]),
        call=_from_picture,
        guidance=PAG,
    ),
]
