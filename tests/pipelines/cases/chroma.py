"""Chroma: FLUX.1's shape without embedded guidance, with a mask for the text."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ChromaImg2ImgPipeline, ChromaInpaintPipeline, ChromaPipeline, ChromaTransformer2DModel

from ... import tiny
from ..parts_images import holes, pictures
from . import Case
from .sd3 import joined

CFG = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.0},
}


def chroma(kind: type) -> Any:
    """A class of the family, with the T5 and the autoencoder of the tiny FLUX."""
    components = tiny.flux().components
    torch.manual_seed(0)
    transformer = ChromaTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 4, 8),
        approximator_num_channels=16,
        approximator_hidden_dim=24,
        approximator_layers=1,
    ).eval()
    # Read by ChromaInpaintPipeline alone: a setting of FLUX's transformer, which a checkpoint's config may hold too.
    transformer.register_to_config(guidance_embeds=False)
    text = {"text_encoder": components["text_encoder_2"], "tokenizer": components["tokenizer_2"]}
    return joined(kind, components, transformer=transformer, **text)


def _call(count: int) -> dict[str, Any]:
    negative = ["a blue circle", "three green squares"][:count]
    return {"height": 8, "width": 8, "max_sequence_length": 12, "negative_prompt": negative}


def _picture(count: int) -> dict[str, Any]:
    return {"image": pictures(count, 8), "strength": 0.75}


CASES = [
    Case("ChromaPipeline", "text to image", lambda: chroma(ChromaPipeline), call=_call, guidance=CFG),
    Case(
        "ChromaImg2ImgPipeline",
        "image to image",
        lambda: chroma(ChromaImg2ImgPipeline),
        call=lambda count: {**_call(count), **_picture(count)},
        guidance=CFG,
    ),
    Case(
        "ChromaInpaintPipeline",
        "inpainting",
        lambda: chroma(ChromaInpaintPipeline),
        call=lambda count: {**_call(count), **_picture(count), "mask_image": holes(count, 8)},
        guidance=CFG,
    ),
]
