r"""Transition kernels: where a sampler goes from ``x``, as a Gaussian.

A kernel maps ``(x, model_output, place)`` to the mean `[B, ...]` and the standard deviation (one number) of
``x_next``. It is the only place where they are computed: rollout, replay, log-probability and KL all read them here,
in float32 whatever the model's dtype.

Time is diffusers' sigma: 1 is noise, 0 is data, ``x = (1 - sigma) x_0 + sigma eps``, and a flow model's output is the
velocity ``v = eps - x_0``. With ``dt = sigma_next - sigma < 0`` every flow kernel is linear,
``mean = c_x x + c_v v``, so a flow kernel *is* its two coefficients and its std, worked out in float64:

===========  =======================================================  ==============================
kernel       s, the noise                                             std of the transition
===========  =======================================================  ==============================
`ode`        0                                                        0
`flow_sde`   a sqrt(sigma / (1 - sigma))                              s sqrt(-dt)
`dance_sde`  a                                                        s sqrt(-dt)
`flow_cps`   sigma_next sin(a pi / 2)                                 s
`ddim`       a sqrt((1-A')/(1-A) (1 - A/A')), A = alpha_cumprod       s
===========  =======================================================  ==============================

`consistency` is for models that jump to the data and are noised again; its std is ``a sqrt(1 - A')``.

Two rules hold for all of them. Noise 0 is the stock scheduler's step, bit for bit; only a consistency model's is
stochastic itself, and `consistency` says what stands for it. A step that ends on clean data
(``sigma_next = 0``) is deterministic: noise drawn there would stay in the picture, and no model call could remove it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .errors import UserError

Reduction = Literal["mean", "sum"]
Prediction = Literal["flow", "epsilon", "v_prediction", "sample"]
"""What a model's output is: the velocity ``eps - x_0``; or of a DDPM-type model the noise, the DDPM velocity, x_0."""


@dataclass(frozen=True)
class FlowPlace:
    """Where a transition stands in a flow schedule.

    Attributes:
        step: absolute index in the schedule, 0 is the noisiest.
        timestep: what the model is told, usually 1000 sigma.
        sigma: noise level now, in (0, 1].
        sigma_next: noise level after the step, in [0, sigma).
        sigma_second: the schedule's second sigma, the stand-in for sigma where ``flow_sde`` is singular at 1.
    """

    step: int
    timestep: float
    sigma: float
    sigma_next: float
    sigma_second: float


@dataclass(frozen=True)
class DDPMPlace:
    """Where a transition stands in the schedule of a DDPM-type model.

    Attributes:
        step: absolute index in the schedule, 0 is the noisiest.
        timestep: the training timestep, in [0, 1000).
        alpha_cumprod: signal share now, in (0, 1); ``x = sqrt(A) x_0 + sqrt(1 - A) eps``.
        alpha_cumprod_next: signal share after the step, in (0, 1].
        prediction_type: what the model predicts: ``epsilon``, ``v_prediction`` or ``sample``.
        clip_range: bound on the predicted x_0, if the model's scheduler clips it.
    """

    step: int
    timestep: float
    alpha_cumprod: float
    alpha_cumprod_next: float
    prediction_type: str = "epsilon"
    clip_range: float | None = None

    @property
    def sigma(self) -> float:
        """Noise share now, ``sqrt(1 - A)``."""
        return math.sqrt(1 - self.alpha_cumprod)

    @property
    def sigma_next(self) -> float:
        """Noise share after the step."""
        return math.sqrt(1 - self.alpha_cumprod_next)


@dataclass(frozen=True)
class ConsistencyPlace(DDPMPlace):
    """Where a transition stands in the schedule of a DDPM-type consistency model.

    Attributes:
        c_skip: share of x in the predicted clean latents, ``c_skip x + c_out x_0``; 0 but near to the data.
        c_out: share of x_0 in them.
    """

    c_skip: float = 0.0
    c_out: float = 1.0


Place = FlowPlace | DDPMPlace
Kind = Literal["flow", "ddpm", "consistency"]
"""Kinds of models: flow matching; DDPM-type; DDPM-type consistency models."""

