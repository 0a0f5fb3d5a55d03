"""Stable Video Diffusion: pictures to video, on EDM's schedule."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLTemporalDecoder,
    EulerDiscreteScheduler,
    StableVideoDiffusionPipeline,
    UNetSpatioTemporalConditionModel,
)
from transformers import CLIPImageProcessor

from .. import video_parts as parts
from . import Case

GUIDANCE = {
    "off, worked out": {"max_guidance_scale": 1.0},  # the velocity is worked out from v
    "on": {"min_guidance_scale": 1.0, "max_guidance_scale": 3.0},
}


def image_to_video() -> StableVideoDiffusionPipeline:
    """A guidance of its own for each frame; the picture noised, encoded, and beside the latents."""
    torch.manual_seed(0)
    unet = UNetSpatioTemporalConditionModel(
        block_out_channels=(32, 32),
        layers_per_block=1,
        sample_size=8,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=8,
        num_attention_heads=2,
        projection_class_embeddings_input_dim=24,
        addition_time_embed_dim=8,
        num_frames=3,
    ).eval()
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        sigma_max=700.0,
        sigma_min=0.002,
        steps_offset=1,
        timestep_spacing="leading",
        timestep_type="continuous",
        use_karras_sigmas=True,
    )
    return StableVideoDiffusionPipeline(
        vae=AutoencoderKLTemporalDecoder(block_out_channels=(32, 32), latent_channels=4, layers_per_block=1).eval(),
        image_encoder=parts.clip_vision(8, size=224, patch=56),
        unet=unet,
        scheduler=scheduler,
        feature_extractor=CLIPImageProcessor(),
    )


def _pictures(count: int) -> dict[str, Any]:
    pictures = [parts.picture(seed=seed) for seed in range(count)]
    return {"image": pictures, "height": 16, "width": 16, "num_frames": 3}


CASES = [
    Case(
        "StableVideoDiffusionPipeline",
        "image to video",
        image_to_video,
        _pictures,
        GUIDANCE,
        kernel="flow_cps",
        # The picture is one token: attention to it has no choice, and its queries and keys no effect.
        targets=("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_v", "attn2.to_out.0"),
        skip={"lora": "diffusers has no LoRA loader for this class"},
    )
]
