"""The seam: diffusers schedulers that record, replay and probe.

A pipeline asks its scheduler for timesteps and gives it each model output. The schedulers here keep the pipeline's own
schedule and hand every step to a *session*, which decides what happens to the latents:

=============  =====================================  ==============================================
session        timesteps that the pipeline sees       ``step()``
=============  =====================================  ==============================================
`Recording`    all                                    draws ``x_next`` and records the transition
`Replaying`    only step k                            evaluates the recorded ``x_next``
`Probing`      only one of the caller's choice        keeps the model output
=============  =====================================  ==============================================
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.schedulers.scheduling_ddim import DDIMSchedulerOutput
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteSchedulerOutput
from torch import Tensor

from . import kernels
from .errors import UserError
from .kernels import DDPMPlace, FlowPlace, Kernel, Place, Reduction
from .trajectory import Transition, own

STD_FLOOR = 0.05
"""``train_steps="all"`` leaves out steps whose std is under this share of the median std: their log-probabilities have
gradients hundreds of times larger than the others' (the last step of SD3's schedule, typically)."""


class Session(ABC):
    """What the policy scheduler does with each step of a pipeline call."""

    only: int | None = None
    """The one step that the pipeline sees, as an index in the whole schedule; None for all of them."""

    timesteps: Tensor | None = None
    """Timesteps that the pipeline sees in place of the schedule's, `[1]` or `[1, B]`; None for the schedule's."""

    def begin(self, places: list[Place]) -> None:  # noqa: B027  (most sessions need not know the schedule)
        """Called when the pipeline has set its schedule, before any model call."""

    @abstractmethod
    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Latents after the step, in the dtype of ``model_output``."""


class Recording(Session):
    """Draws ``x_next`` from the kernel and records the transitions that will be trained."""

    def __init__(
        self,
        kernel: Kernel,
        noise: Callable[[Tensor], Tensor],
        *,
        train_steps: Collection[int] | str = "all",
        noise_steps: Collection[int] | str = "all",
        reduction: Reduction = "mean",
    ) -> None:
        """Set up a recording.

        Args:
            kernel: the transition kernel.
            noise: draws standard normal noise shaped like its argument; called once for each stochastic step.
            train_steps: steps to record, ``"all"`` for every step that can be trained.
            noise_steps: steps that are stochastic; the others take the deterministic step.
            reduction: of the log-probability.
        """
        self._kernel, self._noise, self._reduction = kernel, noise, reduction
        self._train_steps, self._noise_steps = train_steps, noise_steps
        self.stds: list[float] = []
        self.transitions: dict[int, Transition] = {}
        self.first: Tensor | None = None
        self.last: Tensor | None = None

    def begin(self, places: list[Place]) -> None:
        """Choose the steps, and refuse those that cannot be trained."""
        steps = range(len(places))
        noisy = set(steps) if self._noise_steps == "all" else _within(self._noise_steps, steps, "noise_steps")
        self.stds = [self._kernel.std(place) if place.step in noisy else 0.0 for place in places]
        if self._train_steps == "all":
            self._train = set(trainable_steps(self.stds))
        else:
            self._train = _within(self._train_steps, steps, "train_steps")
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
        self.first = x if self.first is None else self.first
        stochastic = self.stds[place.step] > 0
        mean, std = (self._kernel if stochastic else self._kernel.deterministic())(x, model_output, place)
        if stochastic:
            mean_and_noise = mean + std * self._noise(mean)
        # Rounded to the dtype that is stored before its density is taken, so that a replay sees the same number.
        x_next = (mean_and_noise if stochastic else mean).to(model_output.dtype)
        if place.step in self._train:
            log_prob = kernels.log_prob(x_next, mean, std, self._reduction)
            self.transitions[place.step] = Transition(place, own(x), own(x_next), log_prob, self.stds[place.step])
        self.last = x_next
        return x_next


class Replaying(Session):
    """Evaluates one recorded transition under the current weights, with gradients."""

    def __init__(self, kernel: Kernel, transition: Transition, reduction: Reduction = "mean") -> None:
        """Expose only the transition's step."""
        self._kernel, self._transition, self._reduction = kernel, transition, reduction
        self.only = transition.place.step
        self.model_output: Tensor | None = None

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Keep mean, std and log-probability of the recorded ``x_next``."""
        self.model_output = model_output
        self.mean, self.std = self._kernel(x, model_output, self._transition.place)
        self.log_prob = kernels.log_prob(self._transition.x_next, self.mean, self.std, self._reduction)
        return self._transition.x_next


class Probing(Session):
    """Hands back the model output at any timestep."""

    only = 0

    def __init__(self, timesteps: Tensor) -> None:
        """Expose ``timesteps``, `[1]` for one that the micro-batch shares or `[1, B]` for one a sample."""
        self.timesteps = timesteps
        self.model_output: Tensor | None = None

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Keep the model output; the latents stay."""
        self.model_output = model_output
        return x


def trainable_steps(stds: list[float], floor: float = STD_FLOOR) -> list[int]:
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


