"""DGPO: direct preference optimisation of whole groups, on the forward process.

See "Reinforcing Diffusion Models by Direct Group Preference Optimization", Luo et al.,
https://arxiv.org/abs/2510.08425.
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


class DGPOOptions(ForwardOptions):
    """Options of DGPO."""

    beta: float = Field(100.0, gt=0, description="how soon a group counts as learnt, for mean squared errors")
    kl: float = Field(1e-3, ge=0, description="weight of the squared velocity difference to the reference policy")
    advantage_clip: float = Field(5.0, gt=0, description="advantages are clipped to -a .. a")


class DGPO(Forward):
    """Good samples against bad ones of a group, each by its advantage, as winner against loser in DPO.

    The samples of a group share noise and levels, so that their errors differ by the samples alone. How far a group has
    been learnt is one number, to which all of its samples contribute (`measure`); its gradient is weighted by what is
    left to learn. Rollouts come from any sampler.

    Metrics: ``dgpo/weight`` (1/2 at the reference policy, towards 0 for a group that is learnt), ``dgpo/error``, and
    ``kl/reference`` if ``kl > 0``.
    """

    name: ClassVar[str] = "dgpo"
    Options: ClassVar[type[base.Options]] = DGPOOptions
    options: DGPOOptions
    shared: ClassVar[bool] = True
    measures: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DGPOOptions`."""
        self.options = DGPOOptions(**options)

    def model_calls(self, trained_steps: int) -> int:
        """Policy and reference policy to measure each noise level, and both again for the loss (the latter for kl)."""
        return self.options.times * (3 + (self.options.kl > 0))

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[Noising], work: base.Work) -> Tensor:
        """By how much the policy's error exceeds the reference policy's in each piece, `[B, pieces]`."""
        excess = []
        for piece in pieces:
            noised = self.noised(policy, rollout, piece)
            wanted = target(noised.x_0, piece.eps, noised.level, policy.prediction)
            v = policy.predict(rollout, noised.x_t, piece.sigma).float()
            v_reference = frozen(policy, rollout, noised.x_t, piece.sigma, policy.reference())
            excess.append(mean_square(v - wanted) - mean_square(v_reference - wanted))
        return torch.stack(excess, dim=1)

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The weighted errors at one noise level."""
        assert work.group is not None, "the trainer gives the groups of an objective that measures"
        options, noised = self.options, self.noised(policy, rollout, piece)
        clip = options.advantage_clip
        advantages = work.group.advantages.clamp(-clip, clip)
        weight = group_weight(advantages, work.group.measured[..., piece.number], options.beta)
        v = policy.predict(rollout, noised.x_t, piece.sigma).float()
        error = mean_square(v - target(noised.x_0, piece.eps, noised.level, policy.prediction))
        loss = weight * advantages.gather(1, work.group.own[:, None])[:, 0] * error
        metrics = {"dgpo/weight": weight, "dgpo/error": error.detach()}
        if options.kl > 0:
            divergence = mean_square(v - frozen(policy, rollout, noised.x_t, piece.sigma, policy.reference()))
            loss = loss + options.kl * divergence
            metrics["kl/reference"] = divergence.detach()
        return base.Terms(loss, metrics)


def group_weight(advantages: Tensor, excess: Tensor, beta: float) -> Tensor:
    """What is left to learn of each group, `[B]` in (0, 1): ``sigmoid(beta mean_j A_j (q_j - q_ref,j))``.

    It is the slope of ``-ln sigmoid(-m)`` in ``m = beta mean_j A_j (q_j - q_ref,j)``, so that ``weight A_i q_i``,
    summed over a group, has the gradient of that loss times G / beta. Of two samples with advantages 1 and -1 it is
    Diffusion-DPO's.

    Args:
        advantages: `[B, G]` of the sample's whole group.
        excess: `[B, G]`, each error q less that of the reference policy.
        beta: > 0.

    >>> group_weight(torch.tensor([[1.0, -1.0]]), torch.tensor([[-0.02, 0.02]]), 100.0)  # sigmoid(-2)
    tensor([0.1192])
    """
    return (beta * (advantages * excess).mean(dim=1)).sigmoid()
