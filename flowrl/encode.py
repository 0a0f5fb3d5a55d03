"""Pictures into the latents of a pipeline, whatever its VAE's scale and shift: they are read off what it decodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import memo
from .errors import RunStopped
from .policy import Policy
from .session import Recording

_CLOSE = 1e-3


def affine(latents: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor] | None:
    """Scale and shift by channel, `[1, C, 1, ...]`, of ``decoded = scale * latents + shift``; None if there is none.

    Args:
        latents: `[B, C, ...]`.
        decoded: what a decoder was given for them.

    >>> x = torch.randn(1, 2, 4, 4)
    >>> scale, shift = affine(x, 3 * x + 1)
    >>> scale.flatten().round(decimals=4).tolist(), shift.flatten().round(decimals=4).tolist()
    ([3.0, 3.0], [1.0, 1.0])
    >>> affine(x, x.square()) is None
    True
    """
    if latents.shape != decoded.shape:
        return None
    x, z = latents.double(), decoded.double()
    axes = [0, *range(2, x.ndim)]
    mean_x, mean_z = x.mean(dim=axes, keepdim=True), z.mean(dim=axes, keepdim=True)
    scale = ((x - mean_x) * (z - mean_z)).mean(dim=axes, keepdim=True) / (x - mean_x).square().mean(axes, keepdim=True)
    shift = mean_z - scale * mean_x
    if not (scale * x + shift - z).abs().max() <= _CLOSE * z.abs().max():
        return None
    return scale, shift


class PictureEncoder:
    """Encodes pictures for a pipeline with a VAE of pictures, after one run of it."""

    def __init__(self, policy: Policy, prompt: str, how: Mapping[str, Any]) -> None:
        """Draw one picture, to see how latents become what the VAE decodes.

        Args:
            policy: the policy.
            prompt: any.
            how: arguments of `Policy.record`: ``steps``, ``guidance_scale`` and ``call``.

        Raises:
            RunStopped: the pipeline has no VAE that encodes, or does more to latents than to scale and shift them.
        """
        vae: Any = getattr(policy.pipe, "vae", None)
        if not (hasattr(vae, "encode") and hasattr(vae, "decode")):
            raise RunStopped(_cannot(policy, "has no VAE that encodes pictures"))
        seen: list[Tensor] = []
        self._vae, decode = vae, vae.decode

        def listened(latents: Tensor, *args: Any, **kwargs: Any) -> Any:
            seen.append(latents)
            return decode(latents, *args, **kwargs)

        calls = policy.denoiser_calls
        session = Recording(policy.kernel, torch.zeros_like, train_steps=(), noise_steps=())
        with memo.exchanged(policy.pipe, {"vae.decode": listened}):
            drawn = policy.record(session, [prompt], latent_seeds=[0], **how)
        policy.denoiser_calls = calls  # no part of the training's cost
        found = affine(drawn.latents, seen[-1]) if seen and drawn.images.ndim == 4 else None
        if found is None:
            raise RunStopped(_cannot(policy, "packs its latents, or draws videos"))
        self._scale, self._shift = found
        self._size = (drawn.images.shape[3], drawn.images.shape[2])

    @torch.no_grad()
    def __call__(self, path: Path) -> Tensor:
        """The latents `[C, h, w]` of a picture, cut to the shape of what the pipeline draws."""
        import numpy as np
        from PIL import Image, ImageOps

        with Image.open(path) as picture:
            fitted = ImageOps.fit(picture.convert("RGB"), self._size, Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.asarray(fitted).copy()).permute(2, 0, 1)[None] / 127.5 - 1
        first = next(self._vae.parameters())
        encoded = self._vae.encode(pixels.to(first.device, first.dtype))
        z = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latent
        latents: Tensor = (z.double() - self._shift) / self._scale
        return latents[0].float()


def _cannot(policy: Policy, why: str) -> str:
    return (
        f"{type(policy.pipe).__name__} {why}, so pictures cannot be encoded for it. Data with latents, as `flowrl data "
        "make` writes it, can be used."
    )
