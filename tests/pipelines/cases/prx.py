"""PRX, in latents and in pixels; with guidance the classes take one prompt a call."""

from __future__ import annotations

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, PRXPipeline, PRXPixelPipeline, PRXTransformer2DModel

from ..parts_images import fill, mask, rows, vae
from . import Arguments, Case

WIDTH = 12
TARGETS = ("img_qkv_proj", "txt_kv_proj", "to_out.0")
NO_LOADER = {"lora": "diffusers cannot load a LoRA into this transformer: it has no add_adapter"}


def _transformer(channels: int, **settings: int) -> PRXTransformer2DModel:
    torch.manual_seed(0)
    made = PRXTransformer2DModel(
        in_channels=channels,
        patch_size=2,
        context_in_dim=WIDTH,
        hidden_size=16,
        mlp_ratio=2.0,
        num_heads=2,
        depth=2,
        axes_dim=[4, 4],
        **settings,
    )
    fill(made)
    return made.eval()


def _latent() -> PRXPipeline:
    return PRXPipeline(
        transformer=_transformer(4),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=None,
        tokenizer=None,
        vae=vae(4),
    )


def _pixel() -> PRXPixelPipeline:
    return PRXPixelPipeline(
        transformer=_transformer(3, bottleneck_size=8),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=None,
        tokenizer=None,
    )


def _call(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_attention_mask": mask(count, 6).bool(),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_attention_mask": mask(count, 6).bool(),
        "height": 16,
        "width": 16,
        "use_resolution_binning": False,
    }


CASES = [
    Case(
        "PRXPipeline",
        "text to image",
        _latent,
        _call,
        {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}},
        targets=TARGETS,
        samples=1,
        skip=NO_LOADER,
    ),
    Case(
        "PRXPixelPipeline",
        "text to image",
        _pixel,
        _call,
        # Not "off": without guidance too the pipeline makes a velocity of what its model says, which is x_0.
        {"alone": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}},
        targets=TARGETS,
        samples=1,
        skip=NO_LOADER,
    ),
]
