"""Z-Image: a single-stream transformer that takes lists of pictures and of texts."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    ZImageControlNetInpaintPipeline,
    ZImageControlNetModel,
    ZImageControlNetPipeline,
    ZImageImg2ImgPipeline,
    ZImageInpaintPipeline,
    ZImageOmniPipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from transformers import Siglip2ImageProcessor, Siglip2VisionConfig, Siglip2VisionModel

from ..parts_images import fill, holes, photos, pictures, texts, vae
from . import Arguments, Case

WIDTH = 12
GUIDANCE = {
    "off": {"guidance_scale": 0.0},
    "on": {"guidance_scale": 3.0},
    "truncated": {"guidance_scale": 3.0, "cfg_truncation": 0.4},
    "normalized": {"guidance_scale": 3.0, "cfg_normalization": True},
}


def _transformer(**settings: Any) -> ZImageTransformer2DModel:
    made = ZImageTransformer2DModel(
        in_channels=4,
        dim=24,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[4, 4, 4],
        axes_lens=[256, 16, 16],
        **settings,
    )
    fill(made)
    return made.eval()


def _parts() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "transformer": _transformer(),
        "vae": vae(4),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "text_encoder": None,
        "tokenizer": None,
    }


def _controlnet() -> dict[str, Any]:
    """Control that reads 4 channels of a picture, and for inpainting its mask and masked picture too."""
    parts = _parts()
    controlnet = ZImageControlNetModel(
        control_layers_places=[0, 1],
        control_refiner_layers_places=[0],
        control_in_dim=9,
        add_control_noise_refiner="control_noise_refiner",
        dim=24,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
    )
    fill(controlnet)
    return {**parts, "controlnet": controlnet.eval()}


def _omni() -> ZImageOmniPipeline:
    parts = _parts()
    vision = Siglip2VisionConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_patches=16, patch_size=8
    )
    parts["transformer"] = _transformer(siglip_feat_dim=8)
    # Pictures of 64 pixels are its smallest, and it gives the VAE bfloat16 ones whatever the VAE's dtype.
    parts["vae"] = vae(4, levels=4).to(torch.bfloat16)
    return ZImageOmniPipeline(
        **parts,
        siglip=Siglip2VisionModel(vision).eval(),
        siglip_processor=Siglip2ImageProcessor(patch_size=8, max_num_patches=16),
    )


def _text(count: int) -> Arguments:
    return {"prompt_embeds": texts(count, WIDTH), "negative_prompt_embeds": texts(count, WIDTH, seed=5)}


def _sized(count: int) -> Arguments:
    return {**_text(count), "height": 16, "width": 16}


def _picture(count: int) -> Arguments:
    return {**_text(count), "image": pictures(count), "strength": 0.7}


def _inpaint(count: int) -> Arguments:
    return {**_picture(count), "mask_image": holes(count)}


def _control(count: int) -> Arguments:
    return {**_sized(count), "control_image": pictures(count), "controlnet_conditioning_scale": 0.8}


def _control_inpaint(count: int) -> Arguments:
    return {**_control(count), "image": pictures(count, seed=8), "mask_image": holes(count)}


def _omni_call(count: int) -> Arguments:
    """Two pictures that the samples share, and for each sample the pieces of text around them."""
    return {
        "prompt_embeds": [texts(4, WIDTH, seed=10 * row) for row in range(count)],
        "negative_prompt_embeds": [texts(4, WIDTH, seed=10 * row + 5) for row in range(count)],
        "image": photos(2, 64),
    }


CASES = [
    Case("ZImagePipeline", "text to image", lambda: ZImagePipeline(**_parts()), _sized, GUIDANCE, fast=True),
    Case("ZImageImg2ImgPipeline", "image to image", lambda: ZImageImg2ImgPipeline(**_parts()), _picture, GUIDANCE),
    Case("ZImageInpaintPipeline", "inpainting", lambda: ZImageInpaintPipeline(**_parts()), _inpaint, GUIDANCE),
    Case("ZImageControlNetPipeline", "control", lambda: ZImageControlNetPipeline(**_controlnet()), _control, GUIDANCE),
    Case(
        "ZImageControlNetInpaintPipeline",
        "inpainting",
        lambda: ZImageControlNetInpaintPipeline(**_controlnet()),
        _control_inpaint,
        GUIDANCE,
    ),
    Case("ZImageOmniPipeline", "image editing", _omni, _omni_call, GUIDANCE),
]
