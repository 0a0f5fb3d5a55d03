"""ReFL: the reward of the clean picture that the model predicts at a random late step.

See "ImageReward: Learning and Evaluating Human Preferences for Text-to-Image Generation", Xu et al.,
https://arxiv.org/abs/2304.05977.
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


class ReFLOptions(PathwiseOptions):
    """Options of ReFL; the authors' code has 40 steps, ``last_steps`` 10, ``margin`` 2 and ``scale`` 1e-3."""

    last_steps: int = Field(3, gt=0, description="one of this many last steps is drawn")


class ReFL(Pathwise):
    """Descends the reward's loss at one late step: one model call and the decoder carry gradients.

    The step is drawn anew for each training step. From its latents the model's prediction of the clean ones is decoded
    at once (`Policy.finish` with ``jump``). The paper adds its pretraining loss, the released code does not, and there
    is none here.

    Metric: ``pathwise/reward``.
    """

    name: ClassVar[str] = "refl"
    Options: ClassVar[type[base.Options]] = ReFLOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `ReFLOptions`."""
        found = ReFLOptions(**options)
        self.options, self._last_steps = found, found.last_steps

    def depth(self, steps: int) -> int:
        """Those of which one is drawn."""
        return self._last_steps

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[int]:
        """The step, the same for all samples of a training step."""
        steps = len(rollout.places)
        return drawn_step(max(steps - self._last_steps, rollout.start), steps - 1, seeds)

    def images(self, policy: Policy, rollout: Rollout, piece: int) -> Tensor:
        """Decoded from the predicted clean latents."""
        return policy.finish(rollout, piece, jump=True)
