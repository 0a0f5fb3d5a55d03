"""Motif-Video: text and pictures to video, by a guider object."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import (
    AdaptiveProjectedGuidance,
    ClassifierFreeGuidance,
    MotifVideoImage2VideoPipeline,
    MotifVideoPipeline,
    MotifVideoTransformer3DModel,
)

from .. import video_parts as parts
from . import Case

WORDS = 6
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _common(guider: Any, **settings: Any) -> dict[str, Any]:
    transformer = MotifVideoTransformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=1,
        num_single_layers=1,
        patch_size=1,
        patch_size_t=1,
        qk_norm="rms_norm",
        text_embed_dim=16,
        rope_axes_dim=(4, 4, 4),
        **settings,
    ).eval()
    return {
        "scheduler": parts.flow_euler(shift=7.0),
        "vae": parts.wan_vae(),
        "text_encoder": None,
        "tokenizer": None,
        "transformer": transformer,
        "guider": guider,
        "feature_extractor": None,
    }


def text_to_video(guider: type, **settings: Any) -> MotifVideoPipeline:
    """A guider object instead of a scale."""
    torch.manual_seed(0)
    return MotifVideoPipeline(**_common(guider(**settings)))


def image_to_video(guider: type, **settings: Any) -> MotifVideoImage2VideoPipeline:
    """A sampled latent of the picture stands beside the latents."""
    torch.manual_seed(0)
    return MotifVideoImage2VideoPipeline(**_common(guider(**settings)))


def _prompts(count: int) -> dict[str, Any]:
    mask = torch.ones(count, WORDS)
    mask[0, -2:] = 0
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "prompt_embeds": parts.numbers(count, WORDS, 16),
        "negative_prompt_embeds": parts.numbers(count, WORDS, 16, seed=1),
        "prompt_attention_mask": mask,
        "negative_prompt_attention_mask": mask,
    }


def _picture(count: int) -> dict[str, Any]:
    return {**_prompts(count), "prompt": None, "image": parts.picture(seed=1)}


def _cases(name: str, task: str, build: Any, call: Any, samples: int) -> list[Case]:
    """A guider belongs to the pipeline and not to its call: two cases."""
    off, on = partial(build, ClassifierFreeGuidance, guidance_scale=1.0), partial(build, AdaptiveProjectedGuidance)
    return [
        Case(name, task, on, call, {"on": {}}, samples=samples, skip=NO_LOADER),
        Case(f"{name}[no guidance]", task, off, call, {"off": {}}, samples=samples, skip=NO_LOADER),
    ]


CASES = [
    *_cases("MotifVideoPipeline", "text to video", text_to_video, _prompts, 2),
    # It takes one picture, and does not repeat its latents for the other samples.
    *_cases("MotifVideoImage2VideoPipeline", "image to video", image_to_video, _picture, 1),
]
