"""Qwen-Image and its relatives: ControlNets, editing, layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
    QwenImageControlNetInpaintPipeline,
    QwenImageControlNetModel,
    QwenImageControlNetPipeline,
    QwenImageEditInpaintPipeline,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageImg2ImgPipeline,
    QwenImageInpaintPipeline,
    QwenImageLayeredPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage import (
    pipeline_qwenimage_edit,
    pipeline_qwenimage_edit_inpaint,
    pipeline_qwenimage_edit_plus,
    pipeline_qwenimage_layered,
)

from ... import tiny
from ..parts_images import holes, mask, photos, pictures, rows
from . import Case
from .sd3 import awake, joined

WIDTH = 12
"""Of the embeddings that stand in for encoded texts."""
SHAPE: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "axes_dims_rope": (4, 6, 6),
}
TRUE_CFG = {"off": {"true_cfg_scale": 1.0}, "on": {"true_cfg_scale": 4.0}}
"""Classifier-free guidance, whose result these classes always scale back to the norm of the conditional prediction."""


def autoencoder(channels: int = 3, latents: int = 4) -> AutoencoderKLQwenImage:
    """It halves the side of pictures of so many channels."""
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=latents,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[False],
        input_channels=channels,
        latents_mean=[0.1, -0.2, 0.3, 0.0, 0.2][:latents],
        latents_std=[1.5, 0.8, 1.2, 2.0, 0.9][:latents],
    ).eval()


def qwen(kind: type, **shape: Any) -> Any:
    """A class of the family: latents half the picture's side, packed 2 x 2; embeddings in place of texts."""
    torch.manual_seed(0)
    components = {
        "transformer": QwenImageTransformer2DModel(**{**SHAPE, **shape}).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoder(),
    }
    return joined(kind, components, text_encoder=None, tokenizer=None, processor=None)


def _with_controlnet(kind: type, extra_channels: int = 0) -> Any:
    torch.manual_seed(1)
    controlnet = QwenImageControlNetModel(**{**SHAPE, "num_layers": 1}, extra_condition_channels=extra_channels)
    return joined(kind, qwen(QwenImagePipeline).components, controlnet=awake(controlnet))


def _layered() -> Any:
    """Pictures with an opacity; a text encoder, of which the class reads the dtype alone if embeddings are given."""
    # Five channels of latents: the class takes a picture of four for latents of four.
    shape = {"in_channels": 20, "out_channels": 5, "use_additional_t_cond": True, "use_layer3d_rope": True}
    components = qwen(QwenImagePipeline, **shape).components
    vae, language = autoencoder(channels=4, latents=5), tiny.flux().text_encoder_2
    return joined(QwenImageLayeredPipeline, {**components, "vae": vae, "text_encoder": language}, processor=None)


class _Processor:
    """What QwenImage21Pipeline asks of its processor when it is made: two numbers of tokens."""

    tokenizer: Any = property(lambda self: self)

    def apply_chat_template(self, *_: Any, **__: Any) -> list[list[int]]:
        return [[0, 1]]

    def encode(self, _: str) -> list[int]:
        return [2]


def qwen21() -> Any:
    """QwenImage21Pipeline: pictures with an opacity, latents a 16th of the side; keys and values of the text cached."""
    torch.manual_seed(0)
    transformer = QwenImage21Transformer2DModel(
        in_channels=8,
        out_channels=8,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=WIDTH,
        mlp_ratio=2,
        axes_dims_rope=(4, 6, 6),
    )
    vae = AutoencoderKLQwenImage21(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=8,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True, True],
        latents_mean=[0.1 * channel for channel in range(8)],
        latents_std=[1.0 + 0.1 * channel for channel in range(8)],
    )
    return QwenImage21Pipeline(
        transformer=transformer.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=None,
        processor=_Processor(),
    )


def _at_picture_size(module: Any) -> None:
    """Classes that edit scale every picture to about a megapixel, whatever size they are given. Here: 32 x 32."""
    original = module.calculate_dimensions
    module.calculate_dimensions = lambda area, ratio: original(32 * 32, ratio)


