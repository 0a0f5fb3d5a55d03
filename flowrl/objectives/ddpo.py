"""DDPO: the policy gradient on denoising steps, with or without importance weights.

See "Training Diffusion Models with Reinforcement Learning", Black et al., https://arxiv.org/abs/2305.13301.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ..errors import RunStopped
from ..policy import Policy, Replay
from ..trajectory import Rollout
from . import base
from .grpo import GRPO, GRPOOptions, clipped_surrogate


class DDPOOptions(GRPOOptions):
    """Options of DDPO: those of GRPO, and the estimator."""

    estimator: Literal["importance", "score"] = Field(
        "importance", description="importance weights with a clip (DDPO-IS), or the plain score function (DDPO-SF)"
    )


class DDPO(GRPO):
    """The policy gradient of a multi-step decision process, whose actions are the denoising steps.

    With importance weights it is `grpo` under the name of its paper, and takes several updates of a step; the score
    function has the same gradient at the weights of the rollout, and is right nowhere else. GRPO differs by its groups,
    which here as there are the business of ``advantage``.

    Metrics: those of GRPO.
    """

    name: ClassVar[str] = "ddpo"
    Options: ClassVar[type[base.Options]] = DDPOOptions
    options: DDPOOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, see `DDPOOptions`."""
        self.options = DDPOOptions(**options)

    def ratio(self, policy: Policy, rollout: Rollout, step: int, work: base.Work) -> tuple[Tensor, Replay]:
        """As GRPO's; the score function has none, so it refuses weights other than the rollout's."""
        if self.options.estimator == "score" and not work.on_policy:
            raise RunStopped(
                "objective ddpo: the score function's gradient is right for the weights of the rollout alone; write "
                "updates_per_step: 1, or objective.estimator: importance."
            )
        return super().ratio(policy, rollout, step, work)

    def surrogate(self, log_ratio: Tensor, advantages: Tensor) -> Tensor:
        """``-A ln p`` up to a number without gradient, or the clipped surrogate."""
        if self.options.estimator == "score":
            return score_surrogate(log_ratio, advantages)
        return clipped_surrogate(log_ratio, advantages, self.options.clip_range)


def score_surrogate(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """``-A (ln p - ln p_old)``, whose gradient is REINFORCE's.

    Args:
        log_ratio: `[B]` log-probability under the current weights minus that of the rollout.
        advantages: `[B]`.

    >>> import torch
    >>> score_surrogate(torch.tensor([0.0, 0.5]), torch.tensor([1.0, 2.0])).tolist()
    [-0.0, -1.0]
    """
    return -advantages * log_ratio
