"""Advantage-weighted matching: the policy gradient with a denoising error for a log-probability.

See "Advantage Weighted Matching: Aligning RL with Pretraining in Diffusion Models", Xue et al.,
https://arxiv.org/abs/2509.25050.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ..adapters import Decay, constant_decay, ramp_decay
from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import Forward, ForwardOptions, Noised, Noising, frozen, mean_square, target
from .grpo import clipped_surrogate, ratio_metrics

Weighting = Literal["uniform", "sigma", "sigma_squared", "huber"]


class AWMOptions(ForwardOptions):
    """Options of AWM."""

    weighting: Weighting = Field("uniform", description="of the error by noise level: uniform, sigma, ..., or huber")
    clip_range: float = Field(1.0, gt=0, description="ratio is clipped to 1 - c .. 1 + c; the authors' 1 is hardly met")
    advantage_clip: float = Field(5.0, gt=0, description="advantages are clipped to -a .. a, and divided by a")
    kl: float = Field(1e-3, ge=0, description="weight of the squared velocity difference to the reference policy")
    kl_ema: float = Field(0.0, ge=0, description="the same to a moving average of the policy that follows fast")


class AWM(Forward):
    """Raises ``-w error`` of good samples and lowers that of bad ones, as a policy gradient does log-probabilities.

    At the weights of the rollout the gradient is the advantage times that of flow matching on the policy's own samples:
    of reinforcement learning with the loss of pretraining. With uniform weights and the term ``kl`` its optimum is the
    reference tilted by ``exp(A / (kl advantage_clip))``.

    Metrics: ``awm/error`` (of the velocity), those of the ratio as in `grpo`, and ``kl/reference`` and ``kl/ema`` where
    these have a weight.
    """

    name: ClassVar[str] = "awm"
    by_step: ClassVar[bool] = True
    Options: ClassVar[type[base.Options]] = AWMOptions
    options: AWMOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `AWMOptions`."""
        self.options = AWMOptions(**options)

    def copies(self) -> Mapping[str, Decay]:
        """The weights of the rollout, and the fast average if it has a weight."""
        fast = {"fast": ramp_decay(0.001, 0.3)} if self.options.kl_ema > 0 else {}
        return {"rollout": constant_decay(0.0), **fast}

    def model_calls(self, trained_steps: int) -> int:
        """The policy and the rollout's weights at each noise level, and each policy that holds it back."""
        return self.options.times * (2 + (self.options.kl > 0) + (self.options.kl_ema > 0))

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The surrogate at one noise level a sample."""
        options, noised = self.options, self.noised(policy, rollout, piece)
        wanted = target(noised.x_0, piece.eps, noised.level, policy.prediction)
        v = policy.predict(rollout, noised.x_t, piece.sigma).float()
        error = mean_square(v - wanted)
        old, old_error = work.copies["rollout"], error.detach()
        if not (work.on_policy or old.is_current()):
            old_error = mean_square(frozen(policy, rollout, noised.x_t, piece.sigma, old.active()) - wanted)
        log_ratio = weighted_error(old_error, piece.sigma, options.weighting)
        log_ratio = log_ratio - weighted_error(error, piece.sigma, options.weighting)
        clip = options.advantage_clip
        advantages = self.credit(rollout, piece, work).clamp(-clip, clip) / clip
        loss = clipped_surrogate(log_ratio, advantages, options.clip_range)
        metrics = {"awm/error": error.detach(), **ratio_metrics(log_ratio.detach(), advantages, options.clip_range)}
        for key, weight in (("reference", options.kl), ("ema", options.kl_ema)):
            if weight > 0:
                divergence = mean_square(v - self._held(policy, rollout, noised, piece, work, key))
                loss = loss + weight * divergence
                metrics[f"kl/{key}"] = divergence.detach()
        return base.Terms(loss, metrics)

    @staticmethod
    def _held(policy: Policy, rollout: Rollout, noised: Noised, piece: Noising, work: base.Work, which: str) -> Tensor:
        """Model output of the policy that holds back the one that is trained."""
        weights = policy.reference() if which == "reference" else work.copies["fast"].active()
        return frozen(policy, rollout, noised.x_t, piece.sigma, weights)


def weighted_error(error: Tensor, sigma: Tensor, weighting: Weighting = "uniform") -> Tensor:
    """An error as minus a log-probability, `[B]`: ``w(sigma) error`` with w = 1, sigma or sigma^2, or Huber-like.

    The last is ``((error + 1e-10)^(1/4) - 1e-10^(1/4)) 4 sigma`` in float64, which large errors hardly move.

    Args:
        error: `[B]` mean squared errors.
        sigma: `[B]` or 0-dim noise levels.
        weighting: which.

    >>> import torch
    >>> weighted_error(torch.tensor([16.0]), torch.tensor(0.5), "huber"), weighted_error(torch.ones(1), torch.ones(1))
    (tensor([3.9937]), tensor([1.]))
    """
    if weighting == "huber":
        power, floor = 0.25, 1e-10
        damped: Tensor = (error.double() + floor).pow(power) - floor**power
        return (damped * sigma / power).float()
    exponent = {"uniform": 0, "sigma": 1, "sigma_squared": 2}[weighting]
    weight: Tensor = sigma.pow(exponent)
    return error * weight
