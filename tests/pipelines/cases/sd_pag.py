"""Perturbed-attention guidance (PAG) of UNet pipelines and of diffusion transformers."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

from . import Arguments, Case
from .dit import hunyuan_call, hunyuan_parts, pixart_call, pixart_parts
from .sd import masks, parts, pictures, unet
from .sd_control import controlled, controlnet, from_picture, painted, xl_controlnet
from .sdxl import ONE_ENCODER, kolors_parts, xl_parts, xl_unet


def guidance(scale: float, without: str = "") -> dict[str, Arguments]:
    """No guidance, PAG alone, both, and PAG that fades with the steps; ``without`` one that diffusers has broken."""
    settings = {
        "off": {"guidance_scale": 1.0, "pag_scale": 0.0},
        "perturbed alone": {"guidance_scale": 1.0, "pag_scale": 3.0},
        "fading": {"guidance_scale": scale, "pag_scale": 3.0, "pag_adaptive_scale": 0.004},
        "on": {"guidance_scale": scale, "pag_scale": 3.0},
    }
    return {name: setting for name, setting in settings.items() if name != without}


def _sd(name: str, **more: Any) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**parts(unet=unet(), pag_applied_layers=["mid"], **more))


def _xl(name: str, **more: Any) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**xl_parts(unet=xl_unet(), pag_applied_layers=["mid", "up"], **more))


def from_picture_alone(count: int) -> Arguments:
    """A picture for each sample, most of which is noised away."""
    return {"image": pictures(count), "strength": 0.8}


def painted_alone(count: int) -> Arguments:
    """A picture and a mask for each sample."""
    return {"image": pictures(count), "mask_image": masks(count), "strength": 0.8}


NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}

CASES = [
    Case(
        "StableDiffusionPAGPipeline",
        "text to image",
        lambda: _sd("StableDiffusionPAGPipeline"),
        guidance=guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionPAGImg2ImgPipeline",
        "image to image",
        lambda: _sd("StableDiffusionPAGImg2ImgPipeline"),
        from_picture_alone,
        guidance=guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionPAGInpaintPipeline",
        "inpainting",
        lambda: _sd("StableDiffusionPAGInpaintPipeline"),
        painted_alone,
        guidance=guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionControlNetPAGPipeline",
        "control",
        lambda: _sd("StableDiffusionControlNetPAGPipeline", controlnet=controlnet()),
        controlled,
        guidance=guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionControlNetPAGInpaintPipeline",
        "control",
        lambda: _sd("StableDiffusionControlNetPAGInpaintPipeline", controlnet=controlnet()),
        painted,
        guidance=guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLPAGPipeline",
        "text to image",
        lambda: _xl("StableDiffusionXLPAGPipeline"),
        guidance=guidance(5.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLPAGImg2ImgPipeline",
        "image to image",
        lambda: _xl("StableDiffusionXLPAGImg2ImgPipeline"),
        from_picture_alone,
        guidance=guidance(5.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLPAGInpaintPipeline",
        "inpainting",
        lambda: _xl("StableDiffusionXLPAGInpaintPipeline"),
        painted_alone,
        guidance=guidance(5.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetPAGPipeline",
        "control",
        lambda: _xl("StableDiffusionXLControlNetPAGPipeline", controlnet=xl_controlnet()),
        controlled,
        guidance=guidance(5.5),
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLControlNetPAGImg2ImgPipeline",
        "control",
        lambda: _xl("StableDiffusionXLControlNetPAGImg2ImgPipeline", controlnet=xl_controlnet()),
        from_picture,
        guidance=guidance(5.5),
        kernel="ddim",
    ),
    Case(
        "KolorsPAGPipeline",
        "text to image",
        lambda: diffusers.KolorsPAGPipeline(**kolors_parts(pag_applied_layers=["mid"])),
        lambda count: {"max_sequence_length": 8},
        guidance=guidance(5.5),
        kernel="ddim",
        skip=ONE_ENCODER,
    ),
    Case(
        "PixArtSigmaPAGPipeline",
        "text to image",
        lambda: diffusers.PixArtSigmaPAGPipeline(**pixart_parts(pag_applied_layers=["blocks.1"])),
        pixart_call,
        guidance=guidance(4.5, without="fading"),
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "HunyuanDiTPAGPipeline",
        "text to image",
        lambda: diffusers.HunyuanDiTPAGPipeline(**hunyuan_parts(pag_applied_layers=["blocks.1"])),
        hunyuan_call,
        guidance=guidance(5.0, without="perturbed alone"),
        kernel="ddim",
        skip=NO_LOADER,
    ),
]
