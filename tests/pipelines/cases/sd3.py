"""Stable Diffusion 3 and its relatives."""

from __future__ import annotations

from ... import tiny
from . import Case

GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.5},
    "skip-layer": {
        "guidance_scale": 4.5,
        "skip_guidance_layers": [0],
        "skip_layer_guidance_start": 0.2,
        "skip_layer_guidance_stop": 0.6,
    },
}

CASES = [Case("StableDiffusion3Pipeline", "text to image", tiny.sd3, guidance=GUIDANCE, fast=True)]
