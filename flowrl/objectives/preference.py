"""Losses of preferences on the forward process, and what objectives with such a loss over a group share.

A sample's likelihood is a model error here: ``q``, the mean square over the elements of a sample of the model's output
less `flowrl.objectives.forward.target`, at one noise level. Published betas belong to that mean and to the factor 1/2
of `margin`: 5000 for SD 1.5 and SDXL (https://arxiv.org/abs/2311.12908; 2500 where code leaves the 1/2 out), 500 for
Wan and TRELLIS, 100 for SD 3.5 (Flow-DPO). Times the weight of a noise level, which all of them take as constant.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import Forward, Noising, frozen, mean_square, target


def margin(winner: Tensor, loser: Tensor, beta: float | Tensor) -> Tensor:
    """By how much a winner is preferred to a loser, ``-(beta / 2) (winner - loser)``, a difference of log-ratios.

    Args:
        winner: ``q - q_ref`` of the winner, a model error less that of the reference; ``q`` alone without a reference.
        loser: the same of the loser, in the same shape.
        beta: > 0; it may be one for each pair.

    >>> margin(torch.tensor([-0.02]), torch.tensor([0.02]), 100.0)  # -50 * -0.04
    tensor([2.])
    """
    return -(beta / 2) * (winner - loser)


def dpo_loss(margins: Tensor) -> Tensor:
    """Diffusion-DPO and Flow-DPO, ``-ln sigmoid(m)`` for each pair; ln 2 at the reference.

    See "Diffusion Model Alignment Using Direct Preference Optimization", Wallace et al.,
    https://arxiv.org/abs/2311.12908, and "Improving Video Generation with Human Feedback", Liu et al.,
    https://arxiv.org/abs/2501.13918: the same on another model's errors.

    Args:
        margins: of `margin`, in any shape; the loss has the same, and no mean is taken before the logarithm.

    >>> dpo_loss(torch.tensor([0.0, 2.0]))
    tensor([0.6931, 0.1269])
    """
    return -logsigmoid(margins)


def ipo_loss(margins: Tensor, tau: float) -> Tensor:
    """IPO, ``(m - 1 / (2 tau))^2`` for each pair: a finite aim, where DPO's margins grow for ever.

    See "A General Theoretical Paradigm to Understand Learning from Human Preferences", Azar et al.,
    https://arxiv.org/abs/2310.12036.

    Args:
        margins: of `margin`, in any shape.
        tau: > 0.

    >>> ipo_loss(torch.tensor([0.0, 5.0]), 0.1)
    tensor([25.,  0.])
    """
    return (margins - 1 / (2 * tau)).square()


def simpo_loss(margins: Tensor, gamma: float) -> Tensor:
    """SimPO, ``-ln sigmoid(m - gamma)`` for each pair, with margins of plain errors: there is no reference.

    See "SimPO: Simple Preference Optimization with a Reference-Free Reward", Meng et al.,
    https://arxiv.org/abs/2405.14734.

    Args:
        margins: `margin` of the errors themselves, in any shape.
        gamma: by how much a winner is to win, in units of the margin.

    >>> simpo_loss(torch.tensor([0.5]), 0.5)
    tensor([0.6931])
    """
    return -logsigmoid(margins - gamma)


class Judged(NamedTuple):
    """What a group comes to: its loss `[B]`, with gradients to the errors, and metrics `[B]`."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class GroupPreference(Forward):
    """An objective whose loss is a function of the model errors of a whole group, at one noise level.

    The samples of a group share noise and levels. All errors are measured before the update, so that a micro-batch
    knows those of samples in other ones: with the derivative ``d_i`` of a group's loss L by the error of sample i,

        L + G d_i (q_i - sg[q_i])

    has the value L, and its mean over the G samples the gradient of L, exactly, wherever they lie.
    """

    shared: ClassVar[bool] = True
    measures: ClassVar[bool] = True

    @property
    def compares(self) -> bool:
        """Whether errors are compared with those of the reference policy."""
        return True

    def model_calls(self, trained_steps: int) -> int:
        """Policy and reference policy to measure each noise level, and the policy again for the loss."""
        return self.options.times * (2 + self.compares)

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[Noising], work: base.Work) -> Tensor:
        """The policy's error in each piece, and behind them those of the reference policy, `[B, 2 pieces]`."""
        errors = [self.errors(policy, rollout, piece) for piece in pieces]
        return torch.cat([torch.stack(part, dim=1) for part in zip(*errors, strict=True)], dim=1)

    def errors(self, policy: Policy, rollout: Rollout, piece: Noising) -> tuple[Tensor, Tensor]:
        """Mean squared errors `[B]` of the policy, and of the reference policy without gradients (0 without one)."""
        noised = self.noised(policy, rollout, piece)
        wanted = target(noised.x_0, piece.eps, noised.level, policy.prediction)
        error = mean_square(policy.predict(rollout, noised.x_t, piece.sigma).float() - wanted)
        if not self.compares:
            return error, torch.zeros_like(error)
        output = frozen(policy, rollout, noised.x_t, piece.sigma, policy.reference())
        return error, mean_square(output - wanted)

    @abstractmethod
    def judge(self, errors: Tensor, reference: Tensor, advantages: Tensor) -> Judged:
        """A group's loss, from ``errors``, those of the reference policy and advantages of its samples, `[B, G]`."""

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The loss of each sample's group, with the sample's own share of the gradient."""
        assert work.group is not None, "the trainer gives the groups of an objective that measures"
        group, half = work.group, work.group.measured.shape[-1] // 2
        errors = group.measured[..., piece.number].clone().requires_grad_()
        judged = self.judge(errors, group.measured[..., half + piece.number], group.advantages)
        (slopes,) = torch.autograd.grad(judged.loss.sum(), errors)
        slope = slopes.shape[1] * slopes.gather(1, group.own[:, None])[:, 0]
        noised = self.noised(policy, rollout, piece)
        wanted = target(noised.x_0, piece.eps, noised.level, policy.prediction)
        error = mean_square(policy.predict(rollout, noised.x_t, piece.sigma).float() - wanted)
        metrics = {name: value.detach() for name, value in judged.metrics.items()}
        return base.Terms(judged.loss.detach() + slope * (error - error.detach()), metrics)
