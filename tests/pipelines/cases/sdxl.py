"""Stable Diffusion XL, its tasks, and Kolors."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import EulerDiscreteScheduler, T2IAdapter, UNet2DConditionModel
from diffusers.pipelines.kolors import ChatGLMModel
from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig
from torch import nn
from transformers import BatchFeature, CLIPTextModelWithProjection

from ... import tiny
from . import Case
from .sd import RESCALED, SIZE, masks, pictures, schedule, text_encoder, unet, vae

WIDTH = 16
"""Width of each text encoder."""
SIZE_WIDTH = 8
"""Width of the embedding of each of the six numbers about a picture's size."""
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 5.5}}


def xl_unet(**changes: Any) -> UNet2DConditionModel:
    """Like SD's, but told the picture's sizes and the pooled text."""
    config = {
        "cross_attention_dim": 2 * WIDTH,
        "use_linear_projection": True,
        "transformer_layers_per_block": (1, 1),
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": SIZE_WIDTH,
        "projection_class_embeddings_input_dim": 6 * SIZE_WIDTH + WIDTH,
    }
    return unet(**{**config, **changes})


def xl_parts(**changes: Any) -> dict[str, Any]:
    """The components of Stable Diffusion XL."""
    torch.manual_seed(0)
    components = {
        "vae": vae(force_upcast=False),
        "text_encoder": text_encoder(),
        "text_encoder_2": text_encoder(CLIPTextModelWithProjection),
        "tokenizer": tiny.tokenizer(),
        "tokenizer_2": tiny.tokenizer(),
        "unet": xl_unet(),
        "scheduler": schedule(EulerDiscreteScheduler, timestep_spacing="leading"),
    }
    return {**components, **changes}


class ChatGLMWords:
    """ChatGLM's tokenizer with the words of the shapes world: padding comes first, and positions are told."""

    def __call__(self, prompt: list[str], max_length: int, **kwargs: Any) -> BatchFeature:
        """Token ids, mask and positions `[B, max_length]`."""
        words = tiny.tokenizer()(prompt, max_length=max_length, padding_side="left", **kwargs)
        positions = (words.attention_mask.cumsum(dim=-1) - 1).clamp(min=0)
        return BatchFeature({**words, "position_ids": positions})


ONE_ENCODER = {"lora": "diffusers' LoRA loader for this class asks for a second text encoder, which it does not have"}


@torch.no_grad()
def drawn(module: nn.Module) -> nn.Module:
    """Draw all weights: a ChatGLM that is not loaded from a file has none."""
    for parameter in module.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return module.eval()


def kolors_parts(**changes: Any) -> dict[str, Any]:
    """The components of Kolors."""
    torch.manual_seed(0)
    chatglm = ChatGLMConfig(
        num_layers=2,
        padded_vocab_size=len(tiny.tokenizer()),
        hidden_size=WIDTH,
        ffn_hidden_size=32,
        kv_channels=8,
        num_attention_heads=2,
        seq_length=16,
        add_qkv_bias=True,
        original_rope=True,
    )
    components = {
        "vae": vae(force_upcast=False),
        "text_encoder": drawn(ChatGLMModel(chatglm)),
        "tokenizer": ChatGLMWords(),
        "unet": xl_unet(cross_attention_dim=WIDTH),
        "scheduler": schedule(EulerDiscreteScheduler, timestep_spacing="leading"),
    }
    return {**components, **changes}


def _xl(name: str, **unet_changes: Any) -> Any:
    torch.manual_seed(1)
    return getattr(diffusers, name)(**xl_parts(unet=xl_unet(**unet_changes)))


ADAPTED = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
"""A UNet that takes what an adapter adds before its first level shrinks: with attention there."""


def adapter() -> T2IAdapter:
    """A control that is added to what a UNet's two levels give."""
    torch.manual_seed(2)
    return T2IAdapter(channels=[8, 16], num_res_blocks=1, downscale_factor=1, adapter_type="full_adapter").eval()


def _adapted() -> Any:
    torch.manual_seed(1)
    return diffusers.StableDiffusionXLAdapterPipeline(**xl_parts(unet=xl_unet(**ADAPTED), adapter=adapter()))


CASES = [
    Case(
        "StableDiffusionXLPipeline",
        "text to image",
        lambda: _xl("StableDiffusionXLPipeline"),
        guidance=RESCALED,
        kernel="ddim",
        fast=True,
    ),
    Case(
        "StableDiffusionXLImg2ImgPipeline",
        "image to image",
        lambda: _xl("StableDiffusionXLImg2ImgPipeline"),
        lambda count: {"image": pictures(count), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLInpaintPipeline",
        "inpainting",
        lambda: _xl("StableDiffusionXLInpaintPipeline"),
        lambda count: {
            "image": pictures(count),
            "mask_image": masks(count),
            "height": SIZE,
            "width": SIZE,
            "strength": 0.8,
        },
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLInstructPix2PixPipeline",
        "image editing",
        lambda: _xl("StableDiffusionXLInstructPix2PixPipeline", in_channels=8),
        lambda count: {"image": pictures(count), "height": SIZE, "width": SIZE},
        guidance={
            "off": {"guidance_scale": 1.0, "image_guidance_scale": 1.0},
            "on": {"guidance_scale": 5.5, "image_guidance_scale": 1.5},
        },
        kernel="ddim",
    ),
    Case(
        "StableDiffusionXLAdapterPipeline",
        "control",
        _adapted,
        lambda count: {"image": pictures(count), "height": SIZE, "width": SIZE},
        guidance={**GUIDANCE, "early": {"guidance_scale": 5.5, "adapter_conditioning_factor": 0.5}},
        kernel="ddim",
    ),
    Case(
        "KolorsPipeline",
        "text to image",
        lambda: diffusers.KolorsPipeline(**kolors_parts()),
        lambda count: {"max_sequence_length": 8},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "KolorsImg2ImgPipeline",
        "image to image",
        lambda: diffusers.KolorsImg2ImgPipeline(**kolors_parts()),
        lambda count: {"max_sequence_length": 8, "image": pictures(count), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=ONE_ENCODER,
    ),
]
