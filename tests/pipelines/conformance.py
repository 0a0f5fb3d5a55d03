"""What every pipeline class must keep as a policy: seven checks, each a function of a `Case`.

`test_conformance.py` runs them over all cases. A check raises an `AssertionError`, or returns normally.
"""

from __future__ import annotations

import functools
import inspect
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import (
    CogVideoXDDIMScheduler,
    DDIMScheduler,
    DDPMWuerstchenScheduler,
    FlowMatchEulerDiscreteScheduler,
    LCMScheduler,
    SCMScheduler,
)
from diffusers.utils import logging as diffusers_logging
from torch import Tensor, nn

from flowrl import kernels
from flowrl.adapters import LoRA
from flowrl.calls import DENOISERS, as_pictures
from flowrl.fitting import checkpoint_blocks
from flowrl.memo import exchanged
from flowrl.policy import Policy
from flowrl.trajectory import Rollout

from .cases import CASES, Case

PROMPTS = ("a red circle", "two blue squares")
SEEDS = (10, 11)


def policy(case: Case, *, noise: bool = True, spread: float = 0.1) -> Policy:
    """The case's pipeline as a policy, with a LoRA whose alpha is not its rank and whose B has a spread."""
    kernel = kernels.KERNELS[case.kernel]()
    made = Policy(
        case.build(),
        kernel=kernel if noise else kernel.deterministic(),
        trainable=case.trainable,
        lora=LoRA(rank=4, alpha=12.0, targets=case.targets),
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.parameters.items():
            if "lora_B" in name:
                parameter.normal_(0, spread, generator=generator)
    return made


def arguments(case: Case, guidance: str) -> dict[str, Any]:
    """The arguments of a rollout and of the stock pipeline's call."""
    return {**case.call(case.samples), **case.guidance[guidance]}


def guidances(case: Case) -> list[str]:
    """The names of the case's guidance settings."""
    return list(case.guidance)


@functools.lru_cache(maxsize=1)
def shared_policy(name: str) -> Policy:
    """A policy that the checks of one case have in common."""
    return policy(CASES[name])


@functools.lru_cache(maxsize=4)
def shared_rollout(name: str, guidance: str) -> Rollout:
    """A rollout of the shared policy that records every step that has noise."""
    made, case = shared_policy(name), CASES[name]
    call = {"seeds": SEEDS[: case.samples], "steps": case.steps, **arguments(case, guidance)}
    return made.rollout(PROMPTS[: case.samples], **call)


def chosen_steps(rollout: Rollout) -> list[int]:
    """The first, a middle and the last recorded step."""
    steps = sorted(rollout.transitions)
    assert len(steps) >= 2, f"only the steps {steps} have noise"
    return sorted({steps[0], steps[len(steps) // 2], steps[-1]})


class EulerSteps:
    """What a flow solver is converted to, written down without flowrl: Euler steps on the solver's own sigmas."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True, **_: Any) -> Any:
        """``x + (sigma_next - sigma) v``."""
        if self.step_index is None:
            self._init_step_index(timestep)
        dt = self.sigmas[self.step_index + 1] - self.sigmas[self.step_index]
        after = (sample.float() + dt * model_output).to(model_output.dtype)
        self._step_index += 1
        return (after,) if not return_dict else type("Output", (), {"prev_sample": after})()


class OldNoise(LCMScheduler):
    """What stands for LCM's sampler without noise, written down without flowrl: the noise that ``x`` has is kept."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True, **_: Any) -> Any:
        """``sqrt(A') f + sqrt(1 - A') eps``; LCM itself takes the last step, and says what ``f`` is."""
        after, jump = super().step(model_output, timestep, sample, return_dict=False)
        if self.step_index < len(self.timesteps):
            assert self.config.prediction_type == "epsilon"
            a = self.alphas_cumprod[self.timesteps[self.step_index]]
            after = a.sqrt() * jump + (1 - a).sqrt() * model_output
        return (after, jump)


class OldNoiseOfTrigFlow(SCMScheduler):
    """The same for SCM, whose time is an angle."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True, **_: Any) -> Any:
        """``cos(t') f + sin(t') z``; SCM itself says what ``f`` is."""
        _, jump = super().step(model_output, timestep, sample, return_dict=False)
        now, after = self.timesteps[self.step_index - 1], self.timesteps[self.step_index]
        z = now.sin() * sample + now.cos() * model_output
        return (after.cos() * jump + after.sin() * z, jump)


class DDIMOfRatios(DDPMWuerstchenScheduler):
    """DDIM's step, written down without flowrl, on Wuerstchen's signal shares; the last step ends on the data."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, return_dict: bool = True, **_: Any) -> Any:
        """``sqrt(A') x_0 + sqrt(1 - A') eps``."""
        later = self.previous_timestep(timestep)
        a, a_next = (self._alpha_cumprod(time[:1], sample.device) for time in (timestep, later))
        a_next = torch.where(later[:1] == 0, torch.ones_like(a_next), a_next)
        x_0 = (sample - (1 - a) ** 0.5 * model_output) / a**0.5
        after = a_next**0.5 * x_0 + (1 - a_next) ** 0.5 * model_output
        return (after,) if not return_dict else type("Output", (), {"prev_sample": after})()


STAND_INS = {
    LCMScheduler: OldNoise,
    SCMScheduler: OldNoiseOfTrigFlow,
    DDPMWuerstchenScheduler: DDIMOfRatios,
}


def documented_scheduler(stock: Any) -> tuple[Any, bool]:
    """What `flowrl.scheduler.policy_scheduler` documents for noise 0, and whether it holds bit for bit."""
    name, config = type(stock).__name__, stock.config
    if isinstance(stock, (FlowMatchEulerDiscreteScheduler, DDIMScheduler)):
        return stock, config.get("sigma_max", 1) <= 1  # sigmas above 1 are converted to a flow's, and back
    if config.get("use_flow_sigmas", False):
        made = type("Euler" + name, (EulerSteps, type(stock)), {})
        return made.from_config(config), True
    if name.startswith("FlowMap") or config.get("timestep_type") == "continuous":
        return stock, False  # the one computes in float64, the other (EDM's) is converted to a flow, and back
    for own, stand_in in STAND_INS.items():
        if isinstance(stock, own):
            return stand_in.from_config(config), own is LCMScheduler  # of the others the operations are not the same
    kind = CogVideoXDDIMScheduler if name.startswith("CogVideoX") else DDIMScheduler
    known = inspect.signature(kind).parameters
    settings = {key: value for key, value in config.items() if key in known}
    # CogVideoX writes the same formula in other operations.
    made = kind(**{"clip_sample": False, **settings})
    made.register_to_config(variance_type="fixed_small")  # read by pipelines whose model may predict a variance
    return made, kind is DDIMScheduler


def stock_pictures(case: Case, pipe: Any, guidance: str) -> Tensor:
    """What a pipeline draws when nobody has made a policy of it."""
    pipe.set_progress_bar_config(disable=True)
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.eval()
            part.requires_grad_(False)  # oneDNN has another convolution, 1e-7 off, for weights that ask for gradients
    call = {**arguments(case, guidance), "num_inference_steps": case.steps, "output_type": "pt", "return_dict": False}
    takes_prompt = "prompt" in inspect.signature(type(pipe).__call__).parameters
    if takes_prompt and "prompt" not in call and call.get("prompt_embeds") is None:
        call["prompt"] = list(PROMPTS[: case.samples]) if case.samples > 1 else PROMPTS[0]
    generators = [torch.Generator().manual_seed(seed) for seed in SEEDS[: case.samples]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS[0])
        output = pipe(**call, generator=generators if case.samples > 1 else generators[0])
        return as_pictures(output[0] if isinstance(output, tuple) else output, case.samples)


def noise_zero_is_the_stock_pipeline(case: Case) -> None:
    """Without noise, a rollout draws what the pipeline draws with its own (or the documented) scheduler."""
    made = policy(case, noise=False, spread=0.0)
    for guidance in guidances(case):
        pipe = case.build()
        pipe.scheduler, exact = documented_scheduler(pipe.scheduler)
        wanted = stock_pictures(case, pipe, guidance)
        call = {"seeds": SEEDS[: case.samples], "steps": case.steps, **arguments(case, guidance)}
        rollout = made.rollout(PROMPTS[: case.samples], train_steps=(), **call)
        assert rollout.images.dtype == torch.float32
        assert len(rollout.images) == case.samples
        assert rollout.images.isfinite().all(), "the pictures are not finite: the tiny model says nothing"
        torch.testing.assert_close(rollout.images, wanted, rtol=0, atol=0 if exact else 1e-5)


def replay_is_exact(case: Case) -> None:
    """Replayed log-probabilities equal the recorded ones exactly, and the weights matter to them."""
    made = shared_policy(case.name)
    for guidance in guidances(case):
        rollout = shared_rollout(case.name, guidance)
        for step in chosen_steps(rollout):
            with torch.no_grad():
                replay = made.replay(rollout, step)
            recorded = rollout.transitions[step].log_prob
            assert recorded.isfinite().all()
            assert torch.equal(replay.log_prob, recorded), f"{guidance}, step {step}: {replay.log_prob} {recorded}"
        with torch.no_grad(), made.reference():
            other = made.replay(rollout, step).log_prob
        assert not torch.equal(other, recorded), f"{guidance}: the adapter makes no difference at step {step}"


def gradients_reach_every_adapter(case: Case) -> None:
    """Each LoRA tensor gets a gradient from some step, and gradient checkpointing gives the same ones."""
    made = shared_policy(case.name)
    rollout = shared_rollout(case.name, guidances(case)[-1])
    plain = _gradients(made, rollout)
    silent = [name for name, gradient in plain.items() if not gradient.abs().max() > 0]
    assert not silent, f"no gradient in {silent}"
    undo = [checkpoint_blocks(module) for module in made.modules.values()]
    try:
        again = _gradients(made, rollout)
    finally:
        for restore in undo:
            restore()
    scale = max(float(gradient.abs().max()) for gradient in plain.values())
    for name, gradient in plain.items():
        torch.testing.assert_close(
            again[name], gradient, rtol=1e-3, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def _gradients(made: Policy, rollout: Rollout) -> dict[str, Tensor]:
    """Gradients of the log-probabilities of a few steps, added up; of several experts each has steps of its own."""
    steps = chosen_steps(rollout)
    for parameter in made.parameters.values():
        parameter.grad = None
    for step in steps:
        made.replay(rollout, step).log_prob.sum().backward()
    gradients = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in made.parameters.items()
    }
    for parameter in made.parameters.values():
        parameter.grad = None
    return gradients


def predict_is_the_denoiser(case: Case) -> None:
    """`Policy.predict` gives what the denoiser gives: at a recorded place, that of the replay; a level a sample too."""
    made, guidance = shared_policy(case.name), guidances(case)[0]
    rollout = shared_rollout(case.name, guidance)
    step = chosen_steps(rollout)[1]
    transition = rollout.transitions[step]
    outputs: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _m, _a, output: outputs.append(_first_tensor(output)))
        for module in made.modules.values()
    ]
    try:
        with torch.no_grad():
            predicted = made.predict(rollout, rollout.arrivals.get(step, transition.x), transition.place.sigma)
    finally:
        for hook in hooks:
            hook.remove()
    with torch.no_grad():
        wanted = made.replay(rollout, step).model_output
    torch.testing.assert_close(predicted, wanted, rtol=1e-4, atol=1e-5)
    if guidance == "off" and outputs[-1].numel() == predicted.numel():
        # The pipeline may unpack the output and change its sign, but without guidance it computes nothing with it.
        bare, ours = outputs[-1].flatten().abs().sort().values, predicted.flatten().abs().sort().values
        torch.testing.assert_close(ours, bare, rtol=1e-4, atol=1e-5)


def _first_tensor(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def last_step_is_differentiable(case: Case) -> None:
    """The gradient of the pictures reaches the LoRA through the last step and the decoder."""
    made, guidance = shared_policy(case.name), guidances(case)[-1]
    call = {"steps": case.steps, "seeds": SEEDS[: case.samples], **arguments(case, guidance)}
    last = len(shared_rollout(case.name, guidance).places) - 1
    rollout = made.rollout(PROMPTS[: case.samples], train_steps=(), noise_steps=(), keep_steps=[last], **call)
    pictures = made.finish(rollout, last)
    torch.testing.assert_close(pictures.detach(), rollout.images, rtol=0, atol=1e-5)
    pictures.square().mean().backward()
    gradients = [parameter.grad for parameter in made.parameters.values() if parameter.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0
    for parameter in made.parameters.values():
        parameter.grad = None


def lora_travels(case: Case) -> None:
    """Saved and loaded with ``load_lora_weights`` into a fresh pipeline, the LoRA draws the same, without a warning."""
    made, guidance = shared_policy(case.name), guidances(case)[-1]
    call = {"steps": case.steps, "seeds": SEEDS[: case.samples], **arguments(case, guidance)}
    ours = made.rollout(PROMPTS[: case.samples], train_steps=(), noise_steps=(), **call).images
    fresh = case.build()
    fresh.scheduler, _ = documented_scheduler(fresh.scheduler)
    with tempfile.TemporaryDirectory() as folder, _warnings() as said:
        made.save_lora(folder)
        fresh.load_lora_weights(folder)
    # Its own word for an adapter of the denoiser alone: "safe to ignore if LoRA state dict didn't originally have any".
    said = [line for line in said if not line.startswith("No LoRA keys associated to")]
    assert not said, f"the loader said: {said}"
    torch.testing.assert_close(stock_pictures(case, fresh, guidance), ours, rtol=0, atol=1e-5)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = diffusers_logging.get_logger("diffusers")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def training_calls_no_encoder(case: Case) -> None:
    """A replay of every step runs no text encoder, no image encoder and no VAE encoder, but it runs the denoiser."""
    made, guidance = shared_policy(case.name), guidances(case)[-1]
    rollout = shared_rollout(case.name, guidance)
    calls: Counter[str] = Counter()
    counters = {
        f"{name}.{method}": _counting(getattr(part, method), calls, f"{name}.{method}")
        for name, part in made.pipe.components.items()
        if isinstance(part, nn.Module) and name not in made.modules and not _of_each_step(name)
        for method in ("forward", "encode")
        if hasattr(part, method)
    }
    before = made.denoiser_calls
    with exchanged(made.pipe, counters), torch.no_grad():
        for step in rollout.transitions:
            made.replay(rollout, step)
    assert not calls, f"calls in training: {dict(calls)}"
    assert made.denoiser_calls - before >= case.samples * len(rollout.transitions)


def _of_each_step(name: str) -> bool:
    """Whether a component sees the latents of every step: a control net, or a denoiser that is not trained."""
    return name.startswith("controlnet") or name.rstrip("_0123456789").endswith(DENOISERS)


def _counting(function: Callable[..., Any], calls: Counter[str], name: str) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.update([name])
        return function(*args, **kwargs)

    return counted


CHECKS: dict[str, Callable[[Case], None]] = {
    "noise_zero": noise_zero_is_the_stock_pipeline,
    "exact_replay": replay_is_exact,
    "gradients": gradients_reach_every_adapter,
    "predict": predict_is_the_denoiser,
    "pictures": last_step_is_differentiable,
    "lora": lora_travels,
    "no_encoder": training_calls_no_encoder,
}
"""Every check by its short name, in the order of the table."""

CORE = ("noise_zero", "exact_replay", "gradients", "no_encoder")
"""A class that passes these is a policy; the others are kept by every class that a preset names."""


def results(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """For each class and check ``passed``, the reason for which it does not apply, or what went wrong."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        found[name] = {}
        for check, function in CHECKS.items():
            if check in CASES[name].skip:
                found[name][check] = CASES[name].skip[check]
                continue
            try:
                function(CASES[name])
                found[name][check] = "passed"
            except Exception as error:  # noqa: BLE001  (whatever goes wrong belongs into the table)
                found[name][check] = (
                    f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                )
    return found
