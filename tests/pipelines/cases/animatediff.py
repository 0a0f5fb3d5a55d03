"""AnimateDiff: Stable Diffusion's UNet with motion modules, and its tasks."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import MotionAdapter, SparseControlNetModel
from torch import Tensor

from . import Arguments, Case
from .sd import GUIDANCE, SIZE, parts, pictures, schedule, stirred, unet
from .sd_control import CONTROL, WINDOW, controlnet
from .sd_pag import guidance as pag_guidance
from .sdxl import xl_parts, xl_unet

FRAMES = 2
"""As many as samples: these pipelines compare the length of a list of controls with the number of frames."""


def motion(**changes: Any) -> Any:
    """Motion modules for `sd.unet`."""
    torch.manual_seed(2)
    config = {
        "block_out_channels": (8, 16),
        "motion_layers_per_block": 1,
        "motion_mid_block_layers_per_block": 1,
        "motion_num_attention_heads": 2,
        "motion_norm_num_groups": 4,
        "motion_max_seq_length": 8,
    }
    return stirred(MotionAdapter(**{**config, **changes}))


def _animated(name: str, **more: Any) -> Any:
    torch.manual_seed(1)
    components = parts(unet=unet(), motion_adapter=motion(), scheduler=schedule(beta_schedule="linear"), **more)
    for unknown in ("safety_checker", "requires_safety_checker"):
        del components[unknown]
    return getattr(diffusers, name)(**components)


def _xl() -> Any:
    torch.manual_seed(1)
    adapter = motion(use_motion_mid_block=False)
    return diffusers.AnimateDiffSDXLPipeline(**xl_parts(unet=xl_unet(), motion_adapter=adapter))


def _sparse() -> Any:
    torch.manual_seed(3)
    settings = {key: value for key, value in CONTROL.items() if key != "attention_head_dim"}
    control = SparseControlNetModel(
        **{
            **settings,
            "down_block_types": ("DownBlockMotion", "CrossAttnDownBlockMotion"),
            "cross_attention_dim": 16,
            "num_attention_heads": 2,
            "motion_max_seq_length": 8,
            "motion_num_attention_heads": 2,
            "conditioning_channels": 4,
            "use_simplified_condition_embedding": True,
        }
    )
    return _animated("AnimateDiffSparseControlNetPipeline", controlnet=stirred(control))


def frames(count: int, seed: int = 0) -> Tensor:
    """`[count, FRAMES, 3, SIZE, SIZE]` in [0, 1]."""
    return pictures(count * FRAMES, seed=seed).reshape(count, FRAMES, 3, SIZE, SIZE)


def controls(count: int) -> list[list[Tensor]]:
    """A control for each frame of each sample."""
    return [list(video) for video in frames(count, seed=5)]


def animated(count: int) -> Arguments:
    """Length and sizes."""
    return {"num_frames": FRAMES, "height": SIZE, "width": SIZE}


CASES = [
    Case(
        "AnimateDiffPipeline",
        "text to video",
        lambda: _animated("AnimateDiffPipeline"),
        animated,
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case("AnimateDiffSDXLPipeline", "text to video", _xl, animated, guidance=GUIDANCE, kernel="ddim"),
    Case(
        "AnimateDiffPAGPipeline",
        "text to video",
        lambda: _animated("AnimateDiffPAGPipeline", pag_applied_layers=["mid"]),
        animated,
        guidance=pag_guidance(6.5),
        kernel="ddim",
    ),
    Case(
        "AnimateDiffControlNetPipeline",
        "control",
        lambda: _animated("AnimateDiffControlNetPipeline", controlnet=controlnet()),
        lambda count: {**animated(count), "conditioning_frames": controls(count)},
        guidance={**GUIDANCE, "window": {**GUIDANCE["on"], **WINDOW}},
        kernel="ddim",
    ),
    Case(
        "AnimateDiffSparseControlNetPipeline",
        "control",
        _sparse,
        lambda count: {
            **animated(count),
            "conditioning_frames": list(pictures(1, seed=5)[:, None]),
            "controlnet_frame_indices": [1],
        },
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "AnimateDiffVideoToVideoPipeline",
        "video to video",
        lambda: _animated("AnimateDiffVideoToVideoPipeline"),
        lambda count: {"video": frames(count), "height": SIZE, "width": SIZE, "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "AnimateDiffVideoToVideoControlNetPipeline",
        "control",
        lambda: _animated("AnimateDiffVideoToVideoControlNetPipeline", controlnet=controlnet()),
        lambda count: {
            "video": frames(count),
            "conditioning_frames": controls(count),
            "height": SIZE,
            "width": SIZE,
            "strength": 0.8,
        },
        guidance=GUIDANCE,
        kernel="ddim",
    ),
]
