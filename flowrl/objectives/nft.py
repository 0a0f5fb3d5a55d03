"""DiffusionNFT: contrast improved and worsened policies on the forward process.

See "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", Zheng et al.,
https://arxiv.org/abs/2509.16117.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from .. import kernels
from ..adapters import Decay, ramp_decay
from ..errors import UserError
from ..policy import Policy
from ..trajectory import Rollout
from . import base


class NFTOptions(base.Options):
    """Options of DiffusionNFT."""

    beta: float = Field(1.0, gt=0, description="how far the implicit policies stand from the old one")
    advantage_clip: float = Field(5.0, gt=0, description="c: an advantage of c makes the sample wholly positive")
    kl: float = Field(1e-4, ge=0, description="weight of the squared velocity difference to the reference policy")
    times: int = Field(4, gt=0, description="noise levels drawn for each sample, without repetition")
    decay_slope: float = Field(0.001, ge=0, description="rise of the old policy's decay a step")
    decay_max: float = Field(0.5, ge=0, le=1, description="largest decay of the old policy")
    decay_start: int = Field(
        0, ge=0, description="step from which the decay rises; the old policy is the current before"
    )


@dataclass(frozen=True)
class Noising:
    """Where a piece of work noises the final latents: ``sigma`` `[B]` or 0-dim, and ``eps`` `[B, ...]`."""

    sigma: Tensor
    eps: Tensor


class NFT(base.Objective):
    """Pulls the policy towards good samples and away from bad ones, at random noise levels of the schedule.

    Rollouts come from the *old* policy, a copy of the weights that follows with a decay, by any sampler. Nothing but
    final latents is needed.

    Metrics: ``nft/positive`` and ``nft/negative`` (errors of the two implicit policies), ``nft/drift`` (mean squared
    velocity difference to the old policy), and ``kl/reference`` if ``kl > 0``.
    """

    name: ClassVar[str] = "nft"
    Options: ClassVar[type[base.Options]] = NFTOptions
    transitions: ClassVar[bool] = False
    behaviour: ClassVar[str | None] = "old"

    def __init__(self, **options: Any) -> None:
        """Set the options, see `NFTOptions`."""
        self.options = NFTOptions(**options)

    def copies(self) -> Mapping[str, Decay]:
        """The old policy."""
        options = self.options
        return {"old": ramp_decay(options.decay_slope, options.decay_max, options.decay_start)}

    def check(self, steps: int) -> None:
        """The schedule must have as many noise levels as are drawn for a sample."""
        if self.options.times > steps:
            raise UserError(
                f"objective.times: {self.options.times} noise levels a sample, but policy.steps is {steps}."
            )

    def model_calls(self, trained_steps: int) -> int:
        """The policy and the old policy at each noise level, and the reference policy if it holds the policy back."""
        return self.options.times * (2 + (self.options.kl > 0))

    def pieces(self, policy: Policy, rollout: Rollout, seeds: base.Seeds) -> Sequence[Noising]:
        """Noise levels of the rollout's schedule: ``times`` different ones a sample, in random order.

        Samples have levels of their own where the pipeline takes them (without guidance), else those of the step.
        """
        levels = torch.tensor([place.sigma for place in rollout.places])
        latents, own = rollout.latents, [torch.Generator().manual_seed(seed) for seed in seeds.samples]
        drawing = own if policy.takes_sigma_per_sample else [torch.Generator().manual_seed(seeds.step)]
        drawn = [levels[torch.randperm(len(levels), generator=g)[: self.options.times]] for g in drawing]
        pieces = []
        for sigma in torch.stack(drawn).T:  # `[B]`, or `[1]` that all samples share
            eps = torch.stack([torch.randn(latents.shape[1:], generator=g) for g in own])
            pieces.append(Noising(sigma.squeeze(0).to(latents.device), eps.to(latents.device)))
        return pieces

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The contrastive loss at one noise level a sample."""
        options = self.options
        x_0, sigma = rollout.latents.float(), piece.sigma
        level = sigma.view(-1, *[1] * (x_0.dim() - 1))
        x_t = kernels.noised(x_0, piece.eps, level, policy.prediction)
        v, old = policy.predict(rollout, x_t, sigma).float(), work.copies["old"]
        if old.is_current():  # so is its prediction, without another model call
            v_old = v.detach()
        else:
            with torch.no_grad(), old.active():
                v_old = policy.predict(rollout, x_t, sigma).float()
        probability = optimality(work.advantages, options.advantage_clip)
        positive, negative = implicit_errors(v, v_old, x_t, x_0, level, options.beta, policy.prediction)
        loss = options.advantage_clip * (probability * positive + (1 - probability) * negative) / options.beta
        drift = (v.detach() - v_old).square().flatten(1).mean(dim=1)
        metrics = {"nft/positive": positive.detach(), "nft/negative": negative.detach(), "nft/drift": drift}
        if options.kl > 0:
            with torch.no_grad(), policy.reference():
                v_reference = policy.predict(rollout, x_t, sigma).float()
            divergence = (v - v_reference).square().flatten(1).mean(dim=1)
            loss = loss + options.kl * divergence
            metrics["kl/reference"] = divergence.detach()
        return base.Terms(loss, metrics)


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability in [0, 1] that a sample is a good one: ``1/2 + clip(A, -c, c) / (2 c)``, `[B]`.

    >>> optimality(torch.tensor([-10.0, 0.0, 2.5]), 5.0)
    tensor([0.0000, 0.5000, 0.7500])
    """
    return 0.5 + advantages.clamp(-clip, clip) / (2 * clip)


def implicit_errors(
    v: Tensor,
    v_old: Tensor,
    x_t: Tensor,
    x_0: Tensor,
    sigma: Tensor,
    beta: float,
    prediction: kernels.Prediction = "flow",
) -> tuple[Tensor, Tensor]:
    """Self-normalised errors of the implicit positive and negative policies, each `[B]`.

    ``v+ = beta v + (1 - beta) v_old`` and ``v- = (1 + beta) v_old - beta v`` predict ``x_0± = x_t - sigma v±``; the
    error is the mean of ``(x_0± - x_0)^2``, divided by the detached mean of ``|x_0± - x_0|``. At ``v = v_old`` the two
    are equal, and their gradients opposite. The paper has flow models; since every model's ``x_0`` is linear in its
    output, the same combinations of outputs serve DDPM-type models.

    Args:
        v: `[B, ...]` output of the policy, with gradients.
        v_old: `[B, ...]` output of the old policy.
        x_t: `[B, ...]` noised latents.
        x_0: `[B, ...]` final latents of the rollout.
        sigma: noise level, in a shape that broadcasts over ``x_t``.
        beta: strength, > 0.
        prediction: what the outputs are.

    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> implicit_errors(zero, zero, x_t=2 * one, x_0=zero, sigma=0.5 * one, beta=1.0)
    (tensor([2.]), tensor([2.]))
    """
    errors = []
    for velocity in (beta * v + (1 - beta) * v_old, (1 + beta) * v_old - beta * v):
        residual = kernels.clean(x_t, velocity, sigma, prediction) - x_0
        scale = residual.detach().abs().flatten(1).mean(dim=1).clamp_min(1e-5)
        errors.append(residual.square().flatten(1).mean(dim=1) / scale)
    return errors[0], errors[1]