for _module in (
    pipeline_qwenimage_edit,
    pipeline_qwenimage_edit_inpaint,
    pipeline_qwenimage_edit_plus,
    pipeline_qwenimage_layered,
):
    _at_picture_size(_module)


def _texts(count: int) -> dict[str, Any]:
    return {
        "prompt_embeds": rows(count, 6, WIDTH, seed=1),
        "prompt_embeds_mask": mask(count, 6),
        "negative_prompt_embeds": rows(count, 5, WIDTH, seed=2),
        "negative_prompt_embeds_mask": mask(count, 5),
    }


def _call(count: int) -> dict[str, Any]:
    return {**_texts(count), "height": 16, "width": 16}


def _picture(count: int) -> dict[str, Any]:
    return {"image": pictures(count, 16), "strength": 0.75}


CONTROL = {
    "off": TRUE_CFG["off"],
    "ends-early": {"true_cfg_scale": 4.0, "control_guidance_start": 0.2, "control_guidance_end": 0.6},
    "on": TRUE_CFG["on"],
}

CASES = [
    Case("QwenImagePipeline", "text to image", partial(qwen, QwenImagePipeline), _call, TRUE_CFG, fast=True),
    Case(
        "QwenImage21Pipeline",
        "text to image",
        qwen21,
        call=lambda count: {**_texts(count), "height": 64, "width": 64},
        guidance={"off": {"true_cfg_scale": 1.0}, "uncached": {"use_kv_cache": False}, "on": {"true_cfg_scale": 4.0}},
    ),
    Case(
        "QwenImageImg2ImgPipeline",
        "image to image",
        partial(qwen, QwenImageImg2ImgPipeline),
        call=lambda count: {**_call(count), **_picture(count)},
        guidance=TRUE_CFG,
    ),
    Case(
        "QwenImageInpaintPipeline",
        "inpainting",
        partial(qwen, QwenImageInpaintPipeline),
        call=lambda count: {**_call(count), **_picture(count), "mask_image": holes(count)},
        guidance=TRUE_CFG,
    ),
    Case(
        "QwenImageControlNetPipeline",
        "control",
        partial(_with_controlnet, QwenImageControlNetPipeline),
        call=lambda count: {**_call(count), "control_image": pictures(count, 16)},
        guidance=CONTROL,
    ),
    Case(
        "QwenImageControlNetInpaintPipeline",
        "inpainting",
        partial(_with_controlnet, QwenImageControlNetInpaintPipeline, extra_channels=4),
        call=lambda count: {**_call(count), "control_image": pictures(count, 16), "control_mask": holes(count)},
        guidance=CONTROL,
    ),
    Case(
        "QwenImageEditPipeline",
        "image editing",
        partial(qwen, QwenImageEditPipeline),
        call=lambda count: {**_call(count), "image": photos(count, 32)},
        guidance=TRUE_CFG,
    ),
    Case(
        "QwenImageEditInpaintPipeline",
        "inpainting",
        partial(qwen, QwenImageEditInpaintPipeline),
        call=lambda count: {
            **_texts(count),
            "image": photos(count, 32),
            "mask_image": holes(count, 32),
            "strength": 0.75,
        },
        guidance=TRUE_CFG,
    ),
    Case(
        "QwenImageEditPlusPipeline",
        "image editing",
        partial(qwen, QwenImageEditPlusPipeline, zero_cond_t=True),
        call=lambda count: {**_call(count), "image": photos(2, 32)},
        guidance=TRUE_CFG,
        samples=1,
    ),
    Case(
        "QwenImageLayeredPipeline",
        "image editing",
        _layered,
        call=lambda count: {
            **_texts(count),
            "prompt": "a red circle",
            "image": photos(1, 32)[0].convert("RGBA"),
            "layers": 2,
        },
        guidance={
            "off": {"true_cfg_scale": 1.0},
            "normalized": {"true_cfg_scale": 4.0, "cfg_normalize": True},
            "on": {"true_cfg_scale": 4.0},
        },
        samples=1,
    ),
]
