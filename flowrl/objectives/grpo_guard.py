"""GRPO-Guard: GRPO whose ratio is centred on 1 and equally wide at every step of the schedule.

See "GRPO-Guard: Mitigating Implicit Over-Optimization in Flow Matching via Regulated Clipping", Wang et al.,
https://arxiv.org/abs/2510.22319.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from .. import kernels
from ..adapters import Decay, constant_decay
from ..policy import Policy, Replay
from ..trajectory import Rollout
from . import base
from .grpo import GRPO, GRPOOptions


class GuardOptions(GRPOOptions):
    """Options of GRPO-Guard: those of GRPO, with another clip range."""

    clip_range: float = Field(2e-6, gt=0, description="the regulated ratio is clipped to 1 - c .. 1 + c")


class GRPOGuard(GRPO):
    """GRPO, with three changes that make one clip range mean the same at every step.

    The ratio's bias is taken out and its spread made equal, see `regulated`; so the clip works on both sides, where
    plain GRPO's ratio is below 1 on average and hardly ever meets its upper bound. And the surrogate is divided by the
    step's share ``-dt`` of the schedule, to which the gradient of the mean is proportional: without this, long steps
    decide.

    The means of the rollout are not stored. They are computed anew with a copy of the rollout's weights, and not at all
    before the first update of a step, when the current weights are those.

    Metrics: those of GRPO, of the regulated ratio.
    """

    name: ClassVar[str] = "grpo_guard"
    Options: ClassVar[type[base.Options]] = GuardOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `GuardOptions`."""
        self.options: GRPOOptions = GuardOptions(**options)

    def copies(self) -> Mapping[str, Decay]:
        """The weights of the rollout."""
        return {"rollout": constant_decay(0.0)}

    def model_calls(self, trained_steps: int) -> int:
        """One more for each recorded step than GRPO, with the weights of the rollout."""
        return super().model_calls(trained_steps) + trained_steps

    def ratio(self, policy: Policy, rollout: Rollout, step: int, work: base.Work) -> tuple[Tensor, Replay]:
        """The regulated log-ratio of a step."""
        log_ratio, replay = super().ratio(policy, rollout, step, work)
        old = work.copies["rollout"]
        if work.on_policy or old.is_current():
            mean_old = replay.mean.detach()
        else:
            with torch.no_grad(), old.active():
                mean_old = policy.replay(rollout, step).mean
        shift = kernels.kl(replay.mean, mean_old, replay.std, policy.reduction)
        return regulated(log_ratio, shift, replay.std), replay

    def weight(self, policy: Policy, rollout: Rollout, step: int) -> float:
        """GRPO's, over the step's share of the schedule."""
        place = rollout.places[step]
        return super().weight(policy, rollout, step) / (place.sigma - place.sigma_next)


def regulated(log_ratio: Tensor, shift: Tensor, std: Tensor) -> Tensor:
    r"""The log-ratio without its bias and in units that are the same at every step, `[B]`.

        (log_ratio + (mean - mean_old)^2 / (2 std^2)) std

    The log-ratio of two Gaussians of one std at ``x = mean_old + std z`` is ``z d / std - d^2 / (2 std^2)`` with
    ``d = mean - mean_old``, so what is left is ``z d``: its mean is 0 for every d, and its spread no longer goes
    with 1 / std. Two released implementations take the mean of the correction over the batch, or leave out the
    division by ``-dt``; both parts are per sample here.

    Args:
        log_ratio: `[B]`, by the weights that are trained over those of the rollout.
        shift: `[B]` KL divergence of the two transitions, see `flowrl.kernels.kl`.
        std: of the transition, 0-dim.

    >>> regulated(torch.tensor([0.5]), torch.tensor([0.125]), torch.tensor(2.0))  # d = 1, std = 2, z = 1.25
    tensor([1.2500])
    """
    return (log_ratio + shift) * std
