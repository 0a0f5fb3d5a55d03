"""Stable Diffusion with a UNet, its tasks, and LDM; and the tiny parts that other UNet pipelines share."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, LDMTextToImagePipeline, UNet2DConditionModel, VQModel
from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import LDMBertConfig, LDMBertModel
from torch import Tensor, nn
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    DPTConfig,
    DPTForDepthEstimation,
    DPTImageProcessor,
)

from ... import tiny
from . import Case

SIZE = 8
"""Height and width of pictures and latents: the tiny VAE does not shrink."""

GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 6.5}}
RESCALED = {**GUIDANCE, "rescaled": {"guidance_scale": 6.5, "guidance_rescale": 0.7}}


def schedule(kind: type = DDIMScheduler, **changes: Any) -> Any:
    """Stable Diffusion's betas."""
    betas = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    if kind is DDIMScheduler:
        betas |= {"set_alpha_to_one": False}
    if kind in (DDIMScheduler, DDPMScheduler):
        betas |= {"clip_sample": False}
    return kind(**{**betas, **changes})


def unet(**changes: Any) -> UNet2DConditionModel:
    """Two levels, attention in the lower one."""
    config = {
        "sample_size": SIZE,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 16,
        "attention_head_dim": 8,
        "norm_num_groups": 4,
    }
    return UNet2DConditionModel(**{**config, **changes}).eval()


def vae(**changes: Any) -> AutoencoderKL:
    """One level: latents are as large as the pictures."""
    config = {"block_out_channels": (8,), "norm_num_groups": 4, "latent_channels": 4, "sample_size": SIZE}
    return AutoencoderKL(**{**config, **changes}).eval()


def text_encoder(kind: type = CLIPTextModel, **changes: Any) -> Any:
    """CLIP on the words of the shapes world."""
    words = tiny.tokenizer()
    config = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "intermediate_size": 32,
        "projection_dim": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 16,
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    return kind(CLIPTextConfig(**{**config, **changes})).eval()


def image_encoder(width: int = 16) -> CLIPVisionModelWithProjection:
    """CLIP's other half, for pictures of `SIZE`."""
    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=4,
    )
    return CLIPVisionModelWithProjection(config).eval()


def feature_extractor() -> CLIPImageProcessor:
    """Pictures as `image_encoder` wants them."""
    return CLIPImageProcessor(crop_size={"height": SIZE, "width": SIZE}, size={"shortest_edge": SIZE})


@torch.no_grad()
def stirred(module: nn.Module) -> nn.Module:
    """Give weights that start at zero a spread: a control that adds nothing would test nothing."""
    for parameter in module.parameters():
        if not parameter.any():
            parameter.normal_(0, 0.1)
    return module.eval()


def pictures(count: int, channels: int = 3, size: int = SIZE, seed: int = 0) -> Tensor:
    """`[count, channels, size, size]` in [0, 1], each another."""
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(100 + seed))