_FITTING: dict[Kind, tuple[str, str]] = {
    "flow": ("flow", "flow_sde, dance_sde, flow_cps"),
    "ddpm": ("DDPM-type", "ddim"),
    "consistency": ("consistency", "consistency"),
}
"""What a kind is called, and the kernels with noise that fit it."""

Coefficients = Callable[[FlowPlace, float], tuple[float, float, float]]


@dataclass(frozen=True)
class Kernel:
    """A transition kernel; the functions of this module make them.

    Attributes:
        name: the name in a config.
        noise_level: strength of the noise, 0 is deterministic.
        coefficients: ``(place, noise_level) -> (c_x, c_v, std)`` of a flow kernel; None for DDPM-type models.
        kind: the kind of model that it is for, if it has noise.
    """

    name: str
    noise_level: float
    coefficients: Coefficients | None = None
    kind: Kind = "flow"

    def __post_init__(self) -> None:
        """Refuse a negative or infinite noise level."""
        if not 0 <= self.noise_level < math.inf:
            raise UserError(f"noise_level of {self.name} is {self.noise_level}; wanted a finite number of at least 0.")

    def __call__(self, x: Tensor, model_output: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Mean `[B, ...]` and std (0-dim) of ``x_next``, both float32.

        Args:
            x: `[B, ...]` latents now.
            model_output: `[B, ...]` velocity of a flow model, or what ``place.prediction_type`` says.
            place: the transition's place in its schedule.

        Raises:
            UserError: the kernel is for the other kind of model.
        """
        std = torch.tensor(self.std(place))
        if std == 0:
            mean = _stock_step(x, model_output, place)
        elif isinstance(place, ConsistencyPlace):
            mean = _consistency(x.float(), model_output.float(), place, self.noise_level)
        elif isinstance(place, DDPMPlace):
            mean = _ddim(x.float(), model_output.float(), place, std)
        else:
            c_x, c_v, _ = self._flow(place)
            mean = c_x * x.float() + c_v * model_output.float()
        return mean, std.to(x.device)

    def std(self, place: Place) -> float:
        """The std of the transition at a place, without a model call."""
        if self.noise_level == 0:
            return 0.0
        self.check_suits(kind_of(place))
        if place.sigma_next == 0:
            return 0.0
        if isinstance(place, ConsistencyPlace):
            return self.noise_level * place.sigma_next
        return _ddim_std(place, self.noise_level) if isinstance(place, DDPMPlace) else self._flow(place)[2]

    def deterministic(self) -> Kernel:
        """The same kernel without noise."""
        return replace(self, noise_level=0.0)

    def _flow(self, place: FlowPlace) -> tuple[float, float, float]:
        assert self.coefficients is not None, f"{self.name} is no flow kernel"
        return self.coefficients(place, self.noise_level)

    def check_suits(self, kind: Kind) -> None:
        """Refuse a kernel with noise that is for another kind of model.

        Raises:
            UserError: names the kernels that fit.
        """
        if self.noise_level > 0 and kind != self.kind:
            called, known = _FITTING[kind]
            raise UserError(f"kernel {self.name!r} does not fit a {called} model; write one of: ode, {known}.")


def kind_of(place: Place) -> Kind:
    """The kind of model to whose schedule a place belongs.

    >>> kind_of(ConsistencyPlace(0, 999, 0.005, 0.1))
    'consistency'
    """
    if isinstance(place, FlowPlace):
        return "flow"
    return "consistency" if isinstance(place, ConsistencyPlace) else "ddpm"


def to_data(place: Place) -> Place:
    """The same place, but for its step, which leads to clean data at once.

    >>> to_data(FlowPlace(2, 500.0, 0.5, 0.25, 0.75)).sigma_next
    0.0
    """
    return replace(place, sigma_next=0.0) if isinstance(place, FlowPlace) else replace(place, alpha_cumprod_next=1.0)


def ode() -> Kernel:
    """No noise: the stock sampler (Euler for flow models, DDIM with eta 0 for DDPM-type models).

    >>> ode()(torch.ones(1, 2), torch.ones(1, 2), FlowPlace(0, 1000.0, 1.0, 0.75, 0.75))
    (tensor([[0.7500, 0.7500]]), tensor(0.))
    """
    return Kernel("ode", 0.0)


def flow_sde(noise_level: float = 0.7) -> Kernel:
    r"""The SDE of Flow-GRPO, with the same marginals as the ODE.

    ``s = a sqrt(sigma / (1 - sigma))``, ``mean = x + [v + s^2 / (2 sigma) (x + (1 - sigma) v)] dt``,
    ``std = s sqrt(-dt)``. At sigma = 1, where s is infinite, the schedule's second sigma stands in, as in the
    authors' code; and so near to 1 (UniPC starts at 1 - 1e-6, DPM-Solver at 0.9997).

    See "Flow-GRPO: Training Flow Matching Models via Online RL", Liu et al., https://arxiv.org/abs/2505.05470.

    Args:
        noise_level: a, at least 0; 0.7 for SD3.5, 0.9 for FLUX.

    >>> flow_sde(0.7).std(FlowPlace(0, 500.0, 0.5, 0.25, 0.75))
    0.35
    """

    def coefficients(place: FlowPlace, a: float) -> tuple[float, float, float]:
        denominator = 1 - (place.sigma_second if place.sigma > 1 - 1e-3 else place.sigma)
        return _marginal_preserving(place, a * math.sqrt(place.sigma / denominator))

    return Kernel("flow_sde", noise_level, coefficients)


def dance_sde(noise_level: float = 0.3) -> Kernel:
    """The SDE of DanceGRPO: `flow_sde` with a constant ``s = a``.

    See "DanceGRPO: Unleashing GRPO on Visual Generation", Xue et al., https://arxiv.org/abs/2505.07818.

    Args:
        noise_level: a, at least 0; 0.3 for FLUX, 0.25 for HunyuanVideo.

    >>> dance_sde(0.3).std(FlowPlace(0, 500.0, 0.5, 0.25, 0.75))
    0.15
    """
    return Kernel("dance_sde", noise_level, _marginal_preserving)


def flow_cps(noise_level: float = 0.7) -> Kernel:
    """Coefficients-preserving sampling: the total noise after a step is exactly ``sigma_next``.

    ``s = sigma_next sin(a pi / 2)``, ``mean = (1 - sigma_next) x_0 + sqrt(sigma_next^2 - s^2) eps``, ``std = s``, with
    the predictions ``x_0 = x - sigma v`` and ``eps = x + (1 - sigma) v``. A fixed share of the noise is new at each
    step, so for many steps the marginals stay those of the ODE only if ``a`` shrinks like ``1 / sqrt(steps)``.

    The log-probability is the full Gaussian one; the authors' code drops the variance and the constants.

    See "Coefficients-Preserving Sampling for Reinforcement Learning with Flow Matching", Wang and Yu,
    https://arxiv.org/abs/2509.05952.

    Args:
        noise_level: a in [0, 1]; 0.7 to 0.9 in the authors' recipes.

    >>> round(flow_cps(1.0).std(FlowPlace(0, 500.0, 0.5, 0.25, 0.75)), 6)
    0.25
    """
    if noise_level > 1:
        raise UserError(f"noise_level of flow_cps is {noise_level}; wanted a number in [0, 1].")

    def coefficients(place: FlowPlace, a: float) -> tuple[float, float, float]:
        angle = a * math.pi / 2
        c_0, c_eps = 1 - place.sigma_next, place.sigma_next * math.cos(angle)
        return c_0 + c_eps, c_eps * (1 - place.sigma) - c_0 * place.sigma, place.sigma_next * math.sin(angle)

    return Kernel("flow_cps", noise_level, coefficients)


def ddim(noise_level: float = 1.0) -> Kernel:
    """DDIM with eta for DDPM-type models, as DDPO samples; eta = 1 is ancestral sampling.

    ``std = eta sqrt((1-A')/(1-A) (1 - A/A'))``, ``mean = sqrt(A') x_0 + sqrt(1 - A' - std^2) eps``.

    See "Denoising Diffusion Implicit Models", Song et al., https://arxiv.org/abs/2010.02502, and "Training Diffusion
    Models with Reinforcement Learning", Black et al., https://arxiv.org/abs/2305.13301.

    Args:
        noise_level: eta, in [0, 1].

    >>> round(ddim(1.0).std(DDPMPlace(0, 500.0, 0.5, 0.75)), 6)
    0.408248
    """
    if noise_level > 1:
        raise UserError(f"noise_level of ddim is its eta, {noise_level}; wanted a number in [0, 1].")
    return Kernel("ddim", noise_level, kind="ddpm")


def consistency(noise_level: float = 1.0) -> Kernel:
    """Multistep sampling of a DDPM-type consistency model: a jump to the clean latents, which are noised again.

    ``mean = sqrt(A') f + sqrt(1 - A') sqrt(1 - a^2) eps``, ``std = a sqrt(1 - A')``, with the consistency function
    ``f = c_skip x + c_out x_0`` and the predictions x_0 and eps. At ``a = 1`` all noise is new, which is the sampler of
    LCM and the policy of RLCM. Less makes a part of it that of ``x``: how much noise there is after a step stays the
    same, as the model expects it. Noise 0 thus is DDIM's step with ``f`` for x_0; the stock sampler has no such step,
    except for the last, which is ``f`` for every ``a``.

    See "Latent Consistency Models: Synthesizing High-Resolution Images with Few-Step Inference", Luo et al.,
    https://arxiv.org/abs/2310.04378, and "RL for Consistency Models: Faster Reward Guided Text-to-Image Generation",
    Oertell et al., https://arxiv.org/abs/2404.03673.

    Args:
        noise_level: a in [0, 1]; 1 is the stock sampler's distribution.

    >>> consistency(1.0).std(ConsistencyPlace(0, 999, 0.005, 0.75))
    0.5
    """
    if noise_level > 1:
        raise UserError(f"noise_level of consistency is {noise_level}; wanted a number in [0, 1].")
    return Kernel("consistency", noise_level, kind="consistency")


KERNELS: dict[str, Callable[..., Kernel]] = {
    "ode": ode,
    "flow_sde": flow_sde,
    "dance_sde": dance_sde,
    "flow_cps": flow_cps,
    "ddim": ddim,
    "consistency": consistency,
}
"""Every built-in kernel by its name in a config."""


def log_prob(x_next: Tensor, mean: Tensor, std: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Gaussian log-density of ``x_next`` `[B, ...]`, averaged or summed over all but the batch axis, `[B]`.

    ``-(x_next - mean)^2 / (2 std^2) - ln std - ln(2 pi) / 2`` for each element. Published clip ranges assume the
    average; with ``sum`` they must be multiplied by the number of elements.

    >>> log_prob(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor(2.0))
    tensor([-1.8621])
    """
    z = (x_next.float() - mean) / std
    return _reduce(-0.5 * z.square() - torch.log(std) - 0.5 * math.log(2 * math.pi), reduction)


def kl(mean: Tensor, mean_reference: Tensor, std: Tensor, reduction: Reduction = "mean") -> Tensor:
    """KL divergence `[B]` of two transitions with the same std, ``(mean - mean_reference)^2 / (2 std^2)``.

    ``std`` is the transition's own; the released Flow-GRPO divides by its square without ``-dt``, which is 10 to 100
    times less, so its betas do not carry over.

    >>> kl(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor(2.0))
    tensor([0.2500])
    """
    return _reduce(0.5 * ((mean - mean_reference) / std).square(), reduction)


def noised(x_0: Tensor, eps: Tensor, sigma: Tensor, prediction: Prediction = "flow") -> Tensor:
    """The forward process, ``a x_0 + sigma eps``: ``a`` is ``1 - sigma`` for flow models, else ``sqrt(1 - sigma^2)``.

    Args:
        x_0: `[B, ...]` clean latents.
        eps: `[B, ...]` standard normal noise.
        sigma: noise share in [0, 1], in a shape that broadcasts over ``x_0``.
        prediction: what the model predicts.

    >>> noised(torch.ones(1), torch.zeros(1), torch.tensor(0.6)), noised(*torch.eye(2), torch.tensor(0.6), "epsilon")
    (tensor([0.4000]), tensor([0.8000, 0.6000]))
    """
    return _signal(sigma, prediction) * x_0 + sigma * eps


def clean(x_t: Tensor, model_output: Tensor, sigma: Tensor, prediction: Prediction = "flow") -> Tensor:
    """The clean latents ``x_0`` that a model's output stands for; linear in the output.

    ``x_t - sigma v`` for flow models, ``(x_t - sigma eps) / a`` and ``a x_t - sigma v`` with ``a = sqrt(1 - sigma^2)``
    for DDPM-type models.

    >>> clean(torch.tensor([1.4]), torch.tensor([1.0]), torch.tensor(0.6), "epsilon")
    tensor([1.0000])
    """
    if prediction == "sample":
        return model_output
    if prediction == "epsilon":
        return (x_t - sigma * model_output) / _signal(sigma, prediction)
    return (1.0 if prediction == "flow" else _signal(sigma, prediction)) * x_t - sigma * model_output


def _signal(sigma: Tensor, prediction: Prediction) -> Tensor:
    return 1 - sigma if prediction == "flow" else (1 - sigma.square()).sqrt()


def _reduce(values: Tensor, reduction: Reduction) -> Tensor:
    if reduction not in ("mean", "sum"):
        raise UserError(f"reduction is {reduction!r}; wanted 'mean' or 'sum'.")
    rows = values.flatten(1)
    return rows.mean(dim=1) if reduction == "mean" else rows.sum(dim=1)


def _marginal_preserving(place: FlowPlace, s: float) -> tuple[float, float, float]:
    """``(c_x, c_v, std)`` of ``x + [v + s^2 / (2 sigma) (x + (1 - sigma) v)] dt + s sqrt(-dt) z``."""
    dt = place.sigma_next - place.sigma
    pull = s * s / (2 * place.sigma)
    return 1 + pull * dt, (1 + pull * (1 - place.sigma)) * dt, s * math.sqrt(-dt)


def _stock_step(x: Tensor, model_output: Tensor, place: Place) -> Tensor:
    """The step of diffusers, in the dtypes in which it is taken there: not a limit of the formulas, but equal."""
    if isinstance(place, ConsistencyPlace):
        return _consistency(x, model_output, place, 0.0).float()
    if isinstance(place, DDPMPlace):
        return _ddim(x, model_output, place, torch.tensor(0.0)).float()
    # A 0-dim tensor, unlike a Python number, is rounded to the dtype of a bfloat16 output before the product.
    dt = torch.tensor(place.sigma_next - place.sigma, device=x.device)
    return x.float() + dt * model_output


def _ddim_std(place: DDPMPlace, eta: float) -> float:
    a, a_next = torch.tensor(place.alpha_cumprod), torch.tensor(place.alpha_cumprod_next)
    return float(eta * ((1 - a_next) / (1 - a) * (1 - a / a_next)) ** 0.5)


def _ddim(x: Tensor, model_output: Tensor, place: DDPMPlace, std: Tensor) -> Tensor:
    a_next = torch.tensor(place.alpha_cumprod_next)
    x_0, eps = _predicted(x, model_output, place)
    return a_next**0.5 * x_0 + (1 - a_next - std**2) ** 0.5 * eps


def _consistency(x: Tensor, model_output: Tensor, place: ConsistencyPlace, noise_level: float) -> Tensor:
    a_next = torch.tensor(place.alpha_cumprod_next)
    x_0, eps = _predicted(x, model_output, place)
    jump = place.c_out * x_0 + place.c_skip * x
    return a_next**0.5 * jump + ((1 - noise_level**2) * (1 - a_next)) ** 0.5 * eps


def _predicted(x: Tensor, model_output: Tensor, place: DDPMPlace) -> tuple[Tensor, Tensor]:
    """The predicted x_0 and eps.

    The operations, their order and their float32 scalars are those of diffusers' DDIMScheduler: eta 0 is bit-equal.
    """
    a = torch.tensor(place.alpha_cumprod)
    b = 1 - a
    if place.prediction_type == "epsilon":
        x_0, eps = (x - b**0.5 * model_output) / a**0.5, model_output
    elif place.prediction_type == "v_prediction":
        x_0, eps = a**0.5 * x - b**0.5 * model_output, a**0.5 * model_output + b**0.5 * x
    elif place.prediction_type == "sample":
        x_0, eps = model_output, (x - a**0.5 * model_output) / b**0.5
    else:
        known = "epsilon, v_prediction, sample"
        raise UserError(f"the scheduler's prediction_type is {place.prediction_type!r}; known: {known}.")
    if place.clip_range is not None:
        x_0 = x_0.clamp(-place.clip_range, place.clip_range)
    return x_0, eps
