"""FLUX.2: [dev] with embedded guidance, and Klein with classifier-free guidance."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import (
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinInpaintPipeline,
    Flux2KleinKVPipeline,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
)

from ..parts_images import holes, photos, pictures, rows
from . import Case

EMBEDDED = {"off": {"guidance_scale": 1.0}, "embedded": {"guidance_scale": 4.0}}
CFG = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}


def autoencoder() -> AutoencoderKLFlux2:
    """It quarters the side of a picture."""
    return AutoencoderKLFlux2(
        block_out_channels=(8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=32,
    ).eval()


def flux2(kind: type, *, guidance_embeds: bool = False) -> Any:
    """A class of the family: latents a quarter of the picture's side, packed 2 x 2; embeddings in place of texts."""
    torch.manual_seed(0)
    transformer = Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=12,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance_embeds,
    ).eval()
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return kind(transformer=transformer, scheduler=scheduler, vae=autoencoder(), text_encoder=None, tokenizer=None)


def _texts(count: int) -> dict[str, Any]:
    return {"prompt_embeds": rows(count, 6, 12, seed=1), "height": 32, "width": 32}


def _both(count: int) -> dict[str, Any]:
    return {**_texts(count), "negative_prompt_embeds": rows(count, 6, 12, seed=2)}


def _reference() -> dict[str, Any]:
    """Reference pictures of the smallest size that the classes take; the samples of a call share them."""
    return {"image": photos(1, 64)}


CASES = [
    Case(
        "Flux2Pipeline",
        "text to image",
        partial(flux2, Flux2Pipeline, guidance_embeds=True),
        call=_texts,
        guidance={**EMBEDDED, "edit": {**EMBEDDED["embedded"], **_reference()}},
    ),
    Case(
        "Flux2KleinPipeline",
        "text to image",
        partial(flux2, Flux2KleinPipeline),
        call=_both,
        guidance={**CFG, "edit": {**CFG["on"], **_reference()}},
    ),
    Case(
        "Flux2KleinKVPipeline",
        "image editing",
        partial(flux2, Flux2KleinKVPipeline),
        call=_texts,
        guidance={"off": {}, "edit": _reference()},
    ),
    Case(
        "Flux2KleinInpaintPipeline",
        "inpainting",
        partial(flux2, Flux2KleinInpaintPipeline),
        call=lambda count: {
            **{name: value for name, value in _both(count).items() if name not in ("height", "width")},
            "image": pictures(count, 32),
            "mask_image": holes(count, 32),
            "strength": 0.75,
        },
        guidance=CFG,
    ),
]
