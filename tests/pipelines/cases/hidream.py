"""HiDream: a mixture of experts that reads four text encoders."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline, HiDreamImageTransformer2DModel

from ..parts_images import fill, rows, vae
from . import Arguments, Case

WIDTH, POOLED = 12, 10
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 5.0}}


def _build() -> HiDreamImagePipeline:
    torch.manual_seed(0)
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_channels=[WIDTH, WIDTH],
        text_emb_dim=POOLED,
        num_routed_experts=2,
        num_activated_experts=1,
        axes_dims_rope=(2, 2, 4),
        max_resolution=(8, 8),
        llama_layers=[0, 1],
    )
    fill(transformer)
    parts = [f"{name}{number}" for name in ("text_encoder", "tokenizer") for number in ("", "_2", "_3", "_4")]
    pipe = HiDreamImagePipeline(
        transformer=transformer.eval(),
        vae=vae(4),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        **dict.fromkeys(parts),
    )
    pipe.default_sample_size = 8  # the class enlarges every size to this area of latents, 128 x 128 by default
    return pipe


def _texts(count: int, seed: int) -> Arguments:
    return {
        "prompt_embeds_t5": rows(count, 4, WIDTH, seed=seed),
        "prompt_embeds_llama3": rows(count, 2, 5, WIDTH, seed=seed + 1).movedim(0, 1),
        "pooled_prompt_embeds": rows(count, POOLED, seed=seed + 2),
    }


def _call(count: int) -> Arguments:
    negative = {f"negative_{name}": value for name, value in _texts(count, 5).items()}
    return {"prompt": None, **_texts(count, 1), **negative, "height": 16, "width": 16}


CASES = [Case("HiDreamImagePipeline", "text to image", _build, _call, GUIDANCE)]