class FlowPolicyScheduler(FlowMatchEulerDiscreteScheduler):
    """Flow matching's Euler scheduler, with its own schedule, whose steps a session takes."""

    session: Session
    # Read by `DiffusionPipeline` when it checks a scheduler against the one that it was saved with.
    _compatibles: ClassVar[list[str]] = []

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        sigmas: list[float] | None = None,
        mu: float | None = None,
        timesteps: list[float] | None = None,
    ) -> None:
        """Build the whole schedule as diffusers does, and show the pipeline the session's part of it."""
        super().set_timesteps(num_inference_steps, device, sigmas, mu, timesteps)
        sigma, timestep = self.sigmas.tolist(), self.timesteps.tolist()
        for earlier, later in pairwise(sigma):
            if not earlier > later:
                raise UserError(f"the schedule's sigmas must fall strictly, but {earlier} is followed by {later}.")
        self.places: list[Place] = [
            FlowPlace(k, timestep[k], sigma[k], sigma[k + 1], sigma[1]) for k in range(len(timestep))
        ]
        _show(self, device)

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The timestep that the model expects at noise level ``sigma``, of any shape."""
        return sigma * float(self.config.num_train_timesteps)

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        *_: Any,
        return_dict: bool = True,
        **__: Any,
    ) -> Any:
        """Give the step to the session."""
        if self.session.only is None and self.step_index is None:
            self._init_step_index(timestep)
        step = self.step_index if self.session.only is None else self.session.only
        x_next = self.session.step(self.places[step], sample, model_output)
        self._step_index = step + 1
        return FlowMatchEulerDiscreteSchedulerOutput(prev_sample=x_next) if return_dict else (x_next,)


class DDPMPolicyScheduler(DDIMScheduler):
    """DDIM's schedule for DDPM-type models, whose steps a session takes."""

    session: Session
    _compatibles: ClassVar[list[str]] = []

    def set_timesteps(self, num_inference_steps: int, device: str | torch.device | None = None) -> None:
        """Build the whole schedule as diffusers does, and show the pipeline the session's part of it."""
        super().set_timesteps(num_inference_steps, device)
        if self.config.thresholding:
            raise UserError(
                "the scheduler's dynamic thresholding is not a Gaussian transition; set thresholding=False."
            )
        clip = self.config.clip_sample_range if self.config.clip_sample else None
        stride = self.config.num_train_timesteps // num_inference_steps
        self.places: list[Place] = []
        for step, timestep in enumerate(self.timesteps.tolist()):
            after = timestep - stride
            a_next = self.alphas_cumprod[after] if after >= 0 else self.final_alpha_cumprod
            a = float(self.alphas_cumprod[timestep])
            self.places.append(DDPMPlace(step, timestep, a, float(a_next), self.config.prediction_type, clip))
        _show(self, device)

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The training timestep whose noise share ``sqrt(1 - alpha_cumprod)`` is nearest to ``sigma``."""
        shares: Tensor = (1 - self.alphas_cumprod).sqrt().to(sigma.device)
        return (shares - sigma[..., None]).abs().argmin(dim=-1)

    def step(
        self,
        model_output: Tensor,
        timestep: int | Tensor,
        sample: Tensor,
        *_: Any,
        return_dict: bool = True,
        **__: Any,
    ) -> Any:
        """Give the step to the session."""
        step = self.session.only
        if step is None:
            step = next(place.step for place in self.places if place.timestep == int(timestep))
        x_next = self.session.step(self.places[step], sample, model_output)
        return DDIMSchedulerOutput(prev_sample=x_next, pred_original_sample=None) if return_dict else (x_next,)


PolicyScheduler: TypeAlias = FlowPolicyScheduler | DDPMPolicyScheduler

_DDPM_TYPE = ("DDIM", "DDPM", "PNDM", "EulerDiscrete", "EulerAncestral", "LMS", "DPMSolver", "UniPC", "Heun", "KDPM2")


def _show(scheduler: PolicyScheduler, device: str | torch.device | None) -> None:
    session = scheduler.session
    session.begin(scheduler.places)
    if session.timesteps is not None:
        scheduler.timesteps = session.timesteps.to(device)
    elif session.only is not None:
        scheduler.timesteps = scheduler.timesteps[session.only : session.only + 1]


def policy_scheduler(stock: Any) -> PolicyScheduler:
    """The policy scheduler with the schedule of a pipeline's stock scheduler.

    Flow matching's Euler keeps its own. Every DDPM-type scheduler becomes DDIM with the same betas, prediction type and
    timestep spacing.

    Raises:
        UserError: no policy scheduler speaks the stock scheduler's protocol.
    """
    name = type(stock).__name__
    if isinstance(stock, FlowMatchEulerDiscreteScheduler):
        if stock.config.stochastic_sampling or stock.config.invert_sigmas:
            raise UserError(f"{name} with stochastic_sampling or invert_sigmas is not supported as a policy.")
        flow: FlowPolicyScheduler = FlowPolicyScheduler.from_config(stock.config)
        flow.set_shift(stock.shift)
        return flow
    if name.startswith(_DDPM_TYPE) and not stock.config.get("use_flow_sigmas", False):
        # Not from_config: it leaves out settings that are defaults of the stock scheduler and not of DDIM.
        known = inspect.signature(DDIMScheduler).parameters
        settings = {key: value for key, value in stock.config.items() if key in known}
        return DDPMPolicyScheduler(**{"clip_sample": False, **settings})
    raise UserError(
        f"{name} cannot be turned into a policy; supported are FlowMatchEulerDiscreteScheduler and the DDPM-type "
        f"schedulers ({', '.join(_DDPM_TYPE)})."
    )
