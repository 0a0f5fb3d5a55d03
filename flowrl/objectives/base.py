"""The contract between the trainer and an objective.

The trainer samples micro-batches, scores them, and asks the objective for *work*: pieces that are one forward and
backward pass each. For each it calls `Objective.loss`, and it adds up the gradients of all micro-batches. It knows no
objective by name; what an objective needs, it declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ..adapters import Decay, WeightCopy
from ..policy import Policy
from ..trajectory import Rollout


class Options(BaseModel):
    """Options of an objective: what a config may write below ``objective:`` beside the name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Terms(NamedTuple):
    """What a piece of work gives.

    Attributes:
        loss: `[B]`, one value a sample; the trainer takes the mean over all samples and pieces.
        metrics: detached values `[B]` or 0-dim, averaged over pieces under their names.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(frozen=True)
class Seeds:
    """Where an objective's random numbers come from: however the samples are cut into micro-batches, they are the same.

    Attributes:
        step: one for all samples of the step.
        samples: B, one for each sample of the micro-batch.
        groups: B, one for each sample's group; by default all samples are of one.
    """

    step: int
    samples: Sequence[int]
    groups: Sequence[int] = ()


@dataclass(frozen=True)
class Group:
    """What is known of the whole groups of a micro-batch's samples, wherever their other samples are.

    Attributes:
        advantages: `[B, G]`, those of the G samples of each sample's group, float32.
        measured: `[B, G, K]`, what `Objective.measure` gave for them, without gradients.
        own: `[B]` integers, the place of the sample itself among the G.
    """

    advantages: Tensor
    measured: Tensor
    own: Tensor

    def of_self(self) -> Tensor:
        """What was measured of the samples themselves, `[B, K]`."""
        return self.measured[torch.arange(len(self.own), device=self.own.device), self.own]

    def others(self) -> Tensor:
        """Which of the G are other samples than the sample itself, `[B, G]` booleans."""
        return torch.arange(self.measured.shape[1], device=self.own.device) != self.own[:, None]


@dataclass(frozen=True)
class Work:
    """The surroundings of a piece of work.

    Attributes:
        advantages: `[B]` of the micro-batch, float32.
        by_step: `[B]` for each step of the schedule whose advantages differ from those: it leads to several samples
            (see `flowrl.branching`), or the run's advantage gives each step its own (`flowrl.advantages.recast`).
        copies: the named weight copies that the objective declared.
        on_policy: no update has happened since the rollout.
        group: the samples' groups, for an objective that measures.
        score: ``score(images)``, the weighted sum of the rewards `[B]` of other pictures `[B, 3, H, W]` of the
            micro-batch, with gradients, for an objective that differentiates.
    """

    advantages: Tensor
    copies: Mapping[str, WeightCopy] = field(default_factory=dict)
    on_policy: bool = False
    by_step: Mapping[int, Tensor] = field(default_factory=dict)
    group: Group | None = None
    score: Callable[[Tensor], Tensor] | None = None

    def advantages_at(self, step: int) -> Tensor:
        """Advantages `[B]` of a step of the schedule."""
        return self.by_step.get(step, self.advantages)


class Objective(ABC):
    """An update rule.

    Attributes:
        name: what a config calls it; a class of `flowrl.objectives` is found by it.
        transitions: whether rollouts must record transitions; final latents alone are enough otherwise.
        behaviour: the weight copy that samples the rollouts; None for the current weights.
        measures: whether a sample's loss depends on the other samples of its group, through `measure`.
        differentiates: whether it needs gradients of the rewards, through `Work.score`.
        needs_noise: whether rollouts must have the noise that their samples were drawn from.
        by_step: whether each step can have its own advantages, see `Work.advantages_at`; else an advantage that gives
            them is refused.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]] = Options
    transitions: ClassVar[bool] = True
    behaviour: ClassVar[str | None] = None
    measures: ClassVar[bool] = False
    differentiates: ClassVar[bool] = False
    by_step: ClassVar[bool] = False

    @property
    def needs_noise(self) -> bool:
        """See above; no, unless an option says so."""
        return False

    def copies(self) -> Mapping[str, Decay]:
        """Named weight copies to keep, each with its decay by step; they are updated after every step."""
        return {}

    def check(self, steps: int) -> None:  # noqa: B027  (most objectives fit every schedule)
        """Refuse options that do not fit a schedule of ``steps`` steps, before any weights load."""

    def keep_steps(self, steps: int) -> Collection[int]:
        """Steps of a schedule of ``steps`` steps whose latents rollouts keep, for `Policy.finish`."""
        return ()

    def model_calls(self, trained_steps: int) -> int:
        """Model calls of an update for each sample, without guidance: what ``flowrl plan`` counts with.

        Where the update compares with a weight copy, that of the first steps may still be the current weights, and
        save a call.

        Args:
            trained_steps: steps that a rollout records.
        """
        return trained_steps

    @abstractmethod
    def pieces(self, policy: Policy, rollout: Rollout, seeds: Seeds) -> Sequence[Any]:
        """Cut a micro-batch into pieces of work; every micro-batch of a step into as many.

        Args:
            policy: the policy.
            rollout: a micro-batch.
            seeds: of everything random in the pieces.
        """

    def measure(self, policy: Policy, rollout: Rollout, pieces: Sequence[Any], work: Work) -> Tensor:
        """Numbers `[B, K]` of a micro-batch that every sample of its groups is going to know, see `Work.group`.

        Asked for before each update of an objective that says ``measures``, without gradients, of all micro-batches:
        the samples of a group may lie in several, of several processes.

        Args:
            policy: the policy.
            rollout: a micro-batch.
            pieces: all of its pieces of work.
            work: its surroundings, without groups.
        """
        raise NotImplementedError(f"{type(self).__name__} says that it measures, and has no method for it")

    @abstractmethod
    def loss(self, policy: Policy, rollout: Rollout, piece: Any, work: Work) -> Terms:
        """Loss and metrics of one piece, with gradients to the policy's parameters."""
