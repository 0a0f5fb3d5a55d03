"""Krea 2."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel

from ..parts_images import mask, rows
from . import Arguments, Case
from .qwen import autoencoder

LAYERS = (1, 2)
"""Layers of the language model whose states the model is given; embeddings stand in for them."""


def krea() -> Any:
    """Krea2Pipeline: latents half the picture's side, packed 2 x 2."""
    torch.manual_seed(0)
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        timestep_embed_dim=16,
        text_hidden_dim=16,
        num_text_layers=len(LAYERS),
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=24,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    ).eval()
    return Krea2Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=autoencoder(),
        text_encoder=None,
        tokenizer=None,
        text_encoder_select_layers=LAYERS,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, len(LAYERS), 16, seed=1),
        "prompt_embeds_mask": mask(count, 6).bool(),
        "negative_prompt_embeds": rows(count, 6, len(LAYERS), 16, seed=2),
        "negative_prompt_embeds_mask": mask(count, 6).bool(),
        "height": 16,
        "width": 16,
    }


CASES = [
    Case(
        "Krea2Pipeline",
        "text to image",
        krea,
        call=_call,
        guidance={"off": {"guidance_scale": 0.0}, "on": {"guidance_scale": 4.5}},
    )
]
