"""CogVideoX: text, pictures, videos and controls to video."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    CogVideoXDDIMScheduler,
    CogVideoXDPMScheduler,
    CogVideoXFunControlPipeline,
    CogVideoXImageToVideoPipeline,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    CogVideoXVideoToVideoPipeline,
)

from ... import tiny
from .. import video_parts as parts
from . import Case

SIZE = {"height": 16, "width": 16, "max_sequence_length": 16}
GUIDANCE = {
    "off": {"guidance_scale": 1.0},
    "on": {"guidance_scale": 6.0, "negative_prompt": "a blue circle"},
    "dynamic": {"guidance_scale": 6.0, "use_dynamic_cfg": True},
}
BETAS = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "snr_shift_scale": 1.0,
    "timestep_spacing": "trailing",
}


def vae() -> AutoencoderKLCogVideoX:
    """With a spatial factor of 4."""
    return AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 3,
        up_block_types=("CogVideoXUpBlock3D",) * 3,
        block_out_channels=(8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
        sample_height=16,
        sample_width=16,
    ).eval()


def scheduler(kind: type = CogVideoXDDIMScheduler) -> Any:
    """As it ships."""
    return kind(**BETAS)


def _common(kind: type = CogVideoXDDIMScheduler, **settings: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 4,
        "text_embed_dim": 16,
        "num_layers": 2,
        "sample_width": 4,
        "sample_height": 4,
        "sample_frames": 5,
        "patch_size": 2,
        "temporal_compression_ratio": 4,
        "max_text_seq_length": 16,
        "use_rotary_positional_embeddings": True,
    }
    return {
        "tokenizer": tiny.tokenizer(),
        "text_encoder": parts.t5(),
        "vae": vae(),
        "transformer": CogVideoXTransformer3DModel(**{**known, **settings}).eval(),
        "scheduler": scheduler(kind),
    }


def text_to_video() -> CogVideoXPipeline:
    """CogVideoX-2B: learned positions, scheduled by DDIM."""
    torch.manual_seed(0)
    return CogVideoXPipeline(**_common(use_rotary_positional_embeddings=False))


def text_to_video_dpm() -> CogVideoXPipeline:
    """CogVideoX-5B: rotary positions, scheduled by DPM."""
    torch.manual_seed(0)
    return CogVideoXPipeline(**_common(CogVideoXDPMScheduler))


def image_to_video() -> CogVideoXImageToVideoPipeline:
    """A sampled latent of the picture stands beside the latents."""
    torch.manual_seed(0)
    return CogVideoXImageToVideoPipeline(**_common(in_channels=8))


def video_to_video() -> CogVideoXVideoToVideoPipeline:
    """Starts from a noised video."""
    torch.manual_seed(0)
    return CogVideoXVideoToVideoPipeline(**_common())


def control() -> CogVideoXFunControlPipeline:
    """A control video beside the latents."""
    torch.manual_seed(0)
    return CogVideoXFunControlPipeline(**_common(in_channels=8))


def _frames(count: int) -> dict[str, Any]:
    return {**SIZE, "num_frames": 5}


def _pictures(count: int) -> dict[str, Any]:
    return {**_frames(count), "image": [parts.picture(seed=seed) for seed in range(count)]}


def _videos(count: int) -> dict[str, Any]:
    return {**SIZE, "video": [parts.film(5, seed=seed) for seed in range(count)], "strength": 0.8}


def _controls(count: int) -> dict[str, Any]:
    return {**SIZE, "control_video": [parts.film(5, seed=seed) for seed in range(count)]}


CASES = [
    Case("CogVideoXPipeline", "text to video", text_to_video, _frames, GUIDANCE, "ddim"),
    Case("CogVideoXPipeline[DPM]", "text to video", text_to_video_dpm, _frames, GUIDANCE, "ddim"),
    Case("CogVideoXImageToVideoPipeline", "image to video", image_to_video, _pictures, GUIDANCE, "ddim"),
    Case("CogVideoXVideoToVideoPipeline", "video to video", video_to_video, _videos, GUIDANCE, "ddim"),
    Case("CogVideoXFunControlPipeline", "control", control, _controls, GUIDANCE, "ddim"),
]
