"""GLM-Image: a transformer that follows tokens drawn by a language model, here given; with and without pictures."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel

from ..parts_images import fill, photos, rows, vae
from . import Arguments, Case

WIDTH, TOKENS, BOOK = 12, 16, 20


def _build() -> GlmImagePipeline:
    torch.manual_seed(0)
    transformer = GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        text_embed_dim=WIDTH,
        time_embed_dim=8,
        condition_dim=4,
        prior_vq_quantizer_codebook_size=BOOK,
    )
    fill(transformer)
    return GlmImagePipeline(
        transformer=transformer.eval(),
        vae=vae(4, latents_mean=[0.1, -0.2, 0.3, 0.0], latents_std=[1.5, 2.0, 2.5, 1.0]),
        scheduler=FlowMatchEulerDiscreteScheduler(
            base_shift=0.25, max_shift=0.75, base_image_seq_len=256, use_dynamic_shifting=True, time_shift_type="linear"
        ),
        **dict.fromkeys(("tokenizer", "processor", "text_encoder", "vision_language_encoder")),
    )


def _tokens(count: int, seed: int) -> torch.Tensor:
    return torch.randint(BOOK, (count, TOKENS), generator=torch.Generator().manual_seed(seed))


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "prior_token_ids": _tokens(count, 0),
        "height": 16,
        "width": 16,
    }


def _pictures(count: int) -> Arguments:
    """A picture a sample, which the transformer reads into a cache before the first step."""
    return {
        "image": [[photo] for photo in photos(count)],
        "prior_token_image_ids": list(_tokens(count, 1)),
        "source_image_grid_thw": [torch.tensor([[1, 4, 4]])] * count,
    }


GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    # Not the last: gradient checkpointing cannot compute again what reads the cache, which has another state by then.
    "editing": {"guidance_scale": 3.0, **_pictures(2)},
    "on": {"guidance_scale": 3.0},
}

CASES = [
    Case(
        "GlmImagePipeline",
        "text to image",
        _build,
        _call,
        GUIDANCE,
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
