"""Stable Cascade: a prior that makes small embeddings of a picture, and a decoder that makes the picture of them."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DDPMWuerstchenScheduler, StableCascadeDecoderPipeline, StableCascadePriorPipeline
from diffusers.models.unets import StableCascadeUNet
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from transformers import CLIPTextModelWithProjection

from ... import tiny
from ..parts_images import fill, rows
from . import Arguments, Case

WIDTH = 16
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 3.0}}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}
MODEL: dict[str, Any] = {
    "conditioning_dim": 16,
    "block_out_channels": (16, 16),
    "num_attention_heads": (2, 2),
    "down_num_layers_per_block": (1, 1),
    "up_num_layers_per_block": (1, 1),
    "timestep_ratio_embedding_dim": 8,
    "clip_text_pooled_in_channels": WIDTH,
}


def _language() -> dict[str, Any]:
    return {
        "text_encoder": tiny._text(CLIPTextModelWithProjection),
        "tokenizer": tiny.tokenizer(),
        "scheduler": DDPMWuerstchenScheduler(),
    }


def _prior() -> StableCascadePriorPipeline:
    torch.manual_seed(0)
    prior = StableCascadeUNet(
        **MODEL,
        in_channels=4,
        out_channels=4,
        clip_text_in_channels=WIDTH,
        clip_image_in_channels=8,
        switch_level=(False,),
    )
    fill(prior)
    return StableCascadePriorPipeline(prior=prior.eval(), **_language(), resolution_multiple=4.0)


def _decoder() -> StableCascadeDecoderPipeline:
    torch.manual_seed(0)
    decoder = StableCascadeUNet(**MODEL, in_channels=4, out_channels=4, effnet_in_channels=4)
    fill(decoder)
    vqgan = PaellaVQModel(bottleneck_blocks=1, embed_dim=8, num_vq_embeddings=4)
    return StableCascadeDecoderPipeline(decoder=decoder.eval(), vqgan=vqgan.eval(), **_language(), latent_dim_scale=2.0)


def _call(count: int) -> Arguments:
    return {"height": 16, "width": 16}


CASES = [
    Case("StableCascadePriorPipeline", "text to image", _prior, _call, GUIDANCE, kernel="ddim", skip=NO_LOADER),
    Case(
        "StableCascadeDecoderPipeline",
        "text to image",
        _decoder,
        lambda count: {"image_embeddings": rows(count, 4, 4, 4)},
        GUIDANCE,
        kernel="ddim",
        trainable=("decoder",),
        skip=NO_LOADER,
    ),
]
REFUSED = {
    "StableCascadeCombinedPipeline": "it runs two pipelines with two schedulers; each of them can be a policy",
}
