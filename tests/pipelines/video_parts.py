"""Tiny random parts that the video pipelines of `cases` have in common: text encoders, VAEs, pictures, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from PIL import Image
from torch import Tensor
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5EncoderModel,
)

from .. import tiny


def flow_euler(**settings: Any) -> FlowMatchEulerDiscreteScheduler:
    """Euler steps with a shift of 3, or as ``settings`` say."""
    return FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **settings})


def flow_unipc(**settings: Any) -> UniPCMultistepScheduler:
    """UniPC on flow sigmas, as Wan ships it."""
    known = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return UniPCMultistepScheduler(**{**known, **settings})


def t5(width: int = 16) -> T5EncoderModel:
    """A T5 encoder over the words of the shapes world."""
    config = T5Config(vocab_size=len(tiny.tokenizer()), d_model=width, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return T5EncoderModel(config).eval()


def clip_text(width: int = 16) -> CLIPTextModel:
    """A CLIP text encoder over the words of the shapes world."""
    words = tiny.tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=32,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    return CLIPTextModel(config).eval()


def llama(width: int = 16) -> LlamaModel:
    """A Llama over the words of the shapes world."""
    config = LlamaConfig(
        vocab_size=len(tiny.tokenizer()),
        hidden_size=width,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=128,
        pad_token_id=tiny.tokenizer().pad_token_id,
    )
    return LlamaModel(config).eval()


def clip_vision(width: int = 8, size: int = 8, patch: int = 4) -> CLIPVisionModelWithProjection:
    """A CLIP image encoder."""
    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=16,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=size,
        patch_size=patch,
    )
    return CLIPVisionModelWithProjection(config).eval()


def clip_pictures(size: int = 8) -> CLIPImageProcessor:
    """What prepares pictures for `clip_vision`."""
    return CLIPImageProcessor(size={"shortest_edge": size}, crop_size={"height": size, "width": size})


def wan_vae(channels: int = 4, **settings: Any) -> AutoencoderKLWan:
    """Wan's VAE, but with a spatial factor of 4."""
    known: dict[str, Any] = {
        "base_dim": 4,
        "z_dim": channels,
        "dim_mult": [1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [True, True],
        "latents_mean": [0.1] * channels,
        "latents_std": [1.5] * channels,
        "scale_factor_spatial": 4,
        "scale_factor_temporal": 4,
    }
    return AutoencoderKLWan(**{**known, **settings}).eval()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same each time: embeddings, say."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def picture(size: int = 16, seed: int = 0) -> Image.Image:
    """A picture of coloured noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def film(frames: int, size: int = 16, seed: int = 0) -> list[Image.Image]:
    """A video of coloured noise."""
    return [picture(size, 1000 * seed + frame) for frame in range(frames)]
