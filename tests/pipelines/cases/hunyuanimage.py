"""HunyuanImage 2.1 and its refiner, whose guidance is a component of the pipeline and not an argument."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AdaptiveProjectedMixGuidance,
    AutoencoderKLHunyuanImage,
    AutoencoderKLHunyuanImageRefiner,
    FlowMatchEulerDiscreteScheduler,
    HunyuanImagePipeline,
    HunyuanImageRefinerPipeline,
    HunyuanImageTransformer2DModel,
)

from ..parts_images import fill, mask, pictures, rows
from . import Arguments, Case

WIDTH, GLYPHS = 12, 10
GUIDANCE = {"on": {"distilled_guidance_scale": 3.25}, "strong": {"distilled_guidance_scale": 6.0}}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _parts(**settings: Any) -> dict[str, Any]:
    transformer = HunyuanImageTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=WIDTH,
        guidance_embeds=True,
        **settings,
    )
    fill(transformer)
    return {
        "transformer": transformer.eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=5.0),
        # Guidance of two passes, plain until step 1 and projected from there. With momentum a step would depend on
        # what the model said in earlier ones.
        "guider": AdaptiveProjectedMixGuidance(
            guidance_scale=2.5, adaptive_projected_guidance_momentum=None, adaptive_projected_guidance_start_step=1
        ),
        "text_encoder": None,
        "tokenizer": None,
    }


def _base() -> HunyuanImagePipeline:
    torch.manual_seed(0)
    parts = _parts(
        in_channels=4,
        out_channels=4,
        patch_size=(1, 1),
        text_embed_2_dim=GLYPHS,
        rope_axes_dim=(4, 4),
    )
    autoencoder = AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 32),
        layers_per_block=1,
        spatial_compression_ratio=2,
        sample_size=16,
        scaling_factor=0.75,
    )
    return HunyuanImagePipeline(**parts, vae=autoencoder.eval(), text_encoder_2=None, tokenizer_2=None)


def _refiner() -> HunyuanImageRefinerPipeline:
    torch.manual_seed(0)
    # Its latents have the autoencoder's channels of two frames, and the picture that is refined beside them.
    parts = _parts(in_channels=16, out_channels=8, patch_size=(1, 1, 1), rope_axes_dim=(2, 2, 4))
    autoencoder = AutoencoderKLHunyuanImageRefiner(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
    )
    return HunyuanImageRefinerPipeline(**parts, vae=autoencoder.eval())


def _text(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 6, WIDTH),
        "prompt_embeds_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "negative_prompt_embeds_mask": mask(count, 6),
        "height": 16,
        "width": 16,
    }


def _call(count: int) -> Arguments:
    return {
        **_text(count),
        "prompt_embeds_2": rows(count, 4, GLYPHS, seed=2),
        "prompt_embeds_mask_2": mask(count, 4),
        "negative_prompt_embeds_2": rows(count, 4, GLYPHS, seed=3),
        "negative_prompt_embeds_mask_2": mask(count, 4),
        "height": 8,
        "width": 8,
    }


CASES = [
    Case("HunyuanImagePipeline", "text to image", _base, _call, GUIDANCE, skip=NO_LOADER),
    Case(
        "HunyuanImageRefinerPipeline",
        "image to image",
        _refiner,
        lambda count: {**_text(count), "image": pictures(count)},
        GUIDANCE,
        skip=NO_LOADER,
    ),
]
