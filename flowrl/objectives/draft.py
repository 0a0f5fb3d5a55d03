"""DRaFT-K and DRaFT-LV: the reward's gradient through the last K steps, or through the last one many times.

See "Directly Fine-Tuning Diffusion Models on Differentiable Rewards", Clark et al., https://arxiv.org/abs/2309.17400.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from .. import kernels
from ..policy import Policy, SeededNoise
from ..trajectory import Rollout
from . import base
from .pathwise import Pathwise, PathwiseOptions


class DRaFTOptions(PathwiseOptions):
    """Options of DRaFT-K."""

    last_steps: int = Field(1, gt=0, description="K: how many of the last steps carry gradients")


class DRaFT(Pathwise):
    """DRaFT-K: the pictures of the rollout, with gradients through the decoder and the last K steps.

    Metric: ``pathwise/reward``.
    """

    name: ClassVar[str] = "draft"
    Options: ClassVar[type[base.Options]] = DRaFTOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DRaFTOptions`."""
        found = DRaFTOptions(**options)
        self.options, self._last_steps = found, found.last_steps

    def depth(self, steps: int) -> int:
        """K."""
        return self._last_steps

    def model_calls(self, trained_steps: int) -> int:
        """K."""
        return self._last_steps

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[int]:
        """The step from which gradients flow."""
        return [len(rollout.places) - self._last_steps]

    def images(self, policy: Policy, rollout: Rollout, piece: int) -> Tensor:
        """The rollout's own pictures, if its last K steps had no noise."""
        return policy.finish(rollout, piece)


class DRaFTLVOptions(PathwiseOptions):
    """Options of DRaFT-LV."""

    draws: int = Field(2, gt=0, description="how often the final latents are noised and denoised anew")


class DRaFTLV(Pathwise):
    """DRaFT-LV: the final latents, noised to the level of the last step and denoised by it, ``draws`` times.

    One step carries gradients, as in DRaFT-1, and their mean over several noises varies less.

    Metric: ``pathwise/reward``.
    """

    name: ClassVar[str] = "draft_lv"
    Options: ClassVar[type[base.Options]] = DRaFTLVOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DRaFTLVOptions`."""
        found = DRaFTLVOptions(**options)
        self.options, self._draws = found, found.draws

    def depth(self, steps: int) -> int:
        """The last step."""
        return 1

    def model_calls(self, trained_steps: int) -> int:
        """One for each draw."""
        return self._draws

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[Tensor]:
        """Noise for each draw, each sample's from its own seed."""
        noise = SeededNoise(seeds.samples)
        return [noise(rollout.latents) for _ in range(self._draws)]

    def images(self, policy: Policy, rollout: Rollout, piece: Tensor) -> Tensor:
        """The last step once more, from the noised final latents."""
        last = rollout.places[-1]
        level = piece.new_tensor(last.sigma)
        x_t = kernels.noised(rollout.latents.float(), piece, level, policy.prediction).to(rollout.latents.dtype)
        return policy.finish(replace(rollout, arrivals={**rollout.arrivals, last.step: x_t}), last.step)
