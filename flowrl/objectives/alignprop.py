"""AlignProp: the reward's gradient through a random number of the last steps.

See "Aligning Text-to-Image Diffusion Models with Reward Backpropagation", Prabhudesai et al.,
https://arxiv.org/abs/2310.03739.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .pathwise import Pathwise, PathwiseOptions, drawn_step


class AlignPropOptions(PathwiseOptions):
    """Options of AlignProp."""

    max_steps: int | None = Field(None, gt=0, description="most steps that carry gradients; null is the whole schedule")


class AlignProp(Pathwise):
    """DRaFT-K with a K that is drawn anew for each training step: once a trajectory, so what is kept is contiguous.

    The authors stop the gradient of early model calls only, and let that of the latents pass; here it ends at the step
    that was drawn, and with it what must be kept of the activations.

    Metric: ``pathwise/reward``.
    """

    name: ClassVar[str] = "alignprop"
    Options: ClassVar[type[base.Options]] = AlignPropOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `AlignPropOptions`."""
        found = AlignPropOptions(**options)
        self.options, self._max_steps = found, found.max_steps

    def depth(self, steps: int) -> int:
        """At most this many."""
        return steps if self._max_steps is None else self._max_steps

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[int]:
        """The step from which gradients flow, the same for all samples of a training step."""
        steps = len(rollout.places)
        return drawn_step(max(steps - self.depth(steps), rollout.start), steps - 1, seeds)

    def images(self, policy: Policy, rollout: Rollout, piece: int) -> Tensor:
        """The rollout's own pictures, if its steps had no noise."""
        return policy.finish(rollout, piece)
