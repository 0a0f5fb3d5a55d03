"""OmniGen: one language model reads text and pictures and makes pictures, in time that runs from noise to data."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, OmniGenPipeline, OmniGenTransformer2DModel

from .. import qwen_vl
from ..parts_images import fill, photos, vae
from . import Arguments, Case

PLACE = "<img><|image_1|></img> "


def _build() -> OmniGenPipeline:
    torch.manual_seed(0)
    words = qwen_vl.tokenizer()
    transformer = OmniGenTransformer2DModel(
        hidden_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        num_layers=2,
        pad_token_id=words.pad_token_id,
        vocab_size=len(words),
        rope_scaling={"long_factor": [1.0, 1.5, 2.0, 3.0], "short_factor": [1.0, 1.0, 1.0, 1.0]},
        pos_embed_max_size=8,
        time_step_dim=16,
    )
    fill(transformer)
    return OmniGenPipeline(
        transformer=transformer.eval(),
        vae=vae(4, levels=4),
        scheduler=FlowMatchEulerDiscreteScheduler(invert_sigmas=True, num_train_timesteps=1),
        tokenizer=words,
    )


def _call(count: int) -> Arguments:
    return {"height": 32, "width": 32}


GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "editing": {
        "prompt": [f"{PLACE}in red", f"{PLACE}in blue"],
        "input_images": [[photo] for photo in photos(2, 32)],
        "guidance_scale": 2.5,
        "img_guidance_scale": 1.6,
    },
    "on": {"guidance_scale": 2.5},
}

CASES = [
    Case(
        "OmniGenPipeline",
        "text to image",
        _build,
        _call,
        GUIDANCE,
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
