"""Optical flow between two pictures by Lucas and Kanade's method, from coarse to fine; no weights.

See "An Iterative Image Registration Technique with an Application to Stereo Vision", Lucas and Kanade, 1981, and
"Pyramidal Implementation of the Affine Lucas Kanade Feature Tracker", Bouguet, 2001.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_COARSEST = 12
"""Shorter side of the coarsest level, in pixels: less leaves nothing to compare."""
_WINDOW = 2.0
"""Standard deviation of the window in which all pixels move alike, in pixels of a level."""


def optical_flow(first: Tensor, second: Tensor, iterations: int = 5) -> Tensor:
    """Where each pixel of ``first`` went to in ``second``.

    In each window the flow w solves ``min sum (second(p + w) - first(p))^2``, linearised, a few times a level.

    Args:
        first: `[N, C, H, W]`, floats; colours count together.
        second: `[N, C, H, W]`.
        iterations: Gauss-Newton steps a level.

    Returns:
        `[N, 2, H, W]`, in pixels to the right and down.

    >>> ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)  # one pixel to the left is 1/31 brighter
    >>> optical_flow(ramp, ramp + 1 / 31)[0, 0, 16, 16].round(decimals=1).item()
    -1.0
    """
    levels = [(first, second)]
    while min(levels[-1][0].shape[-2:]) >= 2 * _COARSEST:
        levels.append((_half(levels[-1][0]), _half(levels[-1][1])))
    flow = first.new_zeros(len(first), 2, *levels[-1][0].shape[-2:])
    for a, b in reversed(levels):
        flow = _resized(flow, a.shape[-2:])
        for _ in range(iterations):
            flow = flow + _step(a, b, flow)
    return flow


def warp(pictures: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Fetch each pixel from where the flow leads: ``pictures(p + flow(p))``, bilinear.

    Args:
        pictures: `[N, C, H, W]`.
        flow: `[N, 2, H, W]` in pixels, to the right and down.

    Returns:
        the warped pictures, and `[N, 1, H, W]` bool: whether the place lies inside the picture.

    >>> row = torch.arange(4.0).view(1, 1, 1, 4)
    >>> moved, inside = warp(row, torch.tensor([1.0, 0.0]).view(1, 2, 1, 1).expand(1, 2, 1, 4))
    >>> moved.flatten().tolist(), inside.flatten().tolist()
    ([1.0, 2.0, 3.0, 3.0], [True, True, True, False])
    """
    height, width = pictures.shape[-2:]
    x = torch.arange(width, device=flow.device) + flow[:, 0]
    y = torch.arange(height, device=flow.device)[:, None] + flow[:, 1]
    grid = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], dim=-1)
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False), inside[:, None]


def blurred(pictures: Tensor, sigma: float = _WINDOW) -> Tensor:
    """Gaussian blur of `[N, C, H, W]`, with repeated edges."""
    radius = round(3 * sigma)
    weights = torch.exp(-((torch.arange(-radius, radius + 1, device=pictures.device) / sigma) ** 2) / 2)
    weights = (weights / weights.sum()).to(pictures.dtype)
    channels = pictures.shape[1]
    row = weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    padded = F.pad(pictures, (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, row, groups=channels), row.transpose(2, 3), groups=channels)


def _half(pictures: Tensor) -> Tensor:
    height, width = pictures.shape[-2:]
    return F.interpolate(blurred(pictures, 1.0), (height // 2, width // 2), mode="area")


def _resized(flow: Tensor, size: torch.Size) -> Tensor:
    height, width = flow.shape[-2:]
    scale = flow.new_tensor([size[1] / width, size[0] / height]).view(1, 2, 1, 1)
    return F.interpolate(flow, tuple(size), mode="bilinear", align_corners=False) * scale


def _gradients(pictures: Tensor) -> tuple[Tensor, Tensor]:
    padded = F.pad(pictures, (1, 1, 1, 1), mode="replicate")
    return (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2, (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2


def _step(first: Tensor, second: Tensor, flow: Tensor) -> Tensor:
    """One Gauss-Newton step of every window, at most one pixel long."""
    moved, inside = warp(second, flow)
    gx, gy = _gradients((first + moved) / 2)
    difference = (first - moved) * inside
    gx, gy = gx * inside, gy * inside
    products = (gx * gx, gx * gy, gy * gy, gx * difference, gy * difference)
    xx, xy, yy, xd, yd = blurred(torch.cat([p.sum(dim=1, keepdim=True) for p in products], dim=1)).unbind(dim=1)
    # Windows without texture stay where the coarser level put them: the ridge is what noise of 1 % weighs.
    ridge = 1e-4
    xx, yy = xx + ridge, yy + ridge
    determinant = xx * yy - xy * xy
    step = torch.stack([(yy * xd - xy * yd) / determinant, (xx * yd - xy * xd) / determinant], dim=1)
    return step.clamp(-1, 1)
