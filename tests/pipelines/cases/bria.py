"""Bria 3.2 and FIBO."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    BriaFibo2Pipeline,
    BriaFibo2Transformer2DModel,
    BriaFiboEditPipeline,
    BriaFiboPipeline,
    BriaFiboTransformer2DModel,
    BriaPipeline,
    BriaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from ... import tiny
from ..parts_images import mask, photos, rows
from . import Arguments, Case
from .flux2 import autoencoder
from .sd3 import awake, joined

SHAPE: dict[str, Any] = {
    "patch_size": 1,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "axes_dims_rope": (4, 4, 8),
}
CFG = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}


def bria() -> Any:
    """BriaPipeline, with the T5 and the autoencoder of the tiny FLUX; the class takes twice its latents' size."""
    components = tiny.flux().components
    torch.manual_seed(0)
    transformer = BriaTransformer2DModel(in_channels=16, joint_attention_dim=16, **SHAPE).eval()
    text = {"text_encoder": components["text_encoder_2"], "tokenizer": components["tokenizer_2"]}
    return joined(BriaPipeline, components, transformer=transformer, **text)


def fibo(kind: type) -> Any:
    """A class of FIBO: every layer of the denoiser sees one of the language model. Latents a 16th of the picture."""
    words = tiny.tokenizer()
    torch.manual_seed(0)
    language = SmolLM3Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    transformer = BriaFiboTransformer2DModel(in_channels=4, joint_attention_dim=32, text_encoder_dim=16, **SHAPE)
    vae = AutoencoderKLWan(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False] * 4,
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 0.8, 1.2, 2.0],
        patch_size=None,
        scale_factor_spatial=16,
    )
    return kind(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=SmolLM3ForCausalLM(language).eval(),
        tokenizer=words,
    )


def fibo2() -> Any:
    """FIBO 2: every second block attends to the text too; embeddings in place of texts."""
    torch.manual_seed(0)
    transformer = BriaFibo2Transformer2DModel(
        in_channels=4,
        patch_size=2,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        cap_feat_dim=12,
        injection_layer_ids=(0,),
        perceiver_num_layers=1,
        min_num_gist_tokens=2,
        max_num_gist_tokens=4,
        gist_step=2,
        gist_min_text_len=4,
        gist_max_text_len=16,
        axes_dims=(4, 6, 6),
        axes_lens=(32, 32, 32),
    )
    pipe = BriaFibo2Pipeline(
        transformer=awake(transformer),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=autoencoder(),
        text_encoder=None,
        processor=None,
    )
    pipe.default_sample_size = 8  # times 4: the class scales reference pictures to the area of such a square
    pipe.text_encoder_image_size = 32
    return pipe


def _fibo2(count: int) -> Arguments:
    return {
        "prompt_embeds": rows(count, 2, 6, 12, seed=1),
        "prompt_embeds_mask": mask(count, 6).bool(),
        "negative_prompt_embeds": rows(count, 2, 5, 12, seed=2),
        "negative_prompt_embeds_mask": mask(count, 5).bool(),
        "height": 32,
        "width": 32,
    }


def _call(count: int) -> dict[str, Any]:
    negative = ["a blue circle", "three green squares"][:count]
    return {"height": 64, "width": 64, "max_sequence_length": 12, "negative_prompt": negative}


def _edit(count: int) -> Arguments:
    """A reference picture, which the samples of a call share, and prompts in the form that the class wants."""
    prompts = [json.dumps({"edit_instruction": text}) for text in ("a red circle", "two blue squares")[:count]]
    return {**_call(count), "prompt": prompts, "image": photos(1, 64), "_auto_resize": False}


CASES = [
    Case(
        "BriaPipeline",
        "text to image",
        bria,
        call=lambda count: {**_call(count), "height": 16, "width": 16},
        guidance={
            "off": {"guidance_scale": 1.0},
            "normalized": {"guidance_scale": 4.0, "normalize": True, "clip_value": 1.5},
            "on": {"guidance_scale": 4.0},
        },
        skip={"lora": "diffusers has no LoRA loader for this class"},
    ),
    Case("BriaFiboPipeline", "text to image", partial(fibo, BriaFiboPipeline), call=_call, guidance=CFG),
    Case("BriaFibo2Pipeline", "text to image", fibo2, _fibo2, {**CFG, "edit": {**CFG["on"], "image": photos(1, 32)}}),
    Case("BriaFiboEditPipeline", "image editing", partial(fibo, BriaFiboEditPipeline), call=_edit, guidance=CFG),
]
