"""DPO on a run's own samples: winners and losers of each group, compared by the errors of denoising them.

See "Diffusion Model Alignment Using Direct Preference Optimization", Wallace et al., https://arxiv.org/abs/2311.12908,
and Flow-DPO in "Improving Video Generation with Human Feedback", Liu et al., https://arxiv.org/abs/2501.13918.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..errors import UserError
from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import ForwardOptions, Noising
from .pairs import PairRule, choose, gap_strength, gap_weights
from .preference import GroupPreference, Judged, dpo_loss, ipo_loss, margin, simpo_loss


class DPOOptions(ForwardOptions):
    """Options of DPO."""

    loss: Literal["sigmoid", "ipo", "simpo"] = Field(
        "sigmoid", description="of a pair: sigmoid (DPO), ipo (a finite margin), simpo (no reference policy)"
    )
    beta: float = Field(100.0, gt=0, description="margin of a pair for a unit of mean squared error, times 2")
    pairs: PairRule = Field(
        "best_worst", description="of a group: best_worst, mu_2sigma (best, and nearest to mean - 2 std), all"
    )
    tau: float = Field(0.1, gt=0, description="of ipo: margins aim at 1 / (2 tau)")
    gamma: float = Field(0.5, ge=0, description="of simpo: the margin at which the loss is ln 2")
    anchor: float = Field(0.0, ge=0, description="weight of the winners' own error, which holds simpo on the data")
    gap_weight: float = Field(
        0.0, ge=0, description="kappa of PhyDPO, by advantages; normalised in a group, so it wants pairs: all"
    )
    noise: Literal["drawn", "stored"] = Field(
        "drawn",
        description="of the forward process: drawn anew; or stored, what a sample was drawn from (PNAPO)",
    )
    gap_beta: bool = Field(False, description="beta times 2 sigmoid(gap) - 1 of the pair's advantages, as in PNAPO")


class DPO(GroupPreference):
    """Preference of the better sample of a pair, by model errors at shared noise levels and noise.

    Metrics: ``dpo/loss``, ``dpo/accuracy`` (pairs whose margin is positive; 1/2 for 0), ``dpo/margin``, ``dpo/excess``
    (winners' error less the reference policy's: rising, the policy leaves them too), ``dpo/paired`` (groups with a
    pair).
    """

    name: ClassVar[str] = "dpo"
    Options: ClassVar[type[base.Options]] = DPOOptions
    options: DPOOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DPOOptions`."""
        self.options = DPOOptions(**options)

    @property
    def compares(self) -> bool:
        """Only SimPO has no reference policy."""
        return self.options.loss != "simpo"

    @property
    def needs_noise(self) -> bool:
        """For PNAPO's stored noise."""
        return self.options.noise == "stored"

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[Noising]:
        """As of every objective on the forward process, or with each sample's own stored noise."""
        drawn = super().pieces(policy, rollout, seeds)
        if not self.needs_noise:
            return drawn
        assert rollout.noise is not None, "data without noise is refused before weights load"
        return [replace(piece, eps=rollout.noise.float()) for piece in drawn]

    def check(self, steps: int) -> None:
        """Weights of mean 1 of a single pair would do nothing."""
        super().check(steps)
        if self.options.gap_weight > 0 and self.options.pairs != "all":
            raise UserError(
                f"objective.gap_weight: its weights have mean 1 over the pairs of a group, and objective.pairs: "
                f"{self.options.pairs} makes one pair. Write pairs: all, or gap_weight: 0."
            )

    def judge(self, errors: Tensor, reference: Tensor, advantages: Tensor) -> Judged:
        """The mean loss of a group's pairs; 0 for one without a pair."""
        chosen = choose(self.options.pairs, advantages)
        gaps = (advantages[:, :, None] - advantages[:, None, :]).clamp(min=0)
        excess, share = errors - reference, chosen / chosen.sum(dim=(1, 2), keepdim=True).clamp(min=1)
        beta = self.options.beta * gap_strength(gaps) if self.options.gap_beta else self.options.beta
        margins = margin(excess[:, :, None], excess[:, None, :], beta)
        weights = gap_weights(gaps.flatten(1), self.options.gap_weight, chosen.flatten(1)).view_as(gaps)
        loss = _sum(share * weights * self._of_pairs(margins)) + self.options.anchor * _sum(share * errors[:, :, None])
        right = torch.where(margins == 0, 0.5, (margins > 0).float())
        metrics = {
            "dpo/loss": loss,
            "dpo/accuracy": _sum(share * right),
            "dpo/margin": _sum(share * margins),
            "dpo/excess": _sum(share * excess[:, :, None]),
            "dpo/paired": chosen.flatten(1).any(dim=1).float(),
        }
        return Judged(loss, metrics)

    def _of_pairs(self, margins: Tensor) -> Tensor:
        if self.options.loss == "ipo":
            return ipo_loss(margins, self.options.tau)
        return simpo_loss(margins, self.options.gamma) if self.options.loss == "simpo" else dpo_loss(margins)


def _sum(values: Tensor) -> Tensor:
    return values.flatten(1).sum(dim=1)
