"""The seam: schedulers of diffusers whose steps a session takes.

A pipeline asks its scheduler for timesteps and gives it each model output. The schedulers here keep the pipeline's own
schedule and hand every step to a *session* (`flowrl.session`), which decides what happens to the latents.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from diffusers import CogVideoXDDIMScheduler, DDIMScheduler, FlowMatchEulerDiscreteScheduler
from diffusers.schedulers.scheduling_ddim import DDIMSchedulerOutput
from diffusers.schedulers.scheduling_lcm import LCMSchedulerOutput
from torch import Tensor

from .errors import UserError
from .kernels import ConsistencyPlace, DDPMPlace, FlowPlace, Kind, Place
from .kinds import DDPM_TYPE, scheduler_kind
from .session import Beside, Session


class PolicyScheduler(ABC):
    """What a policy scheduler adds to a scheduler of diffusers: `policy_scheduler` joins the two in one class.

    Attributes:
        session: what to do with each step.
        places: the whole schedule, step by step.
        kind: the kind of model that is scheduled.
        batch: samples of the micro-batch, as far as known.
        copies: how often the pipeline had each sample at the last step.
    """

    kind: ClassVar[Kind]
    batch: int | None = None
    copies: int = 1
    session: Session
    places: list[Place]
    # Read by `DiffusionPipeline` when it checks a scheduler against the one that it was saved with.
    _compatibles: ClassVar[list[str]] = []

    timesteps: Tensor
    config: Any

    @abstractmethod
    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """The places of the schedule that the stock scheduler has just set."""

    @abstractmethod
    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The timestep that the model expects at noise level ``sigma``, of any shape."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyScheduler:
        """A copy that a pipeline makes in a call, to step other latents beside its own."""
        made: PolicyScheduler = object.__new__(type(self))
        vars(made).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name != "session"})
        made.session = Beside(self.session)
        return made

    def inward(
        self, place: Place, x: Tensor, model_output: Tensor, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Latents and model output as the kernels take them, given the further arguments of ``step``."""
        return x, model_output

    def outward(self, place: Place, x_next: Tensor) -> Tensor:
        """Latents after a step as the pipeline takes them: `inward` undone."""
        return x_next

    def place(self, step: int) -> Place:
        """The place of a step."""
        return self.places[step]

    def scheduled(self, num_inference_steps: int | None) -> None:
        """Called after the stock scheduler's ``set_timesteps``: begin the session, and show what it wants shown."""
        self.places, self._next = self.schedule(num_inference_steps), cast("int | None", None)
        self._shown = self.timesteps.tolist()
        self.session.begin(self.places)
        self.session.begun = True
        if self.session.timestep is not None:
            # One more than there are, for the step that is walked; all alike, wherever a pipeline starts among them.
            shown = self.session.timestep.to(self.timesteps.device)
            self.timesteps = shown.expand(len(self.timesteps) + 1, *shown.shape)

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        *_: Any,
        return_dict: bool = True,
        **options: Any,
    ) -> Any:
        """Give the step to the session."""
        step = self._first(timestep) if self._next is None else self._next
        self._next = step + 1
        place = self.place(min(step, len(self.places) - 1))  # a probe from the last step stands behind it
        self.copies = self._copies_in(sample)
        if self.copies > 1:
            sample, model_output = sample[: self.batch], model_output[: self.batch]
        folded = self.batch is not None and len(sample) > self.batch and len(sample) % self.batch == 0
        if folded:  # a video's frames, as if they were samples
            frames = (self.batch, len(sample) // cast("int", self.batch))
            sample, model_output = sample.unflatten(0, frames), model_output.unflatten(0, frames)
        x_next = self.outward(place, self.session.step(place, *self.inward(place, sample, model_output, options)))
        if folded:
            x_next = x_next.flatten(0, 1)
        if self.copies > 1:
            x_next = torch.cat([x_next] * self.copies)
        if hasattr(self, "_step_index"):  # stock schedulers count too: `scale_noise` reads it, for what a mask keeps
            self._step_index = self._next
        return DDIMSchedulerOutput(prev_sample=x_next, pred_original_sample=None) if return_dict else (x_next,)

    def _copies_in(self, sample: Tensor) -> int:
        """How often the pipeline has each sample: twice if guidance's double batch goes through its scheduler."""
        times, rest = divmod(len(sample), self.batch or len(sample))
        same = times > 1 and not rest and torch.equal(sample, torch.cat([sample[: self.batch]] * times))
        return times if same else 1

    def _first(self, timestep: float | Tensor) -> int:
        """Where in the schedule the pipeline starts: not at 0 if it starts from a picture."""
        begin: int | None = getattr(self, "begin_index", None)
        if begin is not None:
            return begin
        now = float(torch.as_tensor(timestep).flatten()[0])
        return min(range(len(self._shown)), key=lambda step: abs(self._shown[step] - now))


class FlowPolicyScheduler(PolicyScheduler):
    """A flow model's scheduler, whatever its solver, as Euler steps on its own schedule that a session takes.

    In some schedules (EDM's, and all whose sigma exceeds 1) noise only grows and the data stays as it is,
    ``x_0 + s eps``. Divided by ``1 + s`` these are a flow's latents at the level ``sigma = s / (1 + s)``. So are those
    of a trajectory: what the kernels compute, what is recorded, and what `Probing` is given.

    Attributes:
        exploding: whether noise grows so; known when the schedule is set.
    """

    kind = "flow"
    sigmas: Tensor
    exploding: bool = False

    def scheduled(self, num_inference_steps: int | None) -> None:
        """As for every scheduler; what a pipeline noises itself (what a mask keeps, say) is at a probe's level too."""
        super().scheduled(num_inference_steps)
        shown = self.session.sigma
        if shown is not None and shown.ndim == 0:
            self.sigmas = self.stock_sigma(shown).to(self.sigmas).repeat(len(self.sigmas) + 1)

    def scale_model_input(self, sample: Tensor, *_: Any, **__: Any) -> Tensor:
        """The latents as they are; asked for by pipelines that know no flow scheduler but diffusers' own class."""
        return sample

    def place(self, step: int) -> Place:
        """The place of a step; Cosmos holds still at the end, by a sigma that it changes after the schedule is set."""
        place = self.places[step]
        if self.exploding and self.session.timestep is None and place.sigma_next == 0 and self.sigmas[step + 1] > 0:
            place = self.places[step] = replace(cast("FlowPlace", place), sigma_next=place.sigma)
        return place

    @property
    def inverted(self) -> bool:
        """Whether the model's time runs from 0, noise, to 1, data (Mochi's does), and its velocity the other way."""
        return bool(self.config.get("invert_sigmas", False))

    def inward(
        self, place: Place, x: Tensor, model_output: Tensor, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """The velocity towards noise, and the latents that are its flow's."""
        if not self.exploding:
            # diffusers' step with a timestep for each token is given the velocity towards data.
            per_token = options.get("per_token_timesteps") is not None
            return x, -model_output if self.inverted != per_token else model_output
        data = 1 - self._level(place.sigma)
        eps = self.noise_in(x, model_output, data)
        x = x * data
        return x, (eps - x) / data

    def outward(self, place: Place, x_next: Tensor) -> Tensor:
        """As they come, but where noise only grows."""
        return x_next / (1 - self._level(place.sigma_next)) if self.exploding else x_next

    def _level(self, sigma: float) -> float | Tensor:
        shown = self.session.sigma
        if shown is None:
            return sigma
        known = (place.sigma for place in self.places if shown.ndim == 0 and abs(float(shown) - place.sigma) < 1e-6)
        return next(known, shown)

    def stock_sigma(self, sigma: Tensor) -> Tensor:
        """The stock scheduler's sigma at a noise level: at those of the schedule, its own to the last bit."""
        stock = sigma / (1 - sigma) if self.exploding else 1 - sigma if self.inverted else sigma
        for place, own_sigma in zip(self.places, self._stock_sigmas, strict=False):
            stock = torch.where((sigma - place.sigma).abs() < 1e-6, torch.tensor(own_sigma).to(stock), stock)
        return stock

    def noise_in(self, x: Tensor, model_output: Tensor, data: float | Tensor) -> Tensor:
        """The predicted noise where noise only grows; ``data`` is the share of x_0 in the flow's latents."""
        return model_output

    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """Pairs of timestep and sigma, as the stock scheduler has them."""
        sigma, timestep = self.sigmas.tolist(), self.timesteps.tolist()
        self._stock_sigmas = sigma
        if self.inverted:
            sigma = [1 - level for level in sigma]
        self.exploding = sigma[0] > 1 + 1e-6
        if self.exploding:
            sigma = [level / (1 + level) for level in sigma]
        for earlier, later in pairwise(sigma):
            if not earlier > later:
                raise UserError(f"the schedule's sigmas must fall strictly, but {earlier} is followed by {later}.")
        return [FlowPlace(k, timestep[k], sigma[k], sigma[k + 1], sigma[1]) for k in range(len(timestep))]

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """What the last schedule has at its own sigmas; elsewhere 1000 sigma, a whole number if the schedule's are."""
        places = getattr(self, "places", [])
        timestep = (self.stock_sigma(sigma) if places else sigma) * float(self.config.num_train_timesteps)
        if places and isinstance(places[0].timestep, int):  # UniPC's and DPM-Solver's, not Euler's
            timestep = timestep.floor().to(torch.int64)
        for place in cast("list[FlowPlace]", places):
            here = (sigma - place.sigma).abs() < 1e-6
            timestep = torch.where(here, torch.tensor(place.timestep, dtype=timestep.dtype).to(here.device), timestep)
        return timestep


class EDMPolicyScheduler(FlowPolicyScheduler):
    """EDM's schedule for a model that is told ``log(s) / 4`` and predicts v or epsilon, as a flow (see above)."""

    def noise_in(self, x: Tensor, model_output: Tensor, data: float | Tensor) -> Tensor:
        """Epsilon, worked out from v if the model predicts that."""
        if self.config.prediction_type == "epsilon":
            return model_output
        if self.config.prediction_type != "v_prediction":
            raise UserError(f"prediction_type {self.config.prediction_type!r} is not supported for an EDM schedule.")
        s = (1 - data) / data
        return (s * x + (s * s + 1) ** 0.5 * model_output) / (s * s + 1)

    def scale_model_input(self, sample: Tensor, timestep: float | Tensor, *_: Any, **__: Any) -> Tensor:
        """The latents with a variance of 1."""
        step = self._first(timestep) if self._next is None else self._next
        return sample / (self.sigmas[step] ** 2 + 1) ** 0.5

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """``log(s) / 4``."""
        return 0.25 * self.stock_sigma(sigma).log()


class DDPMPolicyScheduler(PolicyScheduler):
    """DDIM's schedule for DDPM-type models, whose steps a session takes."""

    kind: ClassVar[Kind] = "ddpm"
    alphas_cumprod: Tensor
    final_alpha_cumprod: Tensor

    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """Pairs of timestep and signal share."""
        if self.config.get("thresholding", False):
            raise UserError(
                "the scheduler's dynamic thresholding is not a Gaussian transition; set thresholding=False."
            )
        clip = self.config.clip_sample_range if self.config.clip_sample else None
        stride = self.config.num_train_timesteps // (num_inference_steps or len(self.timesteps))
        places: list[Place] = []
        for step, timestep in enumerate(self.timesteps.tolist()):
            after = timestep - stride
            a_next = self.alphas_cumprod[after] if after >= 0 else self.final_alpha_cumprod
            a = float(self.alphas_cumprod[timestep])
            places.append(DDPMPlace(step, timestep, a, float(a_next), self.config.prediction_type, clip))
        return places

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The training timestep whose noise share ``sqrt(1 - alpha_cumprod)`` is nearest to ``sigma``."""
        shares: Tensor = (1 - self.alphas_cumprod).sqrt().to(sigma.device)
        return (shares - sigma[..., None]).abs().argmin(dim=-1)


class RatioPolicyScheduler(DDPMPolicyScheduler):
    """The schedule of Wuerstchen and Stable Cascade, whose time is a number from 1, noise, to 0, data."""

    _alpha_cumprod: Callable[[Tensor, torch.device], Tensor]

    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """From each time to the next; the last, which is listed and no step, is taken for the data themselves."""
        times = self.timesteps.tolist()
        shares = [*self._alpha_cumprod(self.timesteps, self.timesteps.device)[:-1].tolist(), 1.0]
        return [DDPMPlace(step, times[step], a, a_next) for step, (a, a_next) in enumerate(pairwise(shares))]

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The time whose noise share is nearest to ``sigma``: one of the schedule, or of 10 000 evenly spaced ones."""
        evenly = torch.linspace(1, 0, 10_001)
        times = torch.cat([torch.tensor([place.timestep for place in self.places]), evenly])
        shares = (1 - self._alpha_cumprod(times, times.device)).sqrt().to(sigma.device)
        return times.to(sigma.device)[(shares - sigma[..., None]).abs().argmin(dim=-1)]


class ConsistencyPolicyScheduler(DDPMPolicyScheduler):
    """LCM's schedule for DDPM-type consistency models, whose steps a session takes."""

    kind = "consistency"
    get_scalings_for_boundary_condition_discrete: Callable[[Any], tuple[Any, Any]]

    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """As for DDPM-type models, but each step leads to the next timestep of the schedule, and the last to data."""
        places = cast("list[DDPMPlace]", super().schedule(num_inference_steps))
        after = [place.alpha_cumprod for place in places[1:]] + [1.0]
        scalings = [self.get_scalings_for_boundary_condition_discrete(timestep) for timestep in self.timesteps]
        return [
            ConsistencyPlace(**{**vars(place), "alpha_cumprod_next": a_next}, c_skip=float(c_skip), c_out=float(c_out))
            for place, a_next, (c_skip, c_out) in zip(places, after, scalings, strict=True)
        ]

    def step(self, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """Give the step to the session; what pipelines read beside the latents, and decode at the end, is the last."""
        x_next = super().step(*args, return_dict=False, **kwargs)[0]
        return LCMSchedulerOutput(prev_sample=x_next, denoised=x_next) if return_dict else (x_next, x_next)


class TrigFlowPolicyScheduler(ConsistencyPolicyScheduler):
    """SCM's schedule for TrigFlow consistency models, whose steps a session takes.

    Time is an angle from pi / 2, noise, to 0, data: ``x = cos(t) x_0 + sin(t) z``, with data and noise of the spread
    ``sigma_data``. Divided by that these are the latents of a DDPM-type model with ``sqrt(A) = cos(t)`` that predicts
    v. So are those of a trajectory: what the kernels compute, what is recorded, and what `Probing` is given.
    """

    def schedule(self, num_inference_steps: int | None) -> list[Place]:
        """From each angle to the next; SCM lists the last, which is no step, too."""
        angles = self.timesteps.tolist()
        shares = [math.cos(min(angle, math.pi / 2)) ** 2 for angle in angles]  # it starts at 1.5708, a little more
        return [
            ConsistencyPlace(step, angles[step], a, a_next, "v_prediction")
            for step, (a, a_next) in enumerate(pairwise(shares))
        ]

    def inward(
        self, place: Place, x: Tensor, model_output: Tensor, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """With a spread of 1."""
        return x / self.config.sigma_data, model_output / self.config.sigma_data

    def outward(self, place: Place, x_next: Tensor) -> Tensor:
        """With the model's spread."""
        return x_next * float(self.config.sigma_data)

    def timestep_at(self, sigma: Tensor) -> Tensor:
        """The angle whose sine is ``sigma``."""
        angle = sigma.clamp(0, 1).arcsin()
        for place in getattr(self, "places", []):
            angle = torch.where((sigma - place.sigma).abs() < 1e-7, torch.tensor(place.timestep).to(angle), angle)
        return angle


def policy_scheduler(stock: Any) -> PolicyScheduler:
    """The policy scheduler with the schedule of a pipeline's stock scheduler.

    ===================================================  ==========================================================
    stock scheduler                                      what a policy's step is
    ===================================================  ==========================================================
    FlowMatchEulerDiscrete                               the same Euler step
    FlowMapEulerDiscrete                                 the same Euler step, by the mean velocity of the interval
    UniPC, DPM-Solver ... with ``use_flow_sigmas``       an Euler step on the solver's own timesteps and sigmas
    EulerDiscrete with continuous timesteps (EDM's)      the same Euler step, as a flow's
    DDIM, CogVideoXDDIM                                  the same DDIM step
    CogVideoXDPM                                         CogVideoXDDIM's step with the same settings
    DDPM, PNDM, Euler, LMS, DPM-Solver, UniPC, Heun ...  DDIM's step, same betas, prediction type and spacing
    DDPMWuerstchen                                       DDIM's step, same signal shares
    LCM, SCM                                             the same step, or with less new noise (`kernels.consistency`)
    ===================================================  ==========================================================

    Raises:
        UserError: no policy scheduler speaks the stock scheduler's protocol.
    """
    name = type(stock).__name__
    config: Mapping[str, Any] = getattr(stock, "config", {})
    if isinstance(stock, FlowMatchEulerDiscreteScheduler) and stock.config.stochastic_sampling:
        raise UserError(f"{name} with stochastic_sampling is not supported as a policy.")
    kind = scheduler_kind(name, config)
    if kind == "flow":
        exploding = name == "EulerDiscreteScheduler" and not config.get("use_flow_sigmas", False)
        return _joined(EDMPolicyScheduler if exploding else FlowPolicyScheduler, stock)
    if kind == "consistency":
        return _joined(TrigFlowPolicyScheduler if name.startswith("SCM") else ConsistencyPolicyScheduler, stock)
    if name.startswith("CogVideoX"):
        made = _with_settings_of(CogVideoXDDIMScheduler, stock)
        made.register_to_config(clip_sample=False)  # its step does not clip, whatever the setting says
        return _joined(DDPMPolicyScheduler, made)
    if name == "DDPMWuerstchenScheduler":
        return _joined(RatioPolicyScheduler, stock)
    if kind == "ddpm":
        return _joined(DDPMPolicyScheduler, _with_settings_of(DDIMScheduler, stock))
    raise UserError(
        f"{name} cannot be turned into a policy; supported are FlowMatchEulerDiscreteScheduler, solvers such as UniPC "
        "and DPMSolver with use_flow_sigmas, LCMScheduler, SCMScheduler, and the DDPM-type schedulers "
        f"({', '.join(DDPM_TYPE)})."
    )


def _with_settings_of(kind: type, stock: Any) -> Any:
    # Not from_config: it leaves out settings that are defaults of the stock scheduler and not of DDIM.
    known = inspect.signature(kind).parameters
    settings = {key: value for key, value in stock.config.items() if key in known}
    made = kind(**{"clip_sample": False, **settings})
    # Asked for by pipelines whose model may predict a variance, to be left out then: the kernel has one of its own.
    made.register_to_config(variance_type="fixed_small")
    return made


def _joined(seam: type[PolicyScheduler], stock: Any) -> PolicyScheduler:
    """A copy of a scheduler with the seam's ``step``; its ``set_timesteps`` keeps the signature that pipelines read."""
    kind = type(stock)

    @functools.wraps(kind.set_timesteps)
    def set_timesteps(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.set_timesteps(self, *args, **kwargs)
        self.scheduled(kwargs.get("num_inference_steps", args[0] if args else None))

    both = type(seam.__name__, (seam, kind), {"set_timesteps": set_timesteps, "__module__": __name__})
    joined: PolicyScheduler = object.__new__(both)
    vars(joined).update(copy.deepcopy(vars(stock)))
    return joined
