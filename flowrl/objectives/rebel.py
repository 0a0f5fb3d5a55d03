"""REBEL: reward differences regressed on log-ratios to the policy of the rollout.

See "REBEL: Reinforcement Learning via Regressing Relative Rewards", Gao et al., https://arxiv.org/abs/2404.16767, and
for diffusion models "RL for Consistency Models: Faster Reward Guided Text-to-Image Generation", Oertell et al.,
https://arxiv.org/abs/2404.03673.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from torch import Tensor

from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .prdp import PRDP, DifferenceOptions


class REBEL(PRDP):
    """PRDP against the rollout's own policy, without a clip: each step of the training tilts the policy a little more.

    So there is no reference model to call, and none that holds the policy back in the long run. At the first update of
    a step every log-ratio is 0, and the gradient is the policy gradient of pairs. ``1 / beta`` is the paper's eta.

    Metrics: those of PRDP.
    """

    name: ClassVar[str] = "rebel"
    Options: ClassVar[type[base.Options]] = DifferenceOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `flowrl.objectives.prdp.DifferenceOptions`."""
        self.options = DifferenceOptions(**options)
        self.clip_range = math.inf

    def model_calls(self, trained_steps: int) -> int:
        """One for each recorded step; later updates of a step measure anew."""
        return trained_steps

    def anchor(self, policy: Policy, rollout: Rollout, recorded: Tensor) -> Tensor:
        """The rollout's log-probabilities."""
        return recorded
