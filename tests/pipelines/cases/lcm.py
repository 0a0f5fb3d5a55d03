"""Latent consistency models: a UNet that is told its guidance, and jumps to the data at each step."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import LCMScheduler

from . import Case
from .sd import parts, pictures, unet

GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 8.5}}


def _lcm(name: str) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**parts(unet=unet(time_cond_proj_dim=16), scheduler=LCMScheduler()))


CASES = [
    Case(
        "LatentConsistencyModelPipeline",
        "text to image",
        lambda: _lcm("LatentConsistencyModelPipeline"),
        guidance=GUIDANCE,
        kernel="consistency",
    ),
    Case(
        "LatentConsistencyModelImg2ImgPipeline",
        "image to image",
        lambda: _lcm("LatentConsistencyModelImg2ImgPipeline"),
        lambda count: {"image": pictures(count), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="consistency",
    ),
]
