"""What happens to the latents at each step of a pipeline call.

=============  ==========================================================================================
session        what it does
=============  ==========================================================================================
`Recording`    draws each ``x_next`` and records transitions
`Replaying`    walks to the recorded step k and evaluates the recorded ``x_next`` there
`Finishing`    walks to step k and goes on from there without noise, with gradients, to the pictures
`Probing`      runs one step at a timestep of the caller's choice and keeps the model output
=============  ==========================================================================================

To walk is to let the pipeline run its loop from the start while every model call is answered with zeros, and to hand
it the recorded latents where the walk ends. So whatever a pipeline does by the number of the step (guidance that
starts late, a control that ends early, a second expert, conditions that it joins to the latents) it does in a replay
as it did in the rollout, and the loop's own arithmetic is all that a walk costs.

A pipeline may copy its scheduler, to step other latents beside its own (the sound of a video). A copy takes the
deterministic step; the latents beside are kept and handed over as the others are (`Session.beside`). They belong to
what a trajectory is drawn in, and have no log-probability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from . import kernels
from .errors import UserError
from .kernels import Kernel, Place, Reduction
from .trajectory import Transition, own, spread

STD_FLOOR = 0.05
"""``train_steps="all"`` leaves out steps whose std is under this share of the median std: their log-probabilities have
gradients hundreds of times larger than the others' (the last step of SD3's schedule, typically)."""


class Schedule(NamedTuple):
    """What is known of a pipeline's schedule before its first model call.

    Attributes:
        places: every step of it.
        stds: std that the kernel gives each step, whether or not the step is going to be stochastic.
    """

    places: Sequence[Place]
    stds: Sequence[float]


Steps: TypeAlias = Collection[int] | str | Callable[[Schedule], Collection[int]]
"""Step indices, ``"all"``, or a function that chooses them when the schedule is known."""


class Done(Exception):
    """A session has what it wanted; the rest of the pipeline call need not run."""


class Session(ABC):
    """What the policy scheduler does with each step of a pipeline call.

    Attributes:
        walking: model calls are to be answered with zeros.
        begun: the pipeline has set its schedule; calls before belong to no step (a denoiser that reads a condition).
    """

    walking: bool = False
    begun: bool = False

    timestep: Tensor | None = None
    """What the pipeline is shown in place of every timestep, 0-dim or `[B]`; None for the schedule's own."""

    sigma: Tensor | None = None
    """The noise level at that timestep, as far as known."""

    def begin(self, places: list[Place]) -> None:  # noqa: B027  (most sessions need not know the schedule)
        """Called when the pipeline has set its schedule, before any model call."""

    @abstractmethod
    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Latents after the step, in the dtype of ``model_output``.

        Raises:
            Done: the pipeline call may end.
        """

    copies: int = 0
    """How often the pipeline has copied its scheduler."""

    def beside(self, copy: int, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Latents after a step of a copy of the scheduler; as they are, unless a session knows better."""
        return x


class Beside(Session):
    """The session of a copy of the scheduler: that of the scheduler itself decides."""

    def __init__(self, main: Session) -> None:
        """Count the copy."""
        self._main, self._copy, self.timestep, self.sigma = main, main.copies, main.timestep, main.sigma
        main.copies += 1

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """The latents beside, after the step."""
        return self._main.beside(self._copy, place, x, model_output)


