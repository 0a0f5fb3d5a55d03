"""DDPM-type models with other denoisers than SD's UNet: PixArt, HunyuanDiT, DiT, Kandinsky 3."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import (
    AutoencoderKL,
    DDPMScheduler,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    HunyuanDiT2DControlNetModel,
    HunyuanDiT2DModel,
    Kandinsky3UNet,
    PixArtTransformer2DModel,
    VQModel,
)
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel

from ... import tiny
from . import Arguments, Case
from .sd import GUIDANCE, SIZE, pictures, schedule, stirred, vae

NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}
NO_UNET_LOADER = {"lora": "diffusers' LoRA loader does not know this class's UNet"}


def t5() -> T5EncoderModel:
    """T5's encoder, on the words of the shapes world."""
    config = T5Config(vocab_size=len(tiny.tokenizer()), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return T5EncoderModel(config).eval()


def eighth_vae() -> AutoencoderKL:
    """A VAE whose latents have an eighth of the pictures' sides, as some pipelines take for granted."""
    return vae(
        block_out_channels=(4, 4, 4, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
    )


def pixart_parts(**changes: Any) -> dict[str, Any]:
    """The components of PixArt."""
    torch.manual_seed(0)
    transformer = PixArtTransformer2DModel(
        sample_size=SIZE,
        num_layers=2,
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        caption_channels=16,
        cross_attention_dim=16,
    )
    components = {
        "tokenizer": tiny.tokenizer(),
        "text_encoder": t5(),
        "vae": vae(),
        "transformer": stirred(transformer),
        "scheduler": schedule(DPMSolverMultistepScheduler),
    }
    return {**components, **changes}


def pixart_call(count: int) -> Arguments:
    """Sizes that are taken as they are, and captions likewise."""
    sizes = {"height": SIZE, "width": SIZE, "use_resolution_binning": False}
    return {**sizes, "max_sequence_length": 16, "clean_caption": False}


HUNYUAN = {
    "sample_size": SIZE,
    "patch_size": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 4,
    "hidden_size": 32,
    "cross_attention_dim": 16,
    "cross_attention_dim_t5": 16,
    "pooled_projection_dim": 16,
}


def hunyuan_parts(*, layers: int = 2, **changes: Any) -> dict[str, Any]:
    """The components of HunyuanDiT."""
    torch.manual_seed(0)
    bert = BertConfig(
        vocab_size=len(tiny.tokenizer()),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=77,
    )
    components = {
        "vae": eighth_vae(),
        "text_encoder": BertModel(bert).eval(),
        "tokenizer": tiny.tokenizer(),
        "text_encoder_2": t5(),
        "tokenizer_2": tiny.tokenizer(),
        "transformer": stirred(HunyuanDiT2DModel(num_layers=layers, mlp_ratio=2.0, **HUNYUAN)),
        "scheduler": schedule(DDPMScheduler, prediction_type="v_prediction"),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }
    return {**components, **changes}


def hunyuan_call(count: int) -> Arguments:
    """Sizes that are taken as they are."""
    return {"height": 8 * SIZE, "width": 8 * SIZE, "use_resolution_binning": False}


def _hunyuan_control() -> Any:
    components = hunyuan_parts(layers=4)
    torch.manual_seed(2)
    controlnet = HunyuanDiT2DControlNetModel(transformer_num_layers=4, mlp_ratio=2.0, **HUNYUAN)
    return diffusers.HunyuanDiTControlNetPipeline(**components, controlnet=stirred(controlnet))


def _dit() -> Any:
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        sample_size=SIZE,
        num_layers=2,
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_embeds_ada_norm=1000,
    )
    return diffusers.DiTPipeline(transformer=stirred(transformer), vae=vae(), scheduler=schedule())


def movq(**changes: Any) -> VQModel:
    """Kandinsky's autoencoder; latents have half of the pictures' sides."""
    config = {
        "block_out_channels": (32, 32),  # its spatial norms have 32 groups
        "down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": ("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        "latent_channels": 4,
        "num_vq_embeddings": 12,
        "vq_embed_dim": 4,
        "norm_num_groups": 4,
        "norm_type": "spatial",
    }
    return VQModel(**{**config, **changes}).eval()


def _kandinsky3(name: str) -> Any:
    torch.manual_seed(0)
    unet = Kandinsky3UNet(
        in_channels=4,
        time_embedding_dim=8,
        groups=4,
        attention_head_dim=4,
        layers_per_block=3,  # with fewer its blocks do not fit together
        block_out_channels=(8, 16),
        cross_attention_dim=8,
        encoder_hid_dim=16,
    )
    return getattr(diffusers, name)(
        tokenizer=tiny.tokenizer(),
        text_encoder=t5(),
        unet=stirred(unet),
        scheduler=schedule(DDPMScheduler, beta_schedule="squaredcos_cap_v2"),
        movq=movq(),
    )


CASES = [
    Case(
        "PixArtAlphaPipeline",
        "text to image",
        lambda: diffusers.PixArtAlphaPipeline(**pixart_parts()),
        pixart_call,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "PixArtSigmaPipeline",
        "text to image",
        lambda: diffusers.PixArtSigmaPipeline(**pixart_parts()),
        pixart_call,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "HunyuanDiTPipeline",
        "text to image",
        lambda: diffusers.HunyuanDiTPipeline(**hunyuan_parts()),
        hunyuan_call,
        guidance={**GUIDANCE, "rescaled": {**GUIDANCE["on"], "guidance_rescale": 0.7}},
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "HunyuanDiTControlNetPipeline",
        "control",
        _hunyuan_control,
        lambda count: {**hunyuan_call(count), "control_image": pictures(count, size=8 * SIZE)},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "DiTPipeline",
        "class to image",
        _dit,
        lambda count: {"class_labels": list(range(3, 3 + count))},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "Kandinsky3Pipeline",
        "text to image",
        lambda: _kandinsky3("Kandinsky3Pipeline"),
        lambda count: {"height": 64, "width": 64},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_UNET_LOADER,
    ),
    Case(
        "Kandinsky3Img2ImgPipeline",
        "image to image",
        lambda: _kandinsky3("Kandinsky3Img2ImgPipeline"),
        lambda count: {"image": pictures(count, size=64), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
        steps=6,  # the last one has no noise, and the last but one too little to be trained
        skip=NO_UNET_LOADER,
    ),
]
