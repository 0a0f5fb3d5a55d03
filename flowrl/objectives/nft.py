"""DiffusionNFT: contrast improved and worsened policies on the forward process.

See "DiffusionNFT: Online Diffusion Reinforcement with Forward Process", Zheng et al.,
https://arxiv.org/abs/2509.16117.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from .. import kernels
from ..adapters import Decay, ramp_decay
from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import Forward, ForwardOptions, Noising, frozen, mean_square

Mode = Literal["all", "positive_only", "negative_only", "one_only", "binary"]


class NFTOptions(ForwardOptions):
    """Options of DiffusionNFT."""

    beta: float = Field(1.0, gt=0, description="how far the implicit policies stand from the old one")
    advantage_clip: float = Field(5.0, gt=0, description="c: an advantage of c makes the sample wholly positive")
    kl: float = Field(1e-4, ge=0, description="weight of the squared velocity difference to the reference policy")
    advantages: Mode = Field(
        "all", description="all as they are, positive_only, negative_only, one_only (1 if positive) or binary (sign)"
    )
    decay_slope: float = Field(0.001, ge=0, description="rise of the old policy's decay a step")
    decay_max: float = Field(0.5, ge=0, le=1, description="largest decay of the old policy")
    decay_start: int = Field(
        0, ge=0, description="step from which the decay rises; the old policy is the current before"
    )


class NFT(Forward):
    """Pulls the policy towards good samples and away from bad ones, at random noise levels of the schedule.

    Rollouts come from the *old* policy, a copy of the weights that follows with a decay, by any sampler. Nothing but
    final latents is needed.

    Metrics: ``nft/positive`` and ``nft/negative`` (errors of the two implicit policies), ``nft/drift`` (mean squared
    velocity difference to the old policy), and ``kl/reference`` if ``kl > 0``.
    """

    name: ClassVar[str] = "nft"
    by_step: ClassVar[bool] = True
    Options: ClassVar[type[base.Options]] = NFTOptions
    options: NFTOptions
    behaviour: ClassVar[str | None] = "old"

    def __init__(self, **options: Any) -> None:
        """Set the options, see `NFTOptions`."""
        self.options = NFTOptions(**options)

    def copies(self) -> Mapping[str, Decay]:
        """The old policy."""
        options = self.options
        return {"old": ramp_decay(options.decay_slope, options.decay_max, options.decay_start)}

    def model_calls(self, trained_steps: int) -> int:
        """The policy and the old policy at each noise level, and the reference policy if it holds the policy back."""
        return self.options.times * (2 + (self.options.kl > 0))

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The contrastive loss at one noise level a sample."""
        options, sigma = self.options, piece.sigma
        noised = self.noised(policy, rollout, piece)
        v, old = policy.predict(rollout, noised.x_t, sigma).float(), work.copies["old"]
        current = old.is_current()  # so is its prediction, without another model call
        v_old = v.detach() if current else frozen(policy, rollout, noised.x_t, sigma, old.active())
        probability = optimality(chosen(self.credit(rollout, piece, work), options.advantages), options.advantage_clip)
        positive, negative = implicit_errors(
            v, v_old, noised.x_t, noised.x_0, noised.level, options.beta, policy.prediction
        )
        loss = options.advantage_clip * (probability * positive + (1 - probability) * negative) / options.beta
        drift = mean_square(v.detach() - v_old)
        metrics = {"nft/positive": positive.detach(), "nft/negative": negative.detach(), "nft/drift": drift}
        if options.kl > 0:
            divergence = mean_square(v - frozen(policy, rollout, noised.x_t, sigma, policy.reference()))
            loss = loss + options.kl * divergence
            metrics["kl/reference"] = divergence.detach()
        return base.Terms(loss, metrics)


def chosen(advantages: Tensor, mode: Mode) -> Tensor:
    """The part of the advantages that counts, `[B]`, by the names of the authors' code.

    >>> import torch
    >>> chosen(torch.tensor([-2.0, 0.0, 3.0]), "one_only"), chosen(torch.tensor([-2.0, 0.0, 3.0]), "negative_only")
    (tensor([0., 0., 1.]), tensor([-2.,  0.,  0.]))
    """
    if mode == "positive_only":
        return advantages.clamp_min(0)
    if mode == "negative_only":
        return advantages.clamp_max(0)
    if mode == "one_only":
        return (advantages > 0).to(advantages.dtype)
    return advantages.sign() if mode == "binary" else advantages


def optimality(advantages: Tensor, clip: float) -> Tensor:
    """Probability in [0, 1] that a sample is a good one: ``1/2 + clip(A, -c, c) / (2 c)``, `[B]`.

    >>> import torch
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
    output, the same combinations of outputs serve DDPM-type models. The error of ``x_0`` is ``sigma`` times that of a
    velocity; of a model that predicts noise it is multiplied by ``sqrt(1 - sigma^2)`` to be ``sigma`` times that of the
    noise, or the noisiest levels, whose outputs say little of ``x_0``, would drown the others.

    Args:
        v: `[B, ...]` output of the policy, with gradients.
        v_old: `[B, ...]` output of the old policy.
        x_t: `[B, ...]` noised latents.
        x_0: `[B, ...]` final latents of the rollout.
        sigma: noise level, in a shape that broadcasts over ``x_t``.
        beta: strength, > 0.
        prediction: what the outputs are.

    >>> import torch
    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> implicit_errors(zero, zero, x_t=2 * one, x_0=zero, sigma=0.5 * one, beta=1.0)
    (tensor([2.]), tensor([2.]))
    """
    unit = (1 - sigma.square()).sqrt() if prediction == "epsilon" else torch.ones_like(sigma)
    errors = []
    for velocity in (beta * v + (1 - beta) * v_old, (1 + beta) * v_old - beta * v):
        residual = unit * (kernels.clean(x_t, velocity, sigma, prediction) - x_0)
        scale = residual.detach().abs().flatten(1).mean(dim=1).clamp_min(1e-5)
        errors.append(residual.square().flatten(1).mean(dim=1) / scale)
    return errors[0], errors[1]