def _deterministic(kernel: Kernel, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
    return kernel.deterministic()(x, model_output, place)[0].to(model_output.dtype)


class Recording(Session):
    """Draws ``x_next`` from the kernel and records the transitions that will be trained."""

    def __init__(
        self,
        kernel: Kernel,
        noise: Callable[[Tensor], Tensor],
        *,
        train_steps: Steps = "all",
        noise_steps: Steps = "all",
        keep_steps: Collection[int] = (),
        reduction: Reduction = "mean",
    ) -> None:
        """Set up a recording.

        Args:
            kernel: the transition kernel.
            noise: draws standard normal noise shaped like its argument; called once for each stochastic step.
            train_steps: steps to record, ``"all"`` for every step that can be trained.
            noise_steps: steps that are stochastic; the others take the deterministic step.
            keep_steps: steps whose latents are kept without a transition, for `Finishing`.
            reduction: of the log-probability.
        """
        self._kernel, self._noise, self._reduction = kernel, noise, reduction
        self._train_steps, self._noise_steps, self._keep_steps = train_steps, noise_steps, keep_steps
        self.stds: list[float] = []
        self.transitions: dict[int, Transition] = {}
        self.arrivals: dict[int, Tensor] = {}
        self.arrivals_beside: dict[int, dict[int, Tensor]] = {}
        self.start: int | None = None
        self.last: Tensor | None = None
        self._latest: int | None = None
        self._latest_beside: dict[int, int | None] = {}

    def begin(self, places: list[Place]) -> None:
        """Choose the steps, and refuse those that cannot be trained."""
        steps, schedule = range(len(places)), Schedule(places, [self._kernel.std(place) for place in places])
        noise, train = (
            chosen(schedule) if callable(chosen) else chosen for chosen in (self._noise_steps, self._train_steps)
        )
        noisy = set(steps) if noise == "all" else _within(noise, steps, "noise_steps")
        self.schedule = schedule
        self.stds = [std if step in noisy else 0.0 for step, std in enumerate(schedule.stds)]
        self._train = set(trainable_steps(self.stds)) if train == "all" else _within(train, steps, "train_steps")
        self._keep = self._train | _within(self._keep_steps, steps, "keep_steps")
        for step in sorted(self._train):
            if self.stds[step] == 0:
                stochastic = [k for k in steps if self.stds[k] > 0]
                raise UserError(
                    f"train_steps contains step {step}, which is deterministic (std 0) with kernel "
                    f"{self._kernel.name!r} at noise_level {self._kernel.noise_level} and has no log-probability. "
                    f"Stochastic steps here: {stochastic or 'none'}."
                )

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Draw, record, and pass on."""
        if self._latest is not None and place.step <= self._latest:
            raise UserError(
                "the pipeline runs its schedule more than once in a call (a video in sections, or at several sizes): "
                "that is not one trajectory. Ask for no more frames than one section has."
            )
        self.start, self._latest = place.step if self.start is None else self.start, place.step
        if place.step in self._keep:
            x = self._arrived(place.step, x)
        stochastic = self.stds[place.step] > 0
        mean, std = (self._kernel if stochastic else self._kernel.deterministic())(x, model_output, place)
        mean = self.parted(place, mean)
        if stochastic:
            mean_and_noise = mean + std * self._noise(mean)
        # Rounded to the dtype that is stored before its density is taken, so that a replay sees the same number.
        x_next = (mean_and_noise if stochastic else mean).to(model_output.dtype)
        if place.step in self._train:
            log_prob = kernels.log_prob(x_next, mean, std, self._reduction)
            self.transitions[place.step] = Transition(place, own(x), own(x_next), log_prob, self.stds[place.step])
        self.last = x_next
        return x_next.clone()  # the pipeline's own: some write a condition into it

    def beside(self, copy: int, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """The deterministic step, kept where the next step is."""
        if self._latest_beside.get(copy, -2) == self._latest:
            raise UserError(
                "the pipeline steps its latents with copies of its scheduler alone: their steps are not one trajectory "
                "that a policy could record."
            )
        self._latest_beside[copy] = self._latest
        x_next = _deterministic(self._kernel, place, x, model_output)
        if place.step + 1 in self._keep:
            self.arrivals_beside.setdefault(place.step + 1, {})[copy] = own(x_next)
        return x_next.clone()

    def _arrived(self, step: int, x: Tensor) -> Tensor:
        """Keep the latents with which a step begins; gives those that the scheduler is given, to be recorded."""
        if self.last is not None:
            self.arrivals[step] = own(self.last)
            # Usually the same. Pipelines that mask or join conditions on the way do so again in a replay.
            if self.last.dtype == x.dtype and torch.equal(self.last, x):
                return self.arrivals[step]
        # A part of the pipeline's latents changes with them, where it writes the step's result there.
        return x.clone() if x._is_view() else own(x)

    def parted(self, place: Place, mean: Tensor) -> Tensor:
        """Means of the samples that come out of a step; more than went in where trajectories part (see `branching`)."""
        return mean


class _Walking(Session):
    """Walks to a step, and hands the pipeline the latents with which that step began."""

    def __init__(
        self, kernel: Kernel, step: int, arrival: Tensor | None, arrivals_beside: Mapping[int, Tensor] | None
    ) -> None:
        self._kernel, self._target, self._arrival, self._arrivals_beside = kernel, step, arrival, arrivals_beside or {}
        self.walking = arrival is not None  # the step with which the pipeline starts has its own initial latents

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Walk on, or arrive."""
        if place.step >= self._target:
            return self.arrived(place, x, model_output)
        if place.step + 1 < self._target:
            return x
        self.walking = False
        assert self._arrival is not None, "a walk without an arrival starts at its target"
        return self._arrival.clone()  # the pipeline's own, as in the rollout

    def beside(self, copy: int, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Walk on, arrive, or take the deterministic step."""
        if place.step >= self._target:
            return _deterministic(self._kernel, place, x, model_output)
        return x if place.step + 1 < self._target else self._arrivals_beside[copy].clone()

    @abstractmethod
    def arrived(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """The step that was walked to, and those after it."""


class Replaying(_Walking):
    """Evaluates one recorded transition under the current weights, with gradients."""

    def __init__(
        self,
        kernel: Kernel,
        transition: Transition,
        arrival: Tensor | None,
        reduction: Reduction = "mean",
        arrivals_beside: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Walk to the transition's step.

        Args:
            kernel: the transition kernel.
            transition: the recorded transition.
            arrival: what the step before it returned, None if it is the first.
            reduction: of the log-probability.
            arrivals_beside: what copies of the scheduler returned then.
        """
        super().__init__(kernel, transition.place.step, arrival, arrivals_beside)
        self._transition, self._reduction = transition, reduction
        self.model_output: Tensor | None = None

    def arrived(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Keep mean, std and log-probability of the recorded ``x_next``."""
        self.model_output = model_output
        mean, self.std = self._kernel(x, model_output, self._transition.place)
        self.mean = spread(mean, len(self._transition.x_next))
        self.log_prob = kernels.log_prob(self._transition.x_next, self.mean, self.std, self._reduction)
        raise Done


class Finishing(_Walking):
    """Goes on from step k without noise, with gradients, until the pipeline returns its pictures."""

    def __init__(
        self,
        kernel: Kernel,
        step: int,
        arrival: Tensor | None,
        arrivals_beside: Mapping[int, Tensor] | None = None,
        jump: bool = False,
    ) -> None:
        """Walk to ``step``; the arrivals are what the step before it returned, None if it is the first.

        With ``jump`` the first step there leads to the clean latents at once, and the rest is walked.
        """
        super().__init__(kernel, step, arrival, arrivals_beside)
        self._jump = jump

    def arrived(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """The deterministic step."""
        if self._jump and place.step > self._target:
            return x
        self.walking = self._jump
        return _deterministic(self._kernel, kernels.to_data(place) if self._jump else place, x, model_output)


class Probing(Session):
    """Hands back the model output at any timestep: the pipeline walks one step, and stands at ``x_t`` for the next."""

    def __init__(self, timestep: Tensor, x_t: Tensor, sigma: Tensor | None = None) -> None:
        """Show ``timestep``, whose level is ``sigma``: 0-dim for one that the micro-batch shares, or `[B]`."""
        self.timestep, self._x_t, self.sigma = timestep, x_t, sigma
        self.walking = True
        self.model_output: Tensor | None = None

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Hand out ``x_t``, then keep the model output."""
        if self.walking:
            self.walking = False
            return self._x_t.clone()
        self.model_output = model_output
        raise Done


def trainable_steps(stds: Sequence[float], floor: float = STD_FLOOR) -> list[int]:
    """Steps with a std above ``floor`` times the median of the stochastic ones.

    >>> trainable_steps([0.7, 0.5, 0.4, 0.006, 0.0])
    [0, 1, 2]
    """
    stochastic = sorted(std for std in stds if std > 0)
    bound = floor * stochastic[len(stochastic) // 2] if stochastic else 0.0
    return [step for step, std in enumerate(stds) if std > bound]


def _within(chosen: Collection[int] | str, steps: range, name: str) -> set[int]:
    if isinstance(chosen, str):
        raise UserError(f"{name} is {chosen!r}; wanted 'all' or a list of step indices.")
    outside = sorted(step for step in chosen if step not in steps)
    if outside:
        raise UserError(f"{name} contains {outside}, but the schedule has the steps 0 to {len(steps) - 1}.")
    return set(chosen)
