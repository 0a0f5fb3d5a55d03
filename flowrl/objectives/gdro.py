"""GDRO: the order of a whole group, by softened rewards, as winner and loser in DPO.

See "GDRO: Group-level Reward Post-training Suitable for Diffusion Models", https://arxiv.org/abs/2601.02036.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from . import base
from .forward import ForwardOptions
from .preference import GroupPreference, Judged


class GDROOptions(ForwardOptions):
    """Options of GDRO."""

    beta: float = Field(12.0, gt=0, description="implicit score for a unit of mean squared error, without DPO's 1/2")
    tau: float = Field(0.25, gt=0, description="temperature of the targets, in units of the advantages")
    form: Literal["full", "top1"] = Field("full", description="full: a target for each rank; top1: for the best alone")
    anchor: float = Field(0.5, ge=0, description="weight of the best sample's own error, the paper's gamma")


class GDRO(GroupPreference):
    """A list-wise loss over the implicit scores of a group, ``s = -beta (q - q_ref)``, with advantages for rewards.

    Metrics: ``gdro/loss`` (list-wise part), ``gdro/accuracy`` (pairs that the scores order as the rewards do; 1/2 for
    equal scores), ``gdro/spread`` (standard deviation of the scores), ``gdro/anchor`` (error of the best sample).
    """

    name: ClassVar[str] = "gdro"
    Options: ClassVar[type[base.Options]] = GDROOptions
    options: GDROOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `GDROOptions`."""
        self.options = GDROOptions(**options)

    def judge(self, errors: Tensor, reference: Tensor, advantages: Tensor) -> Judged:
        """The list-wise loss and the anchor; 0 for a group without spread, which has no best sample."""
        options, spreads = self.options, advantages.amax(dim=1) > advantages.amin(dim=1)
        scores = -options.beta * (errors - reference)
        listwise = group_loss(scores, advantages, options.tau, options.form)
        best = errors.gather(1, advantages.argmax(dim=1, keepdim=True))[:, 0]
        better = advantages[:, :, None] > advantages[:, None, :]
        ahead = scores[:, :, None] - scores[:, None, :]
        right = better * torch.where(ahead == 0, 0.5, (ahead > 0).float())
        metrics = {
            "gdro/loss": listwise * spreads,
            "gdro/accuracy": right.sum(dim=(1, 2)) / better.sum(dim=(1, 2)).clamp(min=1),
            "gdro/spread": scores.std(dim=1, unbiased=False),
            "gdro/anchor": best * spreads,
        }
        return Judged((listwise + options.anchor * best) * spreads, metrics)


def group_loss(scores: Tensor, rewards: Tensor, tau: float, form: Literal["full", "top1"] = "full") -> Tensor:
    """GDRO's loss `[B]` of groups of G.

    With samples in falling order of rewards r and targets ``p_i = softmax(r / tau)`` over samples i to G:

        sum_{i < G} (ln sum_{m >= i} exp(s_m) - sum_{j >= i} p_i(j) s_j)

    of which ``top1`` is the term of i = 1. Free scores are best at ``r / tau``, up to a constant. Two samples and
    ``tau -> 0`` are DPO, ``-ln sigmoid(s_1 - s_2)``; its beta is twice the one here, for its factor of 1/2. Samples of
    equal rewards keep their places; in the full form their order matters.

    Args:
        scores: `[B, G]` implicit scores.
        rewards: `[B, G]`.
        tau: > 0.
        form: full, or top1.

    >>> group_loss(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 1.0]]), 1e-3)  # -ln sigmoid(2)
    tensor([0.1269])
    """
    order = rewards.argsort(dim=1, descending=True, stable=True)
    s, r = scores.gather(1, order), rewards.gather(1, order)
    ranks = range(1 if form == "top1" else s.shape[1] - 1)
    terms = [s[:, i:].logsumexp(dim=1) - ((r[:, i:] / tau).softmax(dim=1) * s[:, i:]).sum(dim=1) for i in ranks]
    return torch.stack(terms).sum(dim=0) if terms else s.sum(dim=1) * 0
