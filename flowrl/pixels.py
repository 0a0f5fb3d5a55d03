"""Statistics of pixels: they need no weights, and show what a run does to its pictures.

Every one is a pure function from pictures `[..., 3, H, W]` in [0, 1] to `[...]`.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)
"""Rec. 601, as in JPEG."""


def luma(images: Tensor) -> Tensor:
    """Brightness of each pixel: ``0.299 R + 0.587 G + 0.114 B``, `[B, H, W]` in [0, 1].

    >>> luma(torch.ones(1, 3, 1, 1)).item()
    1.0
    """
    return torch.einsum("...chw,c->...hw", images, torch.tensor(_LUMA, dtype=images.dtype, device=images.device))


def saturation(images: Tensor) -> Tensor:
    """Mean over pixels of ``max(R, G, B) - min(R, G, B)``: 0 for greys, 1 for pure colours; differentiable.

    Not divided by the maximum, as in HSV: there the noise of nearly black pixels would count as strong colour.

    >>> saturation(torch.tensor([1.0, 0.25, 0.5]).view(1, 3, 1, 1)).item()
    0.75
    """
    return (images.amax(dim=-3) - images.amin(dim=-3)).mean(dim=(-2, -1))


def clipping(images: Tensor, margin: float = 1 / 255) -> Tensor:
    """Share of channel values within ``margin`` of 0 or 1, where detail is lost.

    >>> clipping(torch.tensor([0.0, 0.5, 1.0]).view(1, 3, 1, 1)).item()
    0.6666666865348816
    """
    return ((images <= margin) | (images >= 1 - margin)).float().mean(dim=(-3, -2, -1))


def edge_energy(images: Tensor) -> Tensor:
    """High-frequency energy: the mean square of the luma minus the mean of its four neighbours; differentiable.

    0 for flat pictures and linear ramps, 1 for a checkerboard of single black and white pixels. Pixels at the edge of
    the picture are left out.

    Raises:
        ValueError: the pictures are not at least 3 x 3 pixels.

    >>> edge_energy(torch.full((1, 3, 4, 4), 0.5)).item()
    0.0
    """
    _require(images, 3)
    y = luma(images)
    around = y[..., :-2, 1:-1] + y[..., 2:, 1:-1] + y[..., 1:-1, :-2] + y[..., 1:-1, 2:]
    return (y[..., 1:-1, 1:-1] - around / 4).square().mean(dim=(-2, -1))


def blockiness(images: Tensor, period: int = 8) -> Tensor:
    """How much more neighbours differ across the lines of a grid than elsewhere, in [-1, 1]; differentiable.

    Mean absolute difference of luma across the lines minus the mean within the blocks, averaged over both directions.
    JPEG and some decoders leave a grid of 8 pixels.

    Args:
        images: `[B, 3, H, W]` in [0, 1].
        period: side of a block in pixels, at least 2.

    Raises:
        ValueError: the pictures hold no line of the grid.

    >>> halves = torch.cat([torch.zeros(1, 3, 16, 8), torch.ones(1, 3, 16, 8)], dim=3)
    >>> blockiness(halves).item()  # 1 across the one vertical line, 0 across the horizontal one
    0.5
    """
    _require(images, period + 1)
    y = luma(images)
    excess = [_across_lines(y.diff(dim=dim).abs(), dim, period) for dim in (-2, -1)]
    return (excess[0] + excess[1]) / 2


def dark_share(images: Tensor, threshold: float = 0.1) -> Tensor:
    """Share of pixels with a luma under ``threshold``.

    >>> dark_share(torch.tensor([0.0, 1.0]).expand(1, 3, 1, 2)).item()
    0.5
    """
    return (luma(images) < threshold).float().mean(dim=(-2, -1))


def colour_entropy(images: Tensor, bins: int = 8) -> Tensor:
    """Entropy of the histogram of colours, `bins^3` cells, over its maximum: 0 for one colour, 1 for all alike.

    >>> colour_entropy(torch.tensor([0.0, 1.0]).expand(1, 3, 4, 2)).item()  # 1 bit of 9
    0.1111111119389534
    """
    cells = (images * bins).long().clamp(max=bins - 1)
    codes = (cells[..., 0, :, :] * bins + cells[..., 1, :, :]) * bins + cells[..., 2, :, :]
    flat = codes.flatten(-2).reshape(-1, codes.shape[-2] * codes.shape[-1])
    counts = torch.zeros(len(flat), bins**3, device=images.device).scatter_add_(1, flat, torch.ones_like(flat).float())
    shares = counts / flat.shape[1]
    entropy: Tensor = torch.special.entr(shares).sum(dim=1) / torch.tensor(float(bins**3)).log()
    return entropy.view(images.shape[:-3])


def _require(images: Tensor, side: int) -> None:
    height, width = images.shape[-2:]
    if min(height, width) < side:
        raise ValueError(f"wanted pictures of at least {side} x {side} pixels, got {width} x {height}")


def _across_lines(difference: Tensor, dim: int, period: int) -> Tensor:
    """Mean over the lines of a grid minus the mean over the rest; ``difference`` i lies between pixels i and i + 1."""
    line = torch.arange(1, difference.shape[dim] + 1, device=difference.device) % period == 0
    profile = difference.mean(dim=-1 if dim == -2 else -2)
    return profile[..., line].mean(dim=-1) - profile[..., ~line].mean(dim=-1)
