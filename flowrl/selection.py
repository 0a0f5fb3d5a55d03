"""Which steps of a rollout are stochastic, and which of them are trained: ``policy.train_steps``.

A selection is a small object with a name in the config and options of its own. It has no state: what it returns depends
on the number of the training step, a seed and the schedule alone, so a resumed run goes on exactly.

================  =====================  ==========================  ==========================================
``train_steps``   stochastic             trained                     as in
================  =====================  ==========================  ==========================================
`all`             all                    all with enough noise       Flow-GRPO
`fraction`        all                    a random share of those     DanceGRPO
`window`          a fixed window         the same
`random_window`   a window drawn anew    the same                    Flow-GRPO-Fast
`sliding`         a window that moves    the same                    MixGRPO
`list`            the listed             the same
================  =====================  ==========================  ==========================================

Steps outside a window are the stock deterministic sampler's. Indices count from 0, the noisiest, in the whole schedule,
also for a pipeline that starts in the middle of it.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from .errors import UserError
from .kernels import FlowPlace, Place, flow_sde
from .session import Schedule, trainable_steps


class Chosen(NamedTuple):
    """Step indices.

    Attributes:
        noise: the stochastic ones.
        train: those that are recorded and trained, all of them stochastic.
    """

    noise: Collection[int]
    train: Collection[int]


class StepSelection(BaseModel, ABC):
    """What a selection is: its options are its fields, checked when the config is read."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    def check(self, steps: int) -> None:
        """Refuse options that do not fit a schedule of ``steps`` steps, before any weights load."""

    @abstractmethod
    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """The steps of a schedule for one training step.

        Args:
            step: number of the training step, from 0.
            seed: of everything random; another one for each training step.
            schedule: places, and the std that the kernel gives each of them.
        """


class AllSteps(StepSelection):
    """Every step is stochastic, and every one with enough noise is trained (see `scheduler.trainable_steps`).

    See "Flow-GRPO: Training Flow Matching Models via Online RL", Liu et al., https://arxiv.org/abs/2505.05470.

    >>> AllSteps().select(0, 0, stand_in(4))
    Chosen(noise=range(0, 4), train=[0, 1, 2])
    """

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """All."""
        return Chosen(range(len(schedule.places)), trainable_steps(schedule.stds))


class Fraction(StepSelection):
    """Every step is stochastic, and a random share of those with enough noise is trained.

    ``ceil(share * n)`` of the n trainable steps, drawn anew for each training step. The authors draw them for each
    sample; here a training step's samples share them, because a micro-batch is replayed as a whole.

    See "DanceGRPO: Unleashing GRPO on Visual Generation", Xue et al., https://arxiv.org/abs/2505.07818.

    >>> Fraction(share=0.6).select(0, 0, stand_in(10))
    Chosen(noise=range(0, 10), train=[0, 2, 3, 4, 6, 8])
    """

    share: float = Field(0.6, gt=0, le=1, description="share of the trainable steps, in (0, 1]")

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """A sample without repetition, in order."""
        candidates = trainable_steps(schedule.stds)
        count = math.ceil(self.share * len(candidates) - 1e-9)  # 0.6 * 5 is a little more than 3
        return Chosen(range(len(schedule.places)), sorted(random.Random(seed).sample(candidates, count)))


class Window(StepSelection):
    """A fixed run of steps is stochastic and trained.

    >>> Window(start=1, size=2).select(0, 0, stand_in(10))
    Chosen(noise=range(1, 3), train=range(1, 3))
    """

    start: int = Field(0, ge=0, description="first step of the window")
    size: int = Field(2, ge=1, description="steps in the window")

    def check(self, steps: int) -> None:
        """The window lies inside the schedule, and leaves out its last step."""
        _fits(self.start + self.size, steps, f"a window of {self.size} steps from step {self.start}")

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """The window."""
        return _window(self.start, self.size)


class RandomWindow(StepSelection):
    """A run of steps, whose start is drawn anew for each training step, is stochastic and trained.

    ``train_steps: 2`` is short for ``{name: random_window, size: 2}``. The authors draw 2 or 3 steps from the first
    half of the schedule: write ``high`` for that.

    See Flow-GRPO-Fast in https://github.com/yifan123/flow_grpo.

    >>> RandomWindow(size=2).select(0, 0, stand_in(4))
    Chosen(noise=range(1, 3), train=range(1, 3))
    """

    size: int = Field(2, ge=1, description="steps in the window")
    low: int = Field(0, ge=0, description="first step that a window may have")
    high: int | None = Field(
        None, ge=1, description="step before which every window ends; null is the last, which has no noise"
    )

    def check(self, steps: int) -> None:
        """A window fits between the bounds."""
        high = steps - 1 if self.high is None else self.high
        _fits(high, steps, f"high {high}")
        if self.low + self.size > high:
            raise UserError(
                f"policy.train_steps: a window of {self.size} steps from step {self.low} (low) does not fit among the "
                f"steps from {self.low} to {high - 1}."
            )

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """A window with a start drawn from ``seed``, each as likely as any other."""
        high = len(schedule.places) - 1 if self.high is None else self.high
        return _window(random.Random(seed).randint(self.low, max(self.low, high - self.size)), self.size)


