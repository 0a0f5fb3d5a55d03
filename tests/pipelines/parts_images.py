"""Tiny parts that the cases of image pipelines with flow-matching transformers share."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKL, AutoencoderKLWan
from PIL import Image
from torch import Tensor, nn


def rows(count: int, *shape: int, seed: int = 0) -> Tensor:
    """`[count, *shape]` normal numbers; a row depends on its own number and the seed alone."""
    return torch.stack(
        [torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + row)) for row in range(count)]
    )


def texts(count: int, width: int, *, length: int = 5, seed: int = 0) -> list[Tensor]:
    """A list of embeddings `[length + row, width]`: texts of different lengths."""
    return [rows(1, length + row, width, seed=seed + row)[0] for row in range(count)]


def mask(count: int, length: int) -> Tensor:
    """`[count, length]` of 1, with one place fewer for each further row."""
    return torch.stack([(torch.arange(length) < length - row).long() for row in range(count)])


def pictures(count: int, size: int = 16, *, seed: int = 7) -> Tensor:
    """`[count, 3, size, size]` in [0, 1]."""
    return rows(count, 3, size, size, seed=seed).sigmoid()


def photos(count: int, size: int = 16, *, seed: int = 7) -> list[Image.Image]:
    """The same as PIL pictures."""
    numbers = (pictures(count, size, seed=seed) * 255).round().byte().movedim(1, -1).numpy()
    return [Image.fromarray(number) for number in numbers]


def holes(count: int, size: int = 16) -> Tensor:
    """`[count, 1, size, size]` masks: 1 in a part of the picture that is another for each row."""
    where = torch.zeros(count, 1, size, size)
    for row in range(count):
        where[row, :, : size // 2, size // 2 * (row % 2) :] = 1
    return where


def vae(channels: int, *, levels: int = 2, **settings: Any) -> AutoencoderKL:
    """An autoencoder that makes pictures ``2 ** (levels - 1)`` times smaller."""
    made = AutoencoderKL(
        block_out_channels=(8,) * levels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        norm_num_groups=4,
        latent_channels=channels,
        sample_size=16,
        **{"scaling_factor": 0.4, "shift_factor": 0.1, **settings},
    )
    return made.eval()


def fill(module: nn.Module, spread: float = 0.1) -> None:
    """Give small values to parameters that diffusers leaves as zeros: padding tokens, gates and final layers."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(0, spread)


def wan_vae() -> AutoencoderKLWan:
    """An autoencoder that makes pictures 8 times and videos 4 times smaller, to 4 channels."""
    made = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 2.0, 2.5, 1.0],
    )
    return made.eval()
