"""GRPO on recorded transitions: clipped policy gradient with group advantages.

See "Flow-GRPO: Training Flow Matching Models via Online RL", Liu et al., https://arxiv.org/abs/2505.05470, and
"DanceGRPO: Unleashing GRPO on Visual Generation", Xue et al., https://arxiv.org/abs/2505.07818. The two differ in
numbers, kernels and windows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from .. import kernels
from ..errors import RunStopped, UserError
from ..policy import Policy, Replay
from ..session import trainable_steps
from ..trajectory import Rollout
from . import base

RATIO_TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 5e-3}
"""Largest |log ratio| that rounding may leave before the first update; in float32 on a CPU it is 0."""


class GRPOOptions(base.Options):
    """Options of GRPO."""

    clip_range: float = Field(1e-4, gt=0, description="ratio is clipped to 1 - c .. 1 + c, for mean log-probabilities")
    beta: float = Field(0.0, ge=0, description="weight of the KL divergence to the reference policy, per transition")
    advantage_clip: float = Field(5.0, gt=0, description="advantages are clipped to -a .. a")
    noise_weighting: bool = Field(False, description="steps with more noise weigh more, as in TempFlow-GRPO")


class GRPO(base.Objective):
    """Clipped surrogate on the recorded transitions, plus ``beta`` times the KL divergence to the base model.

    Metrics: ``ratio/mean``, ``ratio/max_deviation`` (of the ratio from 1), ``ratio/clip_fraction`` (samples whose
    gradient the clip removes), ``kl/old`` (``(r - 1) - ln r``, an estimate of the KL divergence to the rollout policy),
    and ``kl/reference`` if ``beta > 0``.
    """

    name: ClassVar[str] = "grpo"
    Options: ClassVar[type[base.Options]] = GRPOOptions
    transitions: ClassVar[bool] = True
    by_step: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """Set the options, see `GRPOOptions`."""
        self.options = GRPOOptions(**options)

    def check(self, steps: int) -> None:
        """The last step of a schedule ends on clean data and has no noise, so there must be one before it."""
        if steps < 2:
            raise UserError(
                f"policy.steps is 1: the only step has no noise, so {self.name} has nothing to train; write 2 or more."
            )

    def model_calls(self, trained_steps: int) -> int:
        """One for each recorded step, and one more of the reference policy if it holds the policy back."""
        return trained_steps * (1 + (self.options.beta > 0))

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[int]:
        """The recorded steps."""
        return sorted(rollout.transitions)

    def loss(self, policy: Policy, rollout: Rollout, piece: int, work: base.Work) -> base.Terms:
        """The clipped surrogate of one step of the schedule."""
        options = self.options
        log_ratio, replay = self.ratio(policy, rollout, piece, work)
        advantages = self.advantages(rollout, piece, work).clamp(-options.advantage_clip, options.advantage_clip)
        loss = self.weight(policy, rollout, piece) * self.surrogate(log_ratio, advantages)
        metrics = ratio_metrics(log_ratio.detach(), advantages, options.clip_range)
        if options.beta > 0:
            divergence = kernels.kl(replay.mean, _reference(policy, rollout, piece).mean, replay.std, policy.reduction)
            loss = loss + options.beta * divergence
            metrics["kl/reference"] = divergence.detach()
        return base.Terms(loss, metrics)

    def advantages(self, rollout: Rollout, step: int, work: base.Work) -> Tensor:
        """Advantages `[B]` of a step."""
        return work.advantages_at(step)

    def ratio(self, policy: Policy, rollout: Rollout, step: int, work: base.Work) -> tuple[Tensor, Replay]:
        """Log-probability ratio `[B]` of a recorded step to the rollout's weights, and the replay it comes from."""
        replay = policy.replay(rollout, step)
        log_ratio = replay.log_prob - rollout.transitions[step].log_prob
        if work.on_policy:
            check_on_policy(log_ratio, step, policy.dtype)
        return log_ratio, replay

    def weight(self, policy: Policy, rollout: Rollout, step: int) -> float:
        """What the surrogate of a step is multiplied by."""
        if not self.options.noise_weighting:
            return 1.0
        return noise_weight([policy.kernel.std(place) for place in rollout.places], step)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        """The policy's part of the loss, `[B]`."""
        return clipped_surrogate(log_ratio, advantages, self.options.clip_range)


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """PPO's clipped surrogate, to be minimised.

    ``max(-A r, -A clip(r, 1 - c, 1 + c))`` with ``r = exp(log_ratio)``.

    See "Proximal Policy Optimization Algorithms", Schulman et al., https://arxiv.org/abs/1707.06347.

    Args:
        log_ratio: `[B]` log-probability under the current weights minus that of the rollout.
        advantages: `[B]`.
        clip_range: c > 0; published values of 1e-5 to 1e-3 are for log-probabilities averaged over elements.

    >>> clipped_surrogate(torch.tensor([0.0, 0.5]).log1p(), torch.tensor([1.0, 1.0]), 0.2)
    tensor([-1.0000, -1.2000])
    """
    ratio = log_ratio.exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_range, 1 + clip_range))


def noise_weight(stds: Sequence[float], step: int) -> float:
    """The weight of a step whose noise is large: its std over the mean std of the steps that can be trained.

    See "TempFlow-GRPO: When Timing Matters for GRPO in Flow Models", He et al., https://arxiv.org/abs/2508.04324.

    Args:
        stds: std that the kernel gives each step of the schedule.
        step: one of them.

    >>> noise_weight([0.75, 0.25, 0.0], 0)
    1.5
    """
    trainable = [stds[k] for k in trainable_steps(stds)]
    return stds[step] * len(trainable) / sum(trainable)


def ratio_metrics(log_ratio: Tensor, advantages: Tensor, clip_range: float) -> dict[str, Tensor]:
    """Diagnostics of the ratio, all 0-dim or `[B]`.

    >>> ratio_metrics(torch.zeros(2), torch.ones(2), 0.1)["ratio/clip_fraction"]
    tensor([0., 0.])
    """
    ratio = log_ratio.exp()
    above, below = (ratio > 1 + clip_range) & (advantages > 0), (ratio < 1 - clip_range) & (advantages < 0)
    return {
        "ratio/mean": ratio,
        "ratio/max_deviation": (ratio - 1).abs().max(),
        "ratio/clip_fraction": (above | below).float(),
        "kl/old": ratio - 1 - log_ratio,
    }


def check_on_policy(log_ratio: Tensor, step: int, dtype: torch.dtype) -> None:
    """Stop a run whose ratio is not 1 although nothing was updated since the rollout.

    Raises:
        RunStopped: with the largest deviation, the step, and the likely causes.
    """
    deviation = float(log_ratio.detach().abs().max())
    if not deviation <= RATIO_TOLERANCE[dtype]:
        raise RunStopped(
            f"the probability ratio is not 1 before the first update: largest |log ratio| {deviation:.3g} at step "
            f"{step} (tolerance {RATIO_TOLERANCE[dtype]:.0e} for {dtype}). The policy gradient would be wrong from the "
            "first step. Likely causes: dropout or another random layer is active; the model or its precision changed "
            "between rollout and training (autocast, another attention backend, weights edited in place); a condition "
            "is drawn at random inside the pipeline; the micro-batch was cut differently."
        )


@torch.no_grad()
def _reference(policy: Policy, rollout: Rollout, step: int) -> Replay:
    with policy.reference():
        return policy.replay(rollout, step)