class Sliding(StepSelection):
    """A window that moves from the noisiest steps to the last is stochastic and trained.

    It stays for some training steps, then moves on by ``shift``, until it touches the end of the schedule (the last
    step, which has no noise, left out); then it starts anew, or stays there. How long it stays where it starts at step
    l of T:

    ============  ======================================================================================
    schedule      training steps
    ============  ======================================================================================
    progressive   ``interval``
    decay         from ``interval`` down to ``min_interval``, linear in ``l / (T - 2)``
    exp_decay     ``ceil(interval * exp(-rate * max(0, l - threshold)))``
    random        1: it does not slide, but starts anywhere each time
    ============  ======================================================================================

    See "MixGRPO: Unlocking Flow-based GRPO Efficiency with Mixed ODE-SDE", Li et al.,
    https://arxiv.org/abs/2507.21802; the defaults are those of the authors' FLUX recipe (25 steps). In their code the
    window shrinks to nothing at the end of the schedule before it starts anew; here it keeps its size.

    >>> [list(Sliding(interval=2, size=2).select(n, 0, stand_in(5)).train) for n in range(7)]
    [[0, 1], [0, 1], [1, 2], [1, 2], [2, 3], [2, 3], [0, 1]]
    """

    size: int = Field(4, ge=1, description="steps in the window")
    shift: int = Field(1, ge=0, description="steps by which it moves on; 0 keeps it at the start (MixGRPO-Flash*)")
    interval: int = Field(25, ge=1, description="training steps for which it stays")
    schedule: Literal["progressive", "random", "decay", "exp_decay"] = Field(
        "progressive", description="how long it stays where"
    )
    roll_back: bool = Field(True, description="start anew after the end; else stay there")
    min_interval: int | None = Field(
        None, ge=1, description="of decay: the shortest stay; null is a quarter of interval"
    )
    threshold: int = Field(13, ge=0, description="of exp_decay: the step from which stays get shorter")
    rate: float = Field(0.1, ge=0, description="of exp_decay: how fast they do")

    def check(self, steps: int) -> None:
        """The window leaves out the schedule's last step."""
        _fits(self.size, steps, f"a window of {self.size} steps")

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """The window at training step ``step``."""
        steps = len(schedule.places)
        end = max(0, steps - 1 - self.size)
        if self.schedule == "random":
            return _window(random.Random(seed).randint(0, end), self.size)
        starts = [*range(0, end, self.shift), end] if self.shift else [0]
        leaves = list(accumulate(self._stay(start, steps) for start in starts))
        now = step % leaves[-1] if self.roll_back else min(step, leaves[-1] - 1)
        return _window(next(start for start, leave in zip(starts, leaves, strict=True) if now < leave), self.size)

    def _stay(self, start: int, steps: int) -> int:
        """Training steps for which the window starts at ``start``."""
        if self.schedule == "decay":
            low = max(1, self.interval // 4) if self.min_interval is None else self.min_interval
            progress = start / max(1, steps - 2)
            return max(low, int(self.interval * (1 - progress) + low * progress))
        if self.schedule == "exp_decay":
            return math.ceil(self.interval * math.exp(-self.rate * max(0, start - self.threshold)))
        return self.interval


class Listed(StepSelection):
    """The listed steps are stochastic and trained; ``[0, 3]`` is short for ``{name: list, steps: [0, 3]}``.

    >>> Listed(steps=[0, 3]).select(0, 0, stand_in(10))
    Chosen(noise=[0, 3], train=[0, 3])
    """

    steps: list[int] = Field(min_length=1, description="indices from 0, the noisiest")

    def check(self, steps: int) -> None:
        """Each index is in the schedule, and once."""
        if outside := [index for index in self.steps if not 0 <= index < steps]:
            raise UserError(f"policy.train_steps: wanted indices from 0 to {steps - 1}, got {outside}.")
        if len(set(self.steps)) < len(self.steps):
            raise UserError(f"policy.train_steps: wanted each index once, got {self.steps}.")

    def select(self, step: int, seed: int, schedule: Schedule) -> Chosen:
        """The list."""
        return Chosen(list(self.steps), list(self.steps))


def short_form(train_steps: str | int | Sequence[int]) -> StepSelection:
    """The selection that a config's ``all``, number or list is short for.

    >>> short_form("all"), short_form(3), short_form([0, 2])
    (AllSteps(), RandomWindow(size=3, low=0, high=None), Listed(steps=[0, 2]))
    """
    if isinstance(train_steps, str):
        return AllSteps()
    return RandomWindow(size=train_steps) if isinstance(train_steps, int) else Listed(steps=list(train_steps))


def stand_in(steps: int) -> Schedule:
    """An even flow schedule with Flow-GRPO's noise: stands in for a pipeline's own before there is a pipeline.

    >>> [round(std, 3) for std in stand_in(4).stds]
    [0.7, 0.606, 0.35, 0.0]
    """
    sigmas = [1 - step / steps for step in range(steps + 1)]
    second = sigmas[1] if steps > 1 else 0.5
    places: list[Place] = [FlowPlace(k, 1000 * sigmas[k], sigmas[k], sigmas[k + 1], second) for k in range(steps)]
    return Schedule(places, [flow_sde().std(place) for place in places])


def _window(start: int, size: int) -> Chosen:
    window = range(start, start + size)
    return Chosen(window, window)


def _fits(end: int, steps: int, what: str) -> None:
    if end > steps - 1:
        raise UserError(
            f"policy.train_steps: {what} does not fit: wanted steps from 0 to {steps - 2}, because the schedule has "
            f"{steps}, and its last has no noise."
        )
