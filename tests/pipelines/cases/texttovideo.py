"""ModelScope's text-to-video and I2VGen-XL, which diffusers keeps but no longer develops."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    I2VGenXLPipeline,
    I2VGenXLUNet,
    PIAPipeline,
    TextToVideoSDPipeline,
    UNet3DConditionModel,
    VideoToVideoSDPipeline,
)

from ... import tiny
from .. import video_parts as parts
from . import Case, animatediff, sd

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 7.5, "negative_prompt": ["a blue circle"] * 2},
}
ONE_GUIDANCE = {**GUIDANCE, "on": {"guidance_scale": 7.5, "negative_prompt": "a blue circle"}}
NO_LOADER = {"lora": "diffusers' loader asks this UNet for a method that it lacks"}


def _common() -> dict[str, Any]:
    unet = UNet3DConditionModel(
        block_out_channels=(8, 8),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=2,
    ).eval()
    return {
        "vae": AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8).eval(),
        "text_encoder": parts.clip_text(),
        "tokenizer": tiny.tokenizer(),
        "unet": unet,
        "scheduler": DDIMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False
        ),
    }


def text_to_video() -> TextToVideoSDPipeline:
    """Gives its scheduler the frames of all videos as one batch."""
    torch.manual_seed(0)
    return TextToVideoSDPipeline(**_common())


def video_to_video() -> VideoToVideoSDPipeline:
    """Starts from a noised video."""
    torch.manual_seed(0)
    return VideoToVideoSDPipeline(**_common())


def _frames(count: int) -> dict[str, Any]:
    return {"height": 8, "width": 8, "num_frames": 3}


def _video(count: int) -> dict[str, Any]:
    return {"video": parts.film(3, size=8), "strength": 0.8}


def picture_to_video() -> I2VGenXLPipeline:
    """I2VGen-XL: a sampled latent of the picture, the picture through CLIP, and the prompt."""
    torch.manual_seed(0)
    unet = I2VGenXLUNet(
        block_out_channels=(8, 8),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=2,
    ).eval()
    return I2VGenXLPipeline(
        **{**_common(), "unet": unet},
        image_encoder=parts.clip_vision(16, size=32, patch=16),
        feature_extractor=parts.clip_pictures(32),
    )


def animated_picture() -> PIAPipeline:
    """PIA: AnimateDiff's motion modules, with the picture and its likeness to each frame beside the latents."""
    torch.manual_seed(1)
    components = sd.parts(unet=sd.unet(), motion_adapter=animatediff.motion(conv_in_channels=9))
    components = {**components, "scheduler": sd.schedule(beta_schedule="linear")}
    for unknown in ("safety_checker", "requires_safety_checker"):
        del components[unknown]
    return PIAPipeline(**components)


def _pictures(count: int) -> dict[str, Any]:
    pictures = [parts.picture(8, seed=seed) for seed in range(count)]
    # Without its default clip_skip, for which diffusers 0.42 reads an attribute that transformers 5 has no more.
    return {**_frames(count), "image": pictures, "clip_skip": None}


def _animated(count: int) -> dict[str, Any]:
    return {**animatediff.animated(count), "image": [parts.picture(sd.SIZE, seed=seed) for seed in range(count)]}


CASES = [
    Case("TextToVideoSDPipeline", "text to video", text_to_video, _frames, GUIDANCE, "ddim", skip=NO_LOADER),
    Case("I2VGenXLPipeline", "image to video", picture_to_video, _pictures, GUIDANCE, "ddim", skip=NO_LOADER),
    Case("PIAPipeline", "image to video", animated_picture, _animated, GUIDANCE, "ddim"),
    # With a generator for each sample it encodes as many frames as there are generators.
    Case(
        "VideoToVideoSDPipeline",
        "video to video",
        video_to_video,
        _video,
        ONE_GUIDANCE,
        "ddim",
        samples=1,
        skip=NO_LOADER,
    ),
]

_WARPED = "it noises its latents again on the way, warps them into frames, and goes on with a copy of the scheduler"
REFUSED = {"TextToVideoZeroPipeline": _WARPED, "TextToVideoZeroSDXLPipeline": _WARPED}
