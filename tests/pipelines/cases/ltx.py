"""LTX-Video, and LTX 2 with sound."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    LTXConditionPipeline,
    LTXImageToVideoPipeline,
    LTXPipeline,
    LTXVideoTransformer3DModel,
)
from diffusers.pipelines.ltx.pipeline_ltx_condition import LTXVideoCondition

from ... import tiny
from .. import video_parts as parts
from . import Case

SIZE = {"height": 32, "width": 32, "num_frames": 9, "max_sequence_length": 16}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 4.0, "negative_prompt": "a blue circle"},
    "rescaled": {"guidance_scale": 4.0, "guidance_rescale": 0.5},
}


def _vae(**settings: Any) -> AutoencoderKLLTXVideo:
    known: dict[str, Any] = {
        "latent_channels": 8,
        "block_out_channels": (8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8),
        "layers_per_block": (1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1),
        "spatio_temporal_scaling": (True, True, True),
        "decoder_spatio_temporal_scaling": (True, True, True),
        "decoder_inject_noise": (False,) * 4,
        "upsample_residual": (False,) * 3,
        "upsample_factor": (1, 1, 1),
        "patch_size": 1,
        "patch_size_t": 1,
    }
    return AutoencoderKLLTXVideo(**{**known, **settings}).eval()


def _common(**settings: Any) -> dict[str, Any]:
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=2,
        caption_channels=16,
    ).eval()
    return {
        "scheduler": parts.flow_euler(**settings),
        "vae": _vae(),
        "text_encoder": parts.t5(),
        "tokenizer": tiny.tokenizer(),
        "transformer": transformer,
    }


def text_to_video() -> LTXPipeline:
    """Packed latents; a shift that depends on their number."""
    torch.manual_seed(0)
    return LTXPipeline(**_common(use_dynamic_shifting=True))


def image_to_video() -> LTXImageToVideoPipeline:
    """The first frame is given; the others alone are stepped."""
    torch.manual_seed(0)
    return LTXImageToVideoPipeline(**_common(use_dynamic_shifting=True))


def condition() -> LTXConditionPipeline:
    """Given frames anywhere, each token with a timestep of its own."""
    torch.manual_seed(0)
    return LTXConditionPipeline(**_common(shift=1.0))


def _prompts(count: int) -> dict[str, Any]:
    return dict(SIZE)


def _pictures(count: int) -> dict[str, Any]:
    return {**SIZE, "image": [parts.picture(seed=seed) for seed in range(count)]}


def _conditions(count: int) -> dict[str, Any]:
    picture = LTXVideoCondition(image=parts.picture(seed=1), frame_index=0, strength=0.9)
    return {**SIZE, "conditions": [picture]}


CASES = [
    Case("LTXPipeline", "text to video", text_to_video, _prompts, GUIDANCE),
    Case("LTXImageToVideoPipeline", "image to video", image_to_video, _pictures, GUIDANCE),
    Case("LTXConditionPipeline", "image to video", condition, _conditions, GUIDANCE),
]

REFUSED = {
    "LTXLatentUpsamplePipeline": "it enlarges latents in one pass and has no scheduler",
}
