"""EasyAnimate: text to video, inpainting and control."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLMagvit,
    EasyAnimateInpaintPipeline,
    EasyAnimatePipeline,
    EasyAnimateTransformer3DModel,
)
from torch import Tensor

from .. import video_parts as parts
from . import Case

WORDS = 6
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 5.0},
    "rescaled": {"guidance_scale": 5.0, "guidance_rescale": 0.5},
}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _common(channels: int) -> dict[str, Any]:
    transformer = EasyAnimateTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=channels,
        out_channels=4,
        time_embed_dim=4,
        text_embed_dim=16,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        patch_size=2,
        mmdit_layers=2,
        time_position_encoding_type="3d_rope",
        resize_inpaint_mask_directly=False,
    ).eval()
    vae = AutoencoderKLMagvit(
        in_channels=3,
        out_channels=3,
        down_block_types=("SpatialDownBlock3D", "SpatialTemporalDownBlock3D", "SpatialTemporalDownBlock3D"),
        up_block_types=("SpatialUpBlock3D", "SpatialTemporalUpBlock3D", "SpatialTemporalUpBlock3D"),
        block_out_channels=(8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        spatial_group_norm=False,
    ).eval()
    return {
        "vae": vae,
        "text_encoder": None,
        "tokenizer": None,
        "transformer": transformer,
        "scheduler": parts.flow_euler(),
    }


def text_to_video() -> EasyAnimatePipeline:
    """A joint transformer of video and text."""
    torch.manual_seed(0)
    return EasyAnimatePipeline(**_common(4))


def inpaint() -> EasyAnimateInpaintPipeline:
    """A mask and a masked video beside the latents."""
    torch.manual_seed(0)
    return EasyAnimateInpaintPipeline(**_common(12))


def _prompts(count: int) -> dict[str, Any]:
    return {
        "height": 16,
        "width": 16,
        "num_frames": 5,
        "prompt_embeds": parts.numbers(count, WORDS, 16),
        "negative_prompt_embeds": parts.numbers(count, WORDS, 16, seed=1),
        "prompt_attention_mask": torch.ones(count, WORDS),
        "negative_prompt_attention_mask": torch.ones(count, WORDS),
    }


def _videos(count: int, seed: int) -> Tensor:
    return parts.numbers(count, 3, 5, 16, 16, seed=seed).sigmoid()


def _masked(count: int) -> dict[str, Any]:
    mask = torch.zeros(count, 1, 5, 16, 16)
    mask[..., 8:] = 1
    return {**_prompts(count), "video": _videos(count, 3), "mask_video": mask}


CASES = [
    Case("EasyAnimatePipeline", "text to video", text_to_video, _prompts, GUIDANCE, skip=NO_LOADER),
    # It draws the noise on the masked video from one generator, not from a list.
    Case("EasyAnimateInpaintPipeline", "inpainting", inpaint, _masked, GUIDANCE, samples=1, skip=NO_LOADER),
]

REFUSED = {
    "EasyAnimateControlPipeline": "it does not run in diffusers 0.42: it gives its encode_prompt an unknown argument",
}