def embeddings(count: int, *shape: int, seed: int = 0) -> Tensor:
    """`[count, *shape]` standard normal, each another."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(200 + seed))


def masks(count: int, size: int = SIZE) -> Tensor:
    """`[count, 1, size, size]`: 1 where a picture is to be painted anew, another part of each."""
    mask = torch.zeros(count, 1, size, size)
    for index in range(count):
        mask[index, :, : size // 2 + index] = 1.0
    return mask


def parts(**changes: Any) -> dict[str, Any]:
    """The components of Stable Diffusion."""
    torch.manual_seed(0)
    components = {
        "vae": vae(),
        "text_encoder": text_encoder(),
        "tokenizer": tiny.tokenizer(),
        "unet": unet(),
        "scheduler": schedule(),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }
    return {**components, **changes}


def _sd(name: str, **unet_changes: Any) -> Any:
    return getattr(diffusers, name)(**parts(unet=_seeded_unet(**unet_changes)))


def _seeded_unet(**changes: Any) -> UNet2DConditionModel:
    torch.manual_seed(1)
    return unet(**changes)


def _depth() -> Any:
    torch.manual_seed(1)
    config = DPTConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        readout_type="ignore",
    )
    components = parts(
        unet=unet(in_channels=5),
        depth_estimator=DPTForDepthEstimation(config).eval(),
        feature_extractor=DPTImageProcessor(size={"height": 32, "width": 32}),
    )
    for name in ("safety_checker", "requires_safety_checker"):
        del components[name]
    return diffusers.StableDiffusionDepth2ImgPipeline(**components)


def _variation() -> Any:
    torch.manual_seed(1)
    components = parts(unet=unet(), image_encoder=image_encoder(), feature_extractor=feature_extractor())
    del components["text_encoder"], components["tokenizer"]
    return diffusers.StableDiffusionImageVariationPipeline(**components)


def _upscale() -> Any:
    torch.manual_seed(1)
    components = parts(
        unet=unet(in_channels=7, num_class_embeds=1000),
        vae=vae(scaling_factor=0.08333),
        low_res_scheduler=schedule(DDPMScheduler),
        scheduler=schedule(prediction_type="v_prediction"),
    )
    del components["requires_safety_checker"]
    return diffusers.StableDiffusionUpscalePipeline(**components)


def _ldm() -> LDMTextToImagePipeline:
    torch.manual_seed(1)
    bert = LDMBertConfig(
        vocab_size=len(tiny.tokenizer()),
        d_model=16,
        encoder_layers=1,
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        head_dim=8,
        max_position_embeddings=77,
        attn_implementation="eager",
    )
    return LDMTextToImagePipeline(
        vqvae=VQModel(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, num_vq_embeddings=32).eval(),
        bert=LDMBertModel(bert).eval(),
        tokenizer=tiny.tokenizer(),
        unet=unet(),
        scheduler=schedule(),
    )


CASES = [
    Case("StableDiffusionPipeline", "text to image", tiny.sd15, guidance=RESCALED, kernel="ddim", fast=True),
    Case(
        "StableDiffusionImg2ImgPipeline",
        "image to image",
        lambda: _sd("StableDiffusionImg2ImgPipeline"),
        lambda count: {"image": pictures(count), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "StableDiffusionInpaintPipeline",
        "inpainting",
        lambda: _sd("StableDiffusionInpaintPipeline", in_channels=9),
        lambda count: {"image": pictures(count), "mask_image": masks(count), "height": SIZE, "width": SIZE},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "StableDiffusionDepth2ImgPipeline",
        "image to image",
        _depth,
        lambda count: {"image": pictures(count, size=32), "strength": 0.8},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "StableDiffusionImageVariationPipeline",
        "image to image",
        _variation,
        lambda count: {"image": pictures(count)},
        guidance=GUIDANCE,
        kernel="ddim",
        # Its one token gets all of the cross-attention, whatever the queries and keys.
        targets=("attn1.to_q", "attn1.to_k", "to_v", "to_out.0"),
        skip={"lora": "diffusers has no LoRA loader for this class"},
    ),
    Case(
        "StableDiffusionInstructPix2PixPipeline",
        "image editing",
        lambda: _sd("StableDiffusionInstructPix2PixPipeline", in_channels=8),
        lambda count: {"image": pictures(count)},
        guidance={
            "off": {"guidance_scale": 1.0, "image_guidance_scale": 1.0},
            "on": {"guidance_scale": 6.5, "image_guidance_scale": 1.5},
        },
        kernel="ddim",
    ),
    Case(
        "StableDiffusionUpscalePipeline",
        "image editing",
        _upscale,
        lambda count: {"image": pictures(count), "noise_level": 20},
        guidance=GUIDANCE,
        kernel="ddim",
    ),
    Case(
        "LDMTextToImagePipeline",
        "text to image",
        _ldm,
        lambda count: {"height": 8 * SIZE, "width": 8 * SIZE},  # it takes the latents to be an eighth of that
        guidance=GUIDANCE,
        kernel="ddim",
        skip={
            "pictures": "this pipeline returns arrays, which carry no gradients",
            "lora": "diffusers has no LoRA loader for this class",
        },
    ),
]

REFUSED = {
    "StableDiffusionLatentUpscalePipeline": "it scales its model's inputs and outputs by the sigmas of an EDM-type "
    "schedule, which a DDPM-type policy does not have",
}
