"""PRDP: the log-ratios of two samples of a group are to predict the difference of their rewards.

See "PRDP: Proximal Reward Difference Prediction for Large-Scale Reward Finetuning of Diffusion Models", Deng et al.,
https://arxiv.org/abs/2402.08714.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ..errors import UserError
from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .grpo import check_on_policy


class DifferenceOptions(base.Options):
    """Options that PRDP and REBEL share."""

    beta: float = Field(
        1.0, gt=0, description="strength of the pull to the policy that the log-ratios are taken against"
    )
    over_steps: Literal["mean", "sum"] = Field(
        "mean", description="how a trajectory's log-ratio comes from those of its trained steps"
    )


class PRDPOptions(DifferenceOptions):
    """Options of PRDP."""

    clip_range: float | None = Field(
        1e-4, gt=0, description="a step's log-probability counts up to this far from the rollout's; null for no clip"
    )


class PRDP(base.Objective):
    """Regression of reward differences on differences of log-ratios, over all pairs of a group.

    It is 0 if and only if the policy is the reference tilted by ``exp(A / beta)``, where the advantages A take the
    place of rewards: only their differences inside a group count. The proximal clip makes it stable.

    A trajectory's log-ratio is a sum over steps, each a model call of its own, and the others of its pairs may lie in
    other micro-batches. Both are numbers by the time of the loss (`measure`, `flowrl.objectives.exchange`): a piece of
    work has the gradient of one step of one micro-batch, and the mean of all pieces has that of the whole, exactly.

    Metrics: ``pair/loss``, ``pair/accuracy`` (pairs whose prediction has the sign of the reward difference; 1/2 for a
    tie), ``pair/clip_fraction`` (pairs whose clipped error is the larger), ``ratio/max_deviation`` of a step's ratio to
    the rollout.
    """

    name: ClassVar[str] = "prdp"
    Options: ClassVar[type[base.Options]] = PRDPOptions
    transitions: ClassVar[bool] = True
    measures: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        """Set the options, see `PRDPOptions`."""
        found = PRDPOptions(**options)
        self.options: DifferenceOptions = found
        self.clip_range = math.inf if found.clip_range is None else found.clip_range

    def check(self, steps: int) -> None:
        """The last step of a schedule ends on clean data and has no noise, so there must be one before it."""
        if steps < 2:
            raise UserError(
                f"policy.steps is 1: the only step has no noise, so {self.name} has nothing to train; write 2 or more."
            )

    def model_calls(self, trained_steps: int) -> int:
        """One with gradients for each recorded step, and one of the reference policy; later updates measure anew."""
        return 2 * trained_steps

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[int]:
        """The recorded steps."""
        return sorted(rollout.transitions)

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[int], work: base.Work) -> Tensor:
        """The log-ratio of each trajectory, and the same with its steps clipped: `[B, 2]`."""
        recorded = torch.stack([rollout.transitions[step].log_prob for step in pieces], dim=1)
        now = recorded
        if not work.on_policy:
            now = torch.stack([policy.replay(rollout, step).log_prob for step in pieces], dim=1)
        anchor = self.anchor(policy, rollout, recorded)
        near = now.clamp(recorded - self.clip_range, recorded + self.clip_range)
        return torch.cat([self._over_steps(now - anchor), self._over_steps(near - anchor)], dim=1)

    def anchor(self, policy: Policy, rollout: Rollout, recorded: Tensor) -> Tensor:
        """Log-probabilities `[B, T]` that a log-ratio is taken against: those of the reference policy."""
        with policy.reference():
            found = [policy.replay(rollout, step).log_prob for step in sorted(rollout.transitions)]
        return torch.stack(found, dim=1)

    def loss(self, policy: Policy, rollout: Rollout, piece: int, work: base.Work) -> base.Terms:
        """The loss of all pairs of each sample, with the gradient of one step."""
        assert work.group is not None, "the trainer gives the groups of an objective that measures"
        recorded, log_prob = rollout.transitions[piece].log_prob, policy.replay(rollout, piece).log_prob
        if work.on_policy:
            check_on_policy(log_prob - recorded, piece, policy.dtype)
        moved = (log_prob - recorded).detach()
        pairs = pair_losses(work.group, self.options.beta)
        # A step's share of the mean over pieces, which divides by their number where a sum over steps is wanted.
        share = len(rollout.transitions) if self.options.over_steps == "sum" else 1
        slope = share * (pairs.slope + torch.where(moved.abs() <= self.clip_range, pairs.clipped_slope, 0.0))
        loss = pairs.loss + slope * (log_prob - log_prob.detach())
        metrics = {
            "pair/loss": pairs.loss,
            "pair/accuracy": pairs.accuracy,
            "pair/clip_fraction": pairs.clip_fraction,
            "ratio/max_deviation": (moved.exp() - 1).abs().max(),
        }
        return base.Terms(loss, metrics)

    def _over_steps(self, log_ratios: Tensor) -> Tensor:
        if self.options.over_steps == "sum":
            return log_ratios.sum(dim=1, keepdim=True)
        return log_ratios.mean(dim=1, keepdim=True)


class PairLosses(NamedTuple):
    """What the pairs of each sample come to, all `[B]` and without gradient.

    Attributes:
        loss: mean over the pairs of a sample.
        slope: derivative by the sample's log-ratio of the loss of a group, through the unclipped errors.
        clipped_slope: the same through the clipped errors, for steps that the clip leaves alone.
        accuracy: share of pairs that are predicted in the right order.
        clip_fraction: share of pairs whose clipped error is the larger.
    """

    loss: Tensor
    slope: Tensor
    clipped_slope: Tensor
    accuracy: Tensor
    clip_fraction: Tensor


def pair_losses(group: base.Group, beta: float) -> PairLosses:
    """The proximal squared errors of reward differences.

    For the pair (i, j) with log-ratios p, clipped log-ratios q and advantages A:

        max((beta (p_i - p_j) - (A_i - A_j))^2, (beta (q_i - q_j) - (A_i - A_j))^2)

    which is the paper's loss times ``beta^2``. The derivative by ``p_i`` of the mean over all ordered pairs of a group
    of G, times G, is twice that of the mean over the pairs of i alone: the pair stands in the loss of j too.

    Args:
        group: measured are p and q, in the first two columns.
        beta: > 0.

    >>> one = torch.tensor([[0.0, 0.0], [1.0, 1.0]])  # log-ratios of two samples, nothing clipped
    >>> group = base.Group(torch.tensor([[0.0, 3.0]]), one[None], torch.tensor([0]))
    >>> pair_losses(group, beta=1.0).loss  # (0 - 1) - (0 - 3) = 2
    tensor([4.])
    """
    own, others = torch.arange(len(group.own), device=group.own.device), group.others()
    predicted = beta * (group.of_self()[:, None, :2] - group.measured[..., :2])  # [B, G, 2]
    wanted = group.advantages[own, group.own][:, None] - group.advantages
    errors = predicted - wanted[..., None]
    plain, clipped = errors.square().unbind(dim=-1)
    takes_clipped = clipped > plain
    slopes = 2 * 2 * beta * errors
    order = torch.where(wanted == 0, 0.5, (predicted[..., 0] * wanted > 0) + 0.5 * (predicted[..., 0] == 0))

    def over_pairs(values: Tensor) -> Tensor:
        return torch.where(others, values, 0.0).sum(dim=1) / others.sum(dim=1).clamp(min=1)

    return PairLosses(
        over_pairs(torch.maximum(plain, clipped)),
        over_pairs(torch.where(takes_clipped, 0.0, slopes[..., 0])),
        over_pairs(torch.where(takes_clipped, slopes[..., 1], 0.0)),
        over_pairs(order),
        over_pairs(takes_clipped.float()),
    )
