"""Pathwise objectives: the gradient of the reward itself, back through the decoder and some of the last steps.

The pictures are those of `flowrl.policy.Policy.finish`: the pipeline's own run from a step of the rollout on, with
gradients. What came before that step is taken as it is, so the gradient is truncated there, in one piece: every step
from it to the last carries gradients, and none before. Only differentiable rewards will do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from ..errors import UserError
from ..policy import Policy
from ..trajectory import Rollout
from . import base

Piece = TypeVar("Piece")


class PathwiseOptions(base.Options):
    """Options of every pathwise objective."""

    margin: float | None = Field(
        None, description="a reward beyond this counts no more: relu(margin - reward); null is minus the reward"
    )
    scale: float = Field(1.0, gt=0, description="factor of the loss")


class Pathwise(base.Objective):
    """Descends ``scale relu(margin - reward)``, or minus the reward; subclasses say which pictures.

    Advantages are not used, and groups only share a prompt. Metric: ``pathwise/reward``, of these pictures.
    """

    options: PathwiseOptions
    transitions: ClassVar[bool] = False
    differentiates: ClassVar[bool] = True

    @abstractmethod
    def depth(self, steps: int) -> int:
        """How many of the last steps of a schedule may carry gradients."""

    @abstractmethod
    def images(self, policy: Policy, rollout: Rollout, piece: Any) -> Tensor:
        """Pictures `[B, 3, H, W]` with gradients."""

    def keep_steps(self, steps: int) -> Collection[int]:
        """The last steps, from which pictures may be finished."""
        return range(steps - self.depth(steps), steps)

    def check(self, steps: int) -> None:
        """No more steps carry gradients than there are."""
        if self.depth(steps) > steps:
            raise UserError(
                f"objective {self.name}: gradients through {self.depth(steps)} steps, but policy.steps is {steps}."
            )

    def model_calls(self, trained_steps: int) -> int:
        """A call or more with gradients; how many steps a schedule has is not known here, so the least."""
        return 1

    def loss(self, policy: Policy, rollout: Rollout, piece: Any, work: base.Work) -> base.Terms:
        """Minus the reward of the pictures of a piece, as far as it could be scored."""
        assert work.score is not None, "the trainer gives the rewards of an objective that differentiates"
        rewards = work.score(self.images(policy, rollout, piece))
        return base.Terms(
            climbing(rewards, self.options.margin) * self.options.scale,
            {"pathwise/reward": rewards.detach().nan_to_num()},
        )


def climbing(rewards: Tensor, margin: float | None) -> Tensor:
    """The loss `[B]` whose descent raises rewards: ``relu(margin - r)``, or ``-r`` without a margin.

    A sample that could not be scored (NaN) has a loss and a gradient of 0.

    Args:
        rewards: `[B]`.
        margin: where a reward is good enough.

    >>> climbing(torch.tensor([1.0, 3.0, float("nan")]), 2.0)
    tensor([1., 0., 0.])
    """
    scored = torch.where(rewards.isfinite(), rewards, 0.0)
    loss = -scored if margin is None else (margin - scored).relu()
    return torch.where(rewards.isfinite(), loss, 0.0)


def drawn_step(first: int, last: int, seeds: base.Seeds) -> Sequence[int]:
    """One step of ``first`` to ``last``, each as likely as any other: one draw for a whole training step.

    >>> drawn_step(3, 3, base.Seeds(0, []))
    [3]
    """
    generator = torch.Generator().manual_seed(seeds.step)
    return [first + int(torch.randint(last - first + 1, (), generator=generator))]
