"""Stepwise-Flow-GRPO: each denoising step gets credit for what it gained.

See "Stepwise Credit Assignment for GRPO on Flow-Matching Models", https://arxiv.org/abs/2603.28718.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from ..adapters import Decay, constant_decay
from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .grpo import GRPO

_NO_SPREAD = 1e-6


class StepwiseGRPO(GRPO):
    """GRPO whose advantages are the normalised gains of steps, see `joint_advantages`.

    The state with which a step begins is worth the reward of the clean picture that the model predicts there, decoded
    at once (Tweedie's formula; the paper's short ODE from there is not offered); what the last step leads to is worth
    the reward of the final picture. A step's gain is what it adds to that. All values are of the rollout's weights.

    The advantages of the config are for other objectives, and not used.

    Metrics: those of GRPO, ``step/gain`` (mean gain of the step), and ``step/gain_size`` (its mean absolute value).
    """

    name: ClassVar[str] = "stepwise_grpo"
    measures: ClassVar[bool] = True
    by_step: ClassVar[bool] = False

    def copies(self) -> Mapping[str, Decay]:
        """The weights of the rollout."""
        return {"rollout": constant_decay(0.0)}

    def keep_steps(self, steps: int) -> Collection[int]:
        """Every step, to value the state with which it begins."""
        return range(steps)

    def model_calls(self, trained_steps: int) -> int:
        """One more for each recorded step than GRPO, and one for the state after the last of them."""
        return super().model_calls(trained_steps) + trained_steps + 1

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[int], work: base.Work) -> Tensor:
        """The gains `[B, T]` of the recorded steps."""
        assert work.score is not None, "the trainer gives the rewards of other pictures"
        worth = {}
        with work.copies["rollout"].active():
            for step in sorted({*pieces, *(step + 1 for step in pieces)}):
                ended = step == len(rollout.places)
                images = rollout.images if ended else policy.finish(rollout, step, jump=True)
                worth[step] = work.score(images).float()
        return torch.stack([worth[step + 1] - worth[step] for step in pieces], dim=1)

    def advantages(self, rollout: Rollout, step: int, work: base.Work) -> Tensor:
        """Those of the step's gains."""
        assert work.group is not None, "the trainer gives the groups of an objective that measures"
        column = sorted(rollout.transitions).index(step)
        own = torch.arange(len(work.group.own), device=work.group.own.device)
        return joint_advantages(work.group.measured)[own, work.group.own, column]

    def loss(self, policy: Policy, rollout: Rollout, piece: int, work: base.Work) -> base.Terms:
        """The clipped surrogate of one step of the schedule."""
        loss, metrics = super().loss(policy, rollout, piece, work)
        assert work.group is not None
        gain = work.group.of_self()[:, sorted(rollout.transitions).index(piece)].nan_to_num()
        return base.Terms(loss, {**metrics, "step/gain": gain, "step/gain_size": gain.abs()})


def joint_advantages(gains: Tensor) -> Tensor:
    """Gains less their mean, over their standard deviation, both over all samples and steps of a group: `[B, G, T]`.

    Normalising each step by itself would make early steps, which decide more, count as little as the late ones. A gain
    that is NaN, because a picture could not be scored, is left out of the statistics and gets 0; so do all gains of a
    group without spread.

    Args:
        gains: `[B, G, T]`.

    >>> joint_advantages(torch.tensor([[[0.0, 3.0], [0.0, 1.0]]])).mul(1.5**0.5).round(decimals=4)
    tensor([[[-1.,  2.],
             [-1.,  0.]]])
    """
    rows = gains.double().flatten(1)
    known = rows.isfinite()
    count = known.sum(dim=1, keepdim=True).clamp(min=1)
    mean = torch.where(known, rows, 0.0).sum(dim=1, keepdim=True) / count
    deviation = torch.where(known, rows - mean, 0.0)
    std = (deviation.square().sum(dim=1, keepdim=True) / count).sqrt()
    spread = std > _NO_SPREAD
    found = torch.where(spread, deviation / torch.where(spread, std, 1.0), 0.0)
    return found.reshape(gains.shape).float()
