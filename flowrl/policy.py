"""A diffusers pipeline as a stochastic policy.

    policy = Policy(pipe, kernel=kernels.flow_sde(0.7))
    rollout = policy.rollout(["a red circle"] * 4, seeds=[0, 1, 2, 3], steps=10)
    replay = policy.replay(rollout, step=3)      # mean, std, log_prob with gradients
    velocity = policy.predict(rollout, x_t, sigma)

The pipeline's own code runs each time, from the same seeds, with another scheduler in it (`flowrl.scheduler`) and its
frozen parts answered from memory (`flowrl.memo`). So guidance, conditions and masks in a replay cannot differ from
those of the rollout, and before an update the replayed log-probability equals the recorded one exactly, for the same
micro-batch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import memo
from .adapters import (
    LoRA,
    WeightCopy,
    adapters_off,
    add_lora,
    export_lora,
    export_whole,
    take_lora,
    train_whole,
    trainable_parameters,
)
from .calls import (
    as_pictures,
    attention_processors,
    check_no_momentum,
    check_one_each,
    denoisers_of,
    for_each_prompt,
    quiet,
    single,
)
from .errors import UserError
from .kernels import Kernel, Prediction, Reduction
from .memo import Memo, Memory
from .scheduler import FlowPolicyScheduler, policy_scheduler
from .session import Done, Finishing, Probing, Recording, Replaying, Session, Steps
from .trajectory import Rollout, own, spread

DEFAULT_LORA = LoRA()


@dataclass(frozen=True)
class Replay:
    """A recorded transition under the current weights.

    Attributes:
        log_prob: `[B]` of the recorded ``x_next``, with gradients.
        mean: `[B, ...]` float32, with gradients.
        std: 0-dim.
        model_output: `[B, ...]`, after guidance.
    """

    log_prob: Tensor
    mean: Tensor
    std: Tensor
    model_output: Tensor

    def spread(self, rows: int) -> Replay:
        """The same for ``rows`` samples that share the transitions of fewer, side by side."""
        log_prob, mean = spread(self.log_prob, rows), spread(self.mean, rows)
        return Replay(log_prob, mean, self.std, spread(self.model_output, rows))


class Policy:
    """A pipeline whose sampling can be recorded, replayed and differentiated.

    Attributes:
        pipe: the pipeline; outside the calls of the policy it is as it was, but for the adapters.
        modules: the components that are trained, by name.
        parameters: their trainable parameters, float32, by name.
        denoiser_calls: samples that the denoiser has processed so far, counting guidance's second pass.
    """

    def __init__(
        self,
        pipe: Any,
        *,
        kernel: Kernel,
        trainable: Sequence[str] | None = None,
        lora: LoRA | None = DEFAULT_LORA,
        reduction: Reduction = "mean",
        full: bool = False,
    ) -> None:
        """Make a pipeline a policy.

        Args:
            pipe: a diffusers pipeline.
            kernel: how a step of the rollout is randomised.
            trainable: component names; None takes the pipeline's denoisers.
            lora: the adapter to add; None trains the one that is there.
            reduction: of log-probabilities, ``"mean"`` or ``"sum"`` over a sample's elements.
            full: train all weights instead of an adapter; a copy of the base, for `reference`, stays on the CPU.

        Raises:
            UserError: no such component, no policy for its scheduler, a kernel that does not suit it, or no adapter.
        """
        self.pipe, self.kernel, self.reduction = pipe, kernel, reduction
        if getattr(pipe, "scheduler", None) is None:
            raise UserError(f"{type(pipe).__name__} has no scheduler: it samples nothing, and cannot be a policy.")
        self._scheduler = policy_scheduler(pipe.scheduler)
        kernel.check_suits(self._scheduler.kind)
        check_no_momentum(pipe)
        self.modules = denoisers_of(pipe, trainable)
        for name, part in pipe.components.items():
            if isinstance(part, nn.Module):
                part.eval()
                checkpoints = getattr(part, "_supports_gradient_checkpointing", False)
                if checkpoints and not hasattr(part, "gradient_checkpointing"):
                    vars(part)["gradient_checkpointing"] = False  # Z-Image's control net reads it and does not set it
                if name not in self.modules:
                    part.requires_grad_(False)
        for module in self.modules.values():
            if full:
                train_whole(module)
            elif lora is None:
                take_lora(module)
            else:
                add_lora(module, lora)
        self.parameters = trainable_parameters(self.modules)
        self._base = WeightCopy(self.parameters, "cpu") if full else None
        self.denoiser_calls = 0
        self._session: Session | None = None
        self._batch_doubled = False
        self._memo = Memo()
        self._processors: list[tuple[Any, Any]] = []
        self._arguments = inspect.signature(type(pipe).__call__).parameters

    @property
    def device(self) -> torch.device:
        """Where the policy's parameters are."""
        return next(iter(self.parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the base model; adapters, and weights that are trained themselves, are float32."""
        module = next(iter(self.modules.values()))
        frozen = (p.dtype for p in module.parameters() if not p.requires_grad)
        return next((dtype for dtype in frozen if dtype.is_floating_point), torch.float32)

    @property
    def prediction(self) -> Prediction:
        """What the model's output is."""
        if isinstance(self._scheduler, FlowPolicyScheduler):
            return "flow"
        kind: Prediction = self._scheduler.config.prediction_type
        return kind

    @property
    def takes_sigma_per_sample(self) -> bool:
        """Whether `predict` takes a level for each sample of the last rollout: not if guidance doubles its batch."""
        return not self._batch_doubled

    @property
    def walking(self) -> bool:
        """Whether a model call right now is answered with zeros, on the way to the step of a replay."""
        return self._session is not None and self._session.begun and self._session.walking

    @torch.no_grad()
    def rollout(
        self,
        prompts: Sequence[str],
        *,
        seeds: Sequence[int],
        steps: int,
        guidance_scale: float | None = None,
        train_steps: Steps = "all",
        noise_steps: Steps = "all",
        keep_steps: Collection[int] = (),
        latent_seeds: Sequence[int] | None = None,
        **call: Any,
    ) -> Rollout:
        """Sample a micro-batch and record its transitions.

        Args:
            prompts: B prompts.
            seeds: B seeds of the samples' noise.
            steps: length of the schedule.
            guidance_scale: the pipeline's; None leaves it at the pipeline's default.
            train_steps: steps to record; ``"all"`` records every step that can be trained, none for ``()``. A function
                chooses them when the schedule is known, see `flowrl.selection`.
            noise_steps: steps that are stochastic, in the same forms; ``()`` samples the ODE.
            keep_steps: further steps whose latents are kept, for `finish`.
            latent_seeds: B seeds of the initial noise; by default ``seeds``. Equal ones share the initial noise.
            call: further arguments of the pipeline, such as ``height`` or ``negative_prompt``.

        Raises:
            UserError: lengths disagree, a step is outside the schedule, or a step to be trained is deterministic.
        """
        initial = list(seeds if latent_seeds is None else latent_seeds)
        if not len(prompts) == len(seeds) == len(initial):
            raise UserError(f"{len(prompts)} prompts came with {len(seeds)} seeds and {len(initial)} latent_seeds.")
        session = Recording(
            self.kernel,
            SeededNoise(seeds),
            train_steps=train_steps,
            noise_steps=noise_steps,
            keep_steps=keep_steps,
            reduction=self.reduction,
        )
        return self.record(
            session, prompts, latent_seeds=initial, steps=steps, guidance_scale=guidance_scale, call=call
        )

    @torch.no_grad()
    def record(
        self,
        session: Recording,
        prompts: Sequence[str],
        *,
        latent_seeds: Sequence[int],
        steps: int,
        guidance_scale: float | None = None,
        call: Mapping[str, Any],
        stem: Rollout | None = None,
    ) -> Rollout:
        """Run the pipeline for a recording of one's own; `rollout` has the arguments that are not named here.

        Args:
            session: what records; it may end the run before there are pictures.
            prompts: B prompts.
            latent_seeds: B seeds of the initial noise.
            steps: length of the schedule.
            guidance_scale: the pipeline's.
            call: further arguments of the pipeline.
            stem: what the samples shared until now, with their number of samples or a divisor of it.
        """
        arguments = self._call(prompts, steps, guidance_scale, call)
        memory = Memory(self._memo)
        if stem is not None:
            memory = Memory(self._memo, stem.memory, len(prompts) // len(stem))
        images = self._run(arguments, session, memory, latent_seeds)
        self._batch_doubled = bool(getattr(self.pipe, "do_classifier_free_guidance", self._scheduler.copies > 1))
        if session.last is None or session.start is None:
            raise UserError(f"{type(self.pipe).__name__} never called its scheduler; it cannot be a policy.")
        return Rollout(
            images=torch.empty(0) if images is None else as_pictures(images, len(prompts)),
            latents=own(session.last),
            transitions=session.transitions,
            arrivals=session.arrivals,
            arrivals_beside=session.arrivals_beside,
            start=session.start,
            places=self._scheduler.places,
            stds=session.stds,
            prompts=list(prompts),
            latent_seeds=list(latent_seeds),
            call=arguments,
            memory=memory,
        )

    def replay(self, rollout: Rollout, step: int) -> Replay:
        """Evaluate a recorded transition under the current weights, with gradients.

        Args:
            rollout: a micro-batch, whole: float results depend on the composition of a batch.
            step: absolute index of a recorded step.

        Raises:
            UserError: the step was not recorded.
        """
        if step not in rollout.transitions:
            recorded = sorted(rollout.transitions)
            raise UserError(f"step {step} was not recorded; the rollout holds {recorded or 'no steps'}.")
        stem = rollout.stem(step)
        if stem is not None:
            return self.replay(stem, step).spread(len(rollout))
        transition = rollout.transitions[step]
        beside = rollout.arrivals_beside.get(step)
        session = Replaying(self.kernel, transition, rollout.arrivals.get(step), self.reduction, beside)
        self._again(rollout, session)
        if session.model_output is None:
            raise UserError(f"{type(self.pipe).__name__} did not run step {step} when asked to replay it.")
        return Replay(session.log_prob, session.mean, session.std, session.model_output)

    def predict(self, rollout: Rollout, x_t: Tensor, sigma: float | Tensor) -> Tensor:
        """Model output `[B, ...]` at any ``(x_t, sigma)``, under the rollout's conditions, with gradients.

        Args:
            rollout: a micro-batch; its prompts, guidance and other arguments are used.
            x_t: `[B, ...]` noised latents, like ``rollout.latents``.
            sigma: noise level in (0, 1]; `[B]` for one a sample, where the pipeline runs without guidance.
        """
        levels = torch.as_tensor(sigma, dtype=torch.float32, device=x_t.device)
        session = Probing(self._scheduler.timestep_at(levels), x_t.to(rollout.latents.dtype), levels)
        self._again(rollout, session)
        if session.model_output is None:
            raise UserError(
                f"{type(self.pipe).__name__} did not run the step that it was asked to predict; the rollout must have "
                "at least one step."
            )
        return session.model_output

    def finish(self, rollout: Rollout, step: int, *, jump: bool = False) -> Tensor:
        """Pictures, with gradients through the steps from ``step`` to the last and the decoder.

        The steps take no noise, whatever the kernel: after a rollout whose last steps were deterministic too, these are
        its own pictures.

        Args:
            rollout: a micro-batch, whole.
            step: absolute index of a recorded step, or of one that was kept.
            jump: go to the clean latents that the model predicts at that step, without the steps after it.

        Raises:
            UserError: the step was neither recorded nor kept.
        """
        known = sorted({rollout.start, *rollout.arrivals})
        if step not in known:
            raise UserError(f"step {step} was not kept; the rollout holds {known}.")
        session = Finishing(self.kernel, step, rollout.arrivals.get(step), rollout.arrivals_beside.get(step), jump)
        return as_pictures(self._again(rollout, session), len(rollout))

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[str],
        *,
        seeds: Sequence[int],
        steps: int,
        guidance_scale: float | None = None,
        **call: Any,
    ) -> Tensor:
        """Pictures `[B, 3, H, W]` in [0, 1] by the pipeline's stock sampler, which no training setting touches."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        arguments = self._call(prompts, steps, guidance_scale, call)
        self._restore_processors()
        stock = self.pipe.scheduler
        try:
            self.pipe.scheduler = copy.deepcopy(stock)  # a scheduler keeps the state of its last call
            with quiet(self.pipe), memo.exchanged(self.pipe, self._remembered(Memory(self._memo))):
                generator = single(generators, torch.Generator)
                images = self._call_pipe(**arguments, generator=generator, output_type="pt")
        finally:
            self.pipe.scheduler = stock
        return as_pictures(images, len(prompts))

    def reference(self) -> AbstractContextManager[None]:
        """The base model inside the block: adapters off, or its weights put in; everything restored afterwards."""
        return adapters_off(self.modules) if self._base is None else self._base.active()

    def remember_in(self, memory: Memo) -> None:
        """Remember what frozen parts return in another memory; what was remembered so far is forgotten."""
        self._memo = memory

    def save_lora(self, folder: str | Path) -> Path:
        """Write the adapter for ``load_lora_weights``, its scale included."""
        return export_lora(self.modules, Path(folder))

    def save(self, folder: str | Path) -> Path:
        """Write what was trained: the adapter, or whole denoisers for their classes' ``from_pretrained``."""
        return self.save_lora(folder) if self._base is None else export_whole(self.modules, Path(folder))

    def _call(
        self, prompts: Sequence[str], steps: int, guidance_scale: float | None, call: Mapping[str, Any]
    ) -> dict[str, Any]:
        check_one_each(call)
        arguments = {**for_each_prompt(call, len(prompts)), "num_inference_steps": steps, "return_dict": False}
        if "prompt" in self._arguments and "prompt" not in call and call.get("prompt_embeds") is None:
            arguments["prompt"] = list(prompts)
        if guidance_scale is not None:
            arguments["guidance_scale"] = guidance_scale
        if len(prompts) == 1:  # a few pipelines take one sample only, and then no lists
            arguments = {name: single(value, str) for name, value in arguments.items()}
        unknown = sorted(set(arguments) - set(self._arguments))
        if unknown:
            raise UserError(f"{type(self.pipe).__name__} takes no argument {', '.join(unknown)}.")
        return arguments

    def _again(self, rollout: Rollout, session: Session) -> Any:
        """The rollout's pipeline call once more, as far as the session wants it."""
        return self._run(rollout.call, session, rollout.memory, rollout.latent_seeds)

    def _run(self, arguments: Mapping[str, Any], session: Session, memory: Memory, seeds: Sequence[int]) -> Any:
        """The pipeline with the policy scheduler in it, its frozen parts answered from memory; None if cut short."""
        self._restore_processors()
        stock, self._scheduler.session, self._session = self.pipe.scheduler, session, session
        self._scheduler.batch = len(seeds)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        denoisers = {f"{name}.forward": self._denoiser(name, memory) for name in self.modules}
        processors = attention_processors(self.modules)
        try:
            self.pipe.scheduler = self._scheduler
            # Noise that a pipeline draws without a generator must be that of the rollout too.
            with (
                quiet(self.pipe),
                memo.exchanged(self.pipe, {**self._remembered(memory), **denoisers}),
                torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
                suppress(Done),
            ):
                torch.manual_seed(seeds[0])
                generator = single(generators, torch.Generator)
                return self._call_pipe(**arguments, generator=generator, output_type="pt")
        except AttributeError as error:
            if type(self._scheduler).__name__ not in str(error):
                raise
            raise UserError(
                f"{type(self.pipe).__name__} asks its {type(stock).__name__} for something that a policy's scheduler "
                f"does not have ({error}); it cannot be a policy."
            ) from error
        finally:
            self.pipe.scheduler, self._session = stock, None
            self._processors = [(part, kept) for part, kept in processors if part.processor is not kept]

    def _restore_processors(self) -> None:
        """Put back the attention processors that a pipeline exchanged (perturbed-attention guidance) when cut short.

        Not at once, but before the next call: gradient checkpointing still runs the exchanged ones in a backward pass.
        """
        for part, processor in self._processors:
            part.set_processor(processor)
        self._processors = []

    def _call_pipe(self, **arguments: Any) -> Any:
        # The undecorated function: diffusers wraps __call__ in torch.no_grad().
        output = inspect.unwrap(type(self.pipe).__call__)(self.pipe, **arguments)
        return output[0] if isinstance(output, tuple) else output

    def _remembered(self, memory: Memory) -> dict[str, Any]:
        frozen = memo.frozen_callables(self.pipe, list(self.modules))
        return {path: memory.recall(path, function, lambda: self.walking) for path, function in frozen.items()}

    def _denoiser(self, name: str, memory: Memory) -> Callable[..., Any]:
        """A denoiser's forward pass that counts samples, and answers with zeros while the session walks."""
        forward = self.modules[name].forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            first = next(iter((*args, *kwargs.values())), None)
            latents = kwargs.get("hidden_states", kwargs.get("sample", first))
            self.denoiser_calls += 1 if latents is None else len(latents)
            return forward(*args, **kwargs)

        walked = memory.walked(name, counted, lambda: self.walking)

        def called(*args: Any, **kwargs: Any) -> Any:
            # Before there is a schedule, a denoiser that is called reads a condition, which belongs to no step.
            begun = self._session is None or self._session.begun
            return (walked if begun else counted)(*args, **kwargs)

        return called


class SeededNoise:
    """Standard normal noise for a micro-batch, each sample from its own generator.

    Drawn on the CPU in float32, so that a sample's noise depends on its seed alone: not on the device, the dtype, or
    its neighbours in the batch.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        """Start one stream a sample; the streams differ from those of ``torch.Generator().manual_seed(seed)``."""
        self._generators = [torch.Generator().manual_seed((seed ^ 0x5DEECE66D) % 2**63) for seed in seeds]

    def __call__(self, like: Tensor) -> Tensor:
        """Draw noise shaped like a `[B, ...]` tensor, float32 on its device."""
        if len(like) != len(self._generators):
            raise UserError(f"the pipeline samples {len(like)} latents for {len(self._generators)} seeds.")
        rows = [torch.randn(like.shape[1:], generator=generator) for generator in self._generators]
        return torch.stack(rows).to(like.device)
