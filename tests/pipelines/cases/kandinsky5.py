"""Kandinsky 5: pictures and videos, from text and from a picture."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FlowMatchEulerDiscreteScheduler,
    Kandinsky5I2IPipeline,
    Kandinsky5I2VPipeline,
    Kandinsky5T2IPipeline,
    Kandinsky5T2VPipeline,
    Kandinsky5Transformer3DModel,
)

from ..parts_images import fill, pictures, rows, vae
from . import Arguments, Case

WIDTH, POOLED, LENGTH = 12, 10, 5
GUIDANCE = {"off": {"guidance_scale": 1.0}, "on": {"guidance_scale": 5.0}}
TARGETS = ("to_query", "to_key", "to_value", "self_attention.out_layer", "cross_attention.out_layer")


def _build(kind: type, autoencoder: Any, *, conditioned: bool) -> Any:
    transformer = Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        in_text_dim=WIDTH,
        in_text_dim2=POOLED,
        time_dim=16,
        out_visual_dim=4,
        patch_size=(1, 2, 2),
        model_dim=24,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(4, 4, 4),
        visual_cond=conditioned,
    )
    fill(transformer)
    return kind(
        transformer=transformer.eval(),
        vae=autoencoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
    )


def _image(kind: type, *, conditioned: bool) -> Any:
    torch.manual_seed(0)
    pipe = _build(kind, vae(4, levels=4), conditioned=conditioned)
    pipe.resolutions = [(32, 32)]  # the class moves every size to one of these, a million pixels each
    return pipe


def _video(kind: type, *, conditioned: bool) -> Any:
    torch.manual_seed(0)
    autoencoder = AutoencoderKLHunyuanVideo(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=False,
    )
    return _build(kind, autoencoder, conditioned=conditioned)


def _texts(count: int, seed: int) -> Arguments:
    return {
        "prompt_embeds_qwen": rows(count, LENGTH, WIDTH, seed=seed),
        "prompt_embeds_clip": rows(count, POOLED, seed=seed + 1),
        "prompt_cu_seqlens": torch.arange(count + 1, dtype=torch.int32) * LENGTH,
    }


def _call(count: int) -> Arguments:
    negative = {f"negative_{name}": value for name, value in _texts(count, 5).items()}
    return {"prompt": None, **_texts(count, 1), **negative, "height": 32, "width": 32}


def _frames(count: int, *, frames: int = 5) -> Arguments:
    return {**_call(count), "num_frames": frames}


def _first_frame(count: int) -> Arguments:
    """5 latent frames: the pipeline matches the first four to the others at the end."""
    return {**_frames(count, frames=17), "image": pictures(count, 32)}


CASES = [
    Case(
        "Kandinsky5T2IPipeline",
        "text to image",
        lambda: _image(Kandinsky5T2IPipeline, conditioned=False),
        _call,
        GUIDANCE,
        targets=TARGETS,
    ),
    Case(
        "Kandinsky5I2IPipeline",
        "image editing",
        lambda: _image(Kandinsky5I2IPipeline, conditioned=True),
        lambda count: {**_call(count), "image": pictures(count, 32)},
        GUIDANCE,
        targets=TARGETS,
    ),
    Case(
        "Kandinsky5T2VPipeline",
        "text to video",
        lambda: _video(Kandinsky5T2VPipeline, conditioned=False),
        _frames,
        GUIDANCE,
        targets=TARGETS,
    ),
    Case(
        "Kandinsky5I2VPipeline",
        "image to video",
        lambda: _video(Kandinsky5I2VPipeline, conditioned=True),
        _first_frame,
        GUIDANCE,
        targets=TARGETS,
        skip={"pictures": "at the end the class overwrites frames in place that its gradient needs"},
    ),
]
