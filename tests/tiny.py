"""Tiny random pipelines of the real classes, for tests: no weights from anywhere, a second to build."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
)

from flowrl.pipelines.shapes.train import build_tokenizer

STEPS = 5


@lru_cache(maxsize=1)
def tokenizer() -> CLIPTokenizer:
    """The tokenizer of the shapes world."""
    return build_tokenizer(Path(tempfile.mkdtemp()))


def _vae(channels: int, **kwargs: Any) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8,), norm_num_groups=4, latent_channels=channels, sample_size=16, shift_factor=0.1, **kwargs
    ).eval()


def _text(kind: type) -> Any:
    words = tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return kind(config).eval()


def sd3() -> StableDiffusion3Pipeline:
    """StableDiffusion3Pipeline, 8 x 8 latents, two CLIP text encoders."""
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=4,
    ).eval()
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(4),
        text_encoder=_text(CLIPTextModelWithProjection),
        tokenizer=tokenizer(),
        text_encoder_2=_text(CLIPTextModelWithProjection),
        tokenizer_2=tokenizer(),
        text_encoder_3=None,  # saved as null, which diffusers alone would not load again
        tokenizer_3=None,
    )


def flux() -> FluxPipeline:
    """FluxPipeline with embedded guidance, CLIP and T5."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    t5 = T5Config(vocab_size=len(tokenizer()), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return FluxPipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=_vae(4),
        text_encoder=_text(CLIPTextModel),
        tokenizer=tokenizer(),
        text_encoder_2=T5EncoderModel(t5).eval(),
        tokenizer_2=tokenizer(),
    )


def sd15() -> StableDiffusionPipeline:
    """StableDiffusionPipeline with a UNet that predicts epsilon, scheduled by DDIM."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=4,
    ).eval()
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
    return StableDiffusionPipeline(
        unet=unet,
        scheduler=scheduler,
        vae=_vae(4),
        text_encoder=_text(CLIPTextModel),
        tokenizer=tokenizer(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


PIPELINES: dict[str, Callable[[], Any]] = {"sd3": sd3, "flux": flux, "sd15": sd15}
"""Every tiny pipeline by name."""

CALLS: dict[str, dict[str, Any]] = {
    "sd3": {},
    "flux": {"height": 8, "width": 8, "max_sequence_length": 16},
    "sd15": {},
}
"""Further arguments of each pipeline's call."""

GUIDANCE: dict[str, tuple[float, float]] = {"sd3": (1.0, 4.5), "flux": (1.0, 3.5), "sd15": (1.0, 7.5)}
"""A guidance scale that is off (or neutral) and one that is on."""
