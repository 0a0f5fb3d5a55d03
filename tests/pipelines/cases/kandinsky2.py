"""Kandinsky 2.1 and 2.2: decoders that draw pictures from the embeddings of a prior."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DConditionModel
from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP

from ... import tiny
from . import Arguments, Case
from .dit import movq
from .sd import embeddings, masks, pictures, schedule

SIZE = 16
"""Of the pictures; latents have half of it."""
HINT_SIZE = 64
"""Of pictures and hints, where the UNet takes the latents to have an eighth of it."""
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 4.0}}
NO_LOADER = {"lora": "diffusers has no LoRA loader for this class"}


def _unet(**changes: Any) -> UNet2DConditionModel:
    torch.manual_seed(1)
    config = {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 8,  # a variance too, which a policy has no use for
        "addition_embed_type": "image",
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "norm_num_groups": 4,
        "encoder_hid_dim": 16,
        "encoder_hid_dim_type": "image_proj",
        "cross_attention_dim": 16,
        "attention_head_dim": 8,
        "resnet_time_scale_shift": "scale_shift",
    }
    return UNet2DConditionModel(**{**config, **changes}).eval()


def _kandinsky22(name: str, **changes: Any) -> Any:
    unet = _unet(**changes)
    scheduler = schedule(DDPMScheduler, beta_schedule="linear", variance_type="learned_range")
    return getattr(diffusers, name)(unet=unet, scheduler=scheduler, movq=movq())


def _control(name: str) -> Any:
    pipe = _kandinsky22(name, addition_embed_type="image_hint", in_channels=8)
    levels = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    autoencoder = movq(block_out_channels=(32,) * 4, **levels)
    return type(pipe)(unet=pipe.unet, scheduler=pipe.scheduler, movq=autoencoder)


def _kandinsky21(name: str, **changes: Any) -> Any:
    unet = _unet(addition_embed_type="text_image", encoder_hid_dim_type="text_image_proj", **changes)
    words = tiny.tokenizer()
    config = MCLIPConfig(
        transformerDimSize=16,
        imageDimSize=16,
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=100,
        pad_token_id=1,
    )
    return getattr(diffusers, name)(
        text_encoder=MultilingualCLIP(config).eval(),
        tokenizer=words,
        unet=unet,
        scheduler=schedule(DDIMScheduler, beta_schedule="linear"),
        movq=movq(),
    )


def embedded(count: int, size: int = SIZE) -> Arguments:
    """What a prior would give."""
    return {
        "image_embeds": embeddings(count, 16),
        "negative_image_embeds": embeddings(count, 16, seed=1),
        "height": size,
        "width": size,
    }


def from_picture(count: int, size: int = SIZE) -> Arguments:
    """A picture to start from for each sample."""
    return {**embedded(count, size), "image": pictures(count, size=size), "strength": 0.8}


def painted(count: int) -> Arguments:
    """A picture in [-1, 1] and a mask for each sample."""
    return {**embedded(count), "image": 2 * pictures(count, size=SIZE) - 1, "mask_image": masks(count, SIZE)}


def hinted(count: int) -> Arguments:
    """A depth map for each sample."""
    return {"hint": pictures(count, size=HINT_SIZE, seed=5)}


CASES = [
    Case(
        "KandinskyV22Pipeline",
        "text to image",
        lambda: _kandinsky22("KandinskyV22Pipeline"),
        embedded,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyV22Img2ImgPipeline",
        "image to image",
        lambda: _kandinsky22("KandinskyV22Img2ImgPipeline"),
        from_picture,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyV22InpaintPipeline",
        "inpainting",
        lambda: _kandinsky22("KandinskyV22InpaintPipeline", in_channels=9),
        painted,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyV22ControlnetPipeline",
        "control",
        lambda: _control("KandinskyV22ControlnetPipeline"),
        lambda count: {**embedded(count, HINT_SIZE), **hinted(count)},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyV22ControlnetImg2ImgPipeline",
        "control",
        lambda: _control("KandinskyV22ControlnetImg2ImgPipeline"),
        lambda count: {**from_picture(count, HINT_SIZE), **hinted(count)},
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyPipeline",
        "text to image",
        lambda: _kandinsky21("KandinskyPipeline"),
        embedded,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyImg2ImgPipeline",
        "image to image",
        lambda: _kandinsky21("KandinskyImg2ImgPipeline"),
        from_picture,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
    Case(
        "KandinskyInpaintPipeline",
        "inpainting",
        lambda: _kandinsky21("KandinskyInpaintPipeline", in_channels=9),
        painted,
        guidance=GUIDANCE,
        kernel="ddim",
        skip=NO_LOADER,
    ),
]

_PRIOR = (
    "its UnCLIPScheduler is told the next timestep by the pipeline, and what it draws is an embedding, not a picture"
)
_COMBINED = "it is two pipelines in one, whose parts keep schedulers of their own; make the decoder's pipeline a policy"
REFUSED = {
    "KandinskyPriorPipeline": _PRIOR,
    "KandinskyV22PriorPipeline": _PRIOR,
    "KandinskyV22PriorEmb2EmbPipeline": _PRIOR,
    "KandinskyCombinedPipeline": _COMBINED,
    "KandinskyImg2ImgCombinedPipeline": _COMBINED,
    "KandinskyInpaintCombinedPipeline": _COMBINED,
    "KandinskyV22CombinedPipeline": _COMBINED,
    "KandinskyV22Img2ImgCombinedPipeline": _COMBINED,
    "KandinskyV22InpaintCombinedPipeline": _COMBINED,
}
