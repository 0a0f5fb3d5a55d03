"""Best-of-group regression: flow matching on the best sample of each group (rejection sampling, "SFT").

See "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment", Dong et al.,
https://arxiv.org/abs/2304.06767.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from . import base
from .rwr import RWR, RegressionOptions


class BestOfGroup(RWR):
    """`rwr` in the limit of a temperature of 0: the best sample of a group has all the weight, G.

    Metrics: those of ``rwr``.
    """

    name: ClassVar[str] = "best_of_group"
    Options: ClassVar[type[base.Options]] = RegressionOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `flowrl.objectives.rwr.RegressionOptions`."""
        self.options = RegressionOptions(**options)

    def weights(self, group: base.Group) -> Tensor:
        """All the weight for the best."""
        return best_weights(group.advantages)


def best_weights(advantages: Tensor) -> Tensor:
    """G for the largest advantage of each group of G, shared if there are several; 0 where there is no spread.

    Args:
        advantages: `[B, G]`.

    >>> import torch
    >>> best_weights(torch.tensor([[1.0, -2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    tensor([[2., 0., 2., 0.],
            [0., 0., 0., 0.]])
    """
    best = (advantages == advantages.amax(dim=1, keepdim=True)) & (advantages > 0)
    return best * advantages.shape[1] / best.sum(dim=1, keepdim=True).clamp(min=1)
