"""Reward-weighted regression: flow matching on the policy's own samples, the better ones with more weight.

See "Reinforcement Learning by Reward-weighted Regression for Operational Space Control", Peters and Schaal,
https://dl.acm.org/doi/10.1145/1273496.1273590, and for flow models "Improving Video Generation with Human Feedback",
Liu et al., https://arxiv.org/abs/2501.13918.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import Forward, ForwardOptions, Noising, frozen, mean_square, target


class RegressionOptions(ForwardOptions):
    """Options of every weighted regression."""

    kl: float = Field(1e-3, ge=0, description="weight of the squared velocity difference to the reference policy")


class RWROptions(RegressionOptions):
    """Options of reward-weighted regression."""

    temperature: float = Field(1.0, gt=0, description="advantages are divided by it before the exponential")


class RWR(Forward):
    """Regression on the final latents, with weights ``exp(A / temperature)`` whose mean in a group is 1.

    Regression on one's own samples alone changes nothing on average; with weights it moves to the policy tilted by
    ``exp(A / temperature)``, and with the term ``kl`` it comes to rest.

    Metrics: ``rwr/error`` (of the velocity, without weights), ``rwr/weight_max`` (largest weight of a group), and
    ``kl/reference`` if ``kl > 0``.
    """

    name: ClassVar[str] = "rwr"
    Options: ClassVar[type[base.Options]] = RWROptions
    options: RegressionOptions
    measures: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """Set the options, see `RWROptions`."""
        found = RWROptions(**options)
        self.options, self._temperature = found, found.temperature

    def model_calls(self, trained_steps: int) -> int:
        """The policy at each noise level, and the reference policy if it holds the policy back."""
        return self.options.times * (1 + (self.options.kl > 0))

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[Noising], work: base.Work) -> Tensor:
        """Nothing: the advantages of the group are all that its samples need to know of each other."""
        return torch.zeros(len(rollout), 0)

    def weights(self, group: base.Group) -> Tensor:
        """Weights `[B, G]` of all samples of each group."""
        return exponential_weights(group.advantages, self._temperature)

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The weighted error at one noise level a sample."""
        assert work.group is not None, "the trainer gives the groups of an objective that measures"
        noised = self.noised(policy, rollout, piece)
        v = policy.predict(rollout, noised.x_t, piece.sigma).float()
        error = mean_square(v - target(noised.x_0, piece.eps, noised.level, policy.prediction))
        weights = self.weights(work.group)
        loss = weights.gather(1, work.group.own[:, None])[:, 0] * error
        metrics = {"rwr/error": error.detach(), "rwr/weight_max": weights.amax(dim=1)}
        if self.options.kl > 0:
            divergence = mean_square(v - frozen(policy, rollout, noised.x_t, piece.sigma, policy.reference()))
            loss = loss + self.options.kl * divergence
            metrics["kl/reference"] = divergence.detach()
        return base.Terms(loss, metrics)


def exponential_weights(advantages: Tensor, temperature: float) -> Tensor:
    """``exp(A / temperature)`` over its mean in the group, `[B, G]`.

    An advantage of exactly 0 is that of a sample without a score, or of a group without spread: there is nothing to
    learn from it, and its weight is 0.

    Args:
        advantages: `[B, G]`.
        temperature: > 0; the smaller, the more the best sample counts.

    >>> exponential_weights(torch.tensor([[0.6931, -0.6931, 0.0]]), 1.0)
    tensor([[1.6000, 0.4000, 0.0000]])
    """
    known = advantages != 0
    weights = torch.where(known, (advantages - advantages.amax(dim=1, keepdim=True)).div(temperature).exp(), 0.0)
    return weights * known.sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True).clamp_min(1e-30)
