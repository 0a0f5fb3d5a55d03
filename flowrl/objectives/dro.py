"""DRO: good samples are denoised better, and bad ones worse, up to a limit.

See DSO, "DSO: Aligning 3D Generators with Simulation Feedback for Physical Soundness", Li et al.,
https://arxiv.org/abs/2503.22677.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ..policy import Policy
from ..trajectory import Rollout
from . import base
from .forward import Forward, ForwardOptions, Noising, frozen, mean_square, target


class DROOptions(ForwardOptions):
    """Options of DRO."""

    limit: float = Field(
        0.1, gt=0, description="a bad sample counts until its error exceeds the reference policy's by this share"
    )


class DRO(Forward):
    """Errors of good samples less those of bad ones: a sample is good above the mean of its group, and bad below.

    Errors grow without bound, so the plain loss has no minimum, and the published code stops early. Here a bad sample
    stops to count at a limit, so the loss is bounded below; the limit is what the reference policy is called for.

    Metrics: ``dro/error`` (rising, the policy runs away), ``dro/gain`` (by how much good samples are denoised better,
    and bad ones worse, than by the reference policy), ``dro/guarded`` (samples that are bad and at the limit).
    """

    name: ClassVar[str] = "dro"
    by_step: ClassVar[bool] = True
    Options: ClassVar[type[base.Options]] = DROOptions
    options: DROOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DROOptions`."""
        self.options = DROOptions(**options)

    def model_calls(self, trained_steps: int) -> int:
        """Policy and reference policy at each noise level."""
        return self.options.times * 2

    def loss(self, policy: Policy, rollout: Rollout, piece: Noising, work: base.Work) -> base.Terms:
        """The signed errors at one noise level."""
        noised, labels = self.noised(policy, rollout, piece), self.credit(rollout, piece, work).sign()
        wanted = target(noised.x_0, piece.eps, noised.level, policy.prediction)
        error = mean_square(policy.predict(rollout, noised.x_t, piece.sigma).float() - wanted)
        output = frozen(policy, rollout, noised.x_t, piece.sigma, policy.reference())
        reference = mean_square(output - wanted)
        found, now = dro_loss(error, reference, labels, self.options.limit), error.detach()
        metrics = {
            "dro/error": now,
            "dro/gain": labels * (reference - now),
            "dro/guarded": ((labels < 0) & (now >= (1 + self.options.limit) * reference)).float(),
        }
        return base.Terms(found, metrics)


def dro_loss(errors: Tensor, reference: Tensor, labels: Tensor, limit: float) -> Tensor:
    """The loss of each sample, ``q`` of a good one and ``-min(q, (1 + limit) q_ref)`` of a bad one, `[B]`.

    Args:
        errors: q, `[B]` mean squared errors of the policy, over the elements of a sample.
        reference: q_ref, `[B]` those of the reference policy, constants.
        labels: `[B]`, 1 for good, -1 for bad, 0 for neither.
        limit: > 0.

    >>> dro_loss(torch.tensor([0.3, 0.3, 0.5]), torch.full((3,), 0.4), torch.tensor([1.0, -1.0, -1.0]), 0.1)
    tensor([ 0.3000, -0.3000, -0.4400])
    """
    guarded = torch.minimum(errors, (1 + limit) * reference)
    return labels * torch.where(labels < 0, guarded, errors)
