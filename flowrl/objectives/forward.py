"""What objectives on the forward process share: final latents, noised anew at random levels.

They need no transitions, so rollouts may come from any sampler, and no likelihood: a model that denoises a sample well
is one that draws it often.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from .. import kernels
from ..errors import UserError
from ..policy import Policy
from ..trajectory import Rollout
from . import base

Levels: TypeAlias = Literal["schedule", "inner", "uniform", "logit_normal"]
"""Where noise levels come from: the rollout's schedule; the same without its first level, at which nothing of the
sample is left; all of (0, 1); or the logistic function of a standard normal number."""

_LOWEST = 1e-3


class ForwardOptions(base.Options):
    """Options of every objective on the forward process."""

    times: int = Field(4, gt=0, description="noise levels drawn for each sample, without repetition")
    levels: Levels = Field(
        "schedule", description="schedule of the rollout, inner (without its first level), uniform, logit_normal"
    )


@dataclass(frozen=True)
class Noising:
    """Where a piece of work noises the final latents: ``sigma`` `[B]` or 0-dim, ``eps`` `[B, ...]`, and its number."""

    sigma: Tensor
    eps: Tensor
    number: int = 0


@dataclass(frozen=True)
class Noised:
    """Final latents ``x_0``, the same noised, ``x_t``, and the level in a shape that broadcasts over them."""

    x_0: Tensor
    x_t: Tensor
    level: Tensor


class Forward(base.Objective):
    """An objective whose pieces are noisings of the final latents.

    Attributes:
        options: of the objective.
        shared: whether the samples of a group share noise and levels; else each has its own.
    """

    options: ForwardOptions
    transitions: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def check(self, steps: int) -> None:
        """The schedule must have as many noise levels as are drawn for a sample."""
        available = {"schedule": steps, "inner": steps - 1}.get(self.options.levels, self.options.times)
        if self.options.times > available:
            inner = " (the first one left out)" if self.options.levels == "inner" else ""
            raise UserError(
                f"objective.times: {self.options.times} noise levels a sample, but policy.steps is {steps}{inner}."
            )

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[Noising]:
        """Noise levels, ``times`` different ones a sample in random order, each with noise.

        Samples have levels of their own where the pipeline takes them (without guidance), else those of the step.
        """
        levels = torch.tensor([place.sigma for place in rollout.places])
        options, latents = self.options, rollout.latents
        of_groups = seeds.groups or [seeds.step] * len(rollout)
        own = [torch.Generator().manual_seed(seed) for seed in (of_groups if self.shared else seeds.samples)]
        drawing = own if policy.takes_sigma_per_sample else [torch.Generator().manual_seed(seeds.step)]
        drawn = [draw_levels(options.levels, levels, options.times, generator) for generator in drawing]
        pieces = []
        for number, sigma in enumerate(torch.stack(drawn).T):  # `[B]`, or `[1]` that all samples share
            eps = torch.stack([torch.randn(latents.shape[1:], generator=g) for g in own])
            pieces.append(Noising(sigma.squeeze(0).to(latents.device), eps.to(latents.device), number))
        return pieces

    def credit(self, rollout: Rollout, piece: Noising, work: base.Work) -> Tensor:
        """Advantages `[B]` of the steps that begin nearest to a piece's noise levels."""
        if not work.by_step:
            return work.advantages
        begins = torch.tensor([place.sigma for place in rollout.places], device=piece.sigma.device)
        nearest = (piece.sigma.reshape(-1, 1) - begins).abs().argmin(dim=1).expand(len(rollout))
        table = torch.stack([work.advantages_at(step) for step in range(len(begins))], dim=1)
        return table.gather(1, nearest[:, None].to(table.device))[:, 0]

    def noised(self, policy: Policy, rollout: Rollout, piece: Noising) -> Noised:
        """The final latents at a piece's noise levels."""
        x_0 = rollout.latents.float()
        level = piece.sigma.view(-1, *[1] * (x_0.dim() - 1))
        return Noised(x_0, kernels.noised(x_0, piece.eps, level, policy.prediction), level)


def draw_levels(kind: Levels, schedule: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` noise levels `[count]`, all different.

    Args:
        kind: where from.
        schedule: the levels of the rollout's schedule, from noise to data.
        count: at most as many as the schedule offers.
        generator: of the random numbers.

    >>> draw_levels("inner", torch.tensor([1.0, 0.6, 0.3]), 2, torch.Generator().manual_seed(0)).sort().values
    tensor([0.3000, 0.6000])
    """
    if kind == "uniform":
        return torch.rand(count, generator=generator).clamp_min(_LOWEST)
    if kind == "logit_normal":
        return torch.randn(count, generator=generator).sigmoid().clamp_min(_LOWEST)
    levels = schedule[1:] if kind == "inner" else schedule
    return levels[torch.randperm(len(levels), generator=generator)[:count]]


@torch.no_grad()
def frozen(
    policy: Policy, rollout: Rollout, x_t: Tensor, sigma: Tensor, weights: AbstractContextManager[None]
) -> Tensor:
    """Model output `[B, ...]` under other weights (`Policy.reference`, a copy's ``active()``), without gradients."""
    with weights:
        return policy.predict(rollout, x_t, sigma).float()


def target(x_0: Tensor, eps: Tensor, sigma: Tensor, prediction: kernels.Prediction = "flow") -> Tensor:
    """What the model's output would be if it knew the sample and its noise, `[B, ...]`.

    ``eps - x_0`` for flow models; of a DDPM-type model the noise, x_0, or ``a eps - sigma x_0`` with
    ``a = sqrt(1 - sigma^2)``.

    >>> target(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor(0.6), "v_prediction")
    tensor([1.])
    """
    if prediction == "flow":
        return eps - x_0
    if prediction == "v_prediction":
        return (1 - sigma.square()).sqrt() * eps - sigma * x_0
    return eps if prediction == "epsilon" else x_0


def mean_square(difference: Tensor) -> Tensor:
    """Mean square `[B]` over all but the batch axis."""
    return difference.square().flatten(1).mean(dim=1)
