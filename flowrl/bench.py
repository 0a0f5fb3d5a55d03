"""What flowrl costs over the bare pipeline, and how fast a training step is: ``flowrl bench``.

Everything is measured on the run that a recipe describes, with its model, batch and precision:

==============  ========================================================================================
`rollout`       a rollout over a plain call of the pipeline, for the same prompts and seeds
`replay`        replay and backward over the bare denoiser's forward and backward, for the same inputs
`storage`       bytes that recorded transitions keep over the own size of what they must hold
`startup`       ``import flowrl`` beyond torch's own import; ``flowrl --help``
`throughput`    seconds and pictures a second of the phases of whole training steps; ``score`` is what the scores
                still took after the rollout
`overlap`       sampling and scoring of a step whose reward waits as long as the rollout takes, over the longer of both
==============  ========================================================================================
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor, nn

from .config import RunConfig, load_config
from .errors import UserError
from .files import write_json
from .plugins import nearest
from .policy import Policy
from .preflight import preflight
from .preset import resolve
from .reward import Reward, RewardBatch, RewardSet
from .run import environment
from .timing import Measure, Pair, measure_pairs, table
from .trainer import Trainer
from .trajectory import Rollout

RECIPE = "shapes_grpo.yaml"
"""The bundled recipe that is measured if none is given."""

PARTS = 16
"""Micro-batches of the step that `overlap` measures."""

IMPORT = "import time, torch; start = time.perf_counter(); import flowrl; print(time.perf_counter() - start)"


class Bench:
    """A run to measure; its model loads when it is first asked for.

    Attributes:
        config: the recipe.
        repeats: how often each quantity is measured, after a warm-up.
    """

    def __init__(self, config: RunConfig, repeats: int = 9) -> None:
        """Measure the run that ``config`` describes; nothing is written to its output folder."""
        self.config, self.repeats = resolve(config).config, repeats

    @cached_property
    def trainer(self) -> Trainer:
        """The run's trainer, before its first step."""
        return Trainer(self.config, self._checked, Accelerator())

    def trainer_of(self, config: RunConfig, rewards: RewardSet) -> Trainer:
        """A trainer of its own, with another config or other rewards."""
        return Trainer(config, replace(self._checked, rewards=rewards), Accelerator())

    @property
    def policy(self) -> Policy:
        """The run's policy."""
        return self.trainer.policy

    @property
    def call(self) -> dict[str, Any]:
        """What a rollout and a plain call of the pipeline have in common, but for prompts and seeds."""
        policy = self.config.policy
        names = ("guidance_scale", "height", "width")
        given = {name: value for name in names if (value := getattr(policy, name)) is not None}
        return {**policy.call, **given}

    def prompts(self, repetition: int) -> list[str]:
        """The prompts of a micro-batch: new ones, which no memory holds yet, as long as the run's list has such."""
        rows, size = self._checked.rows, self.config.micro_batch_size
        return [rows[(repetition * size + i) % len(rows)].prompt for i in range(size)]

    def rollout(self, repetition: int = 0) -> Rollout:
        """A micro-batch as the run would sample and record it."""
        policy = self.config.policy
        choose = partial(self._checked.selection.select, 0, 0)
        return self.policy.rollout(
            self.prompts(repetition),
            seeds=range(self.config.micro_batch_size),
            steps=policy.steps,
            train_steps=lambda schedule: choose(schedule).train,
            noise_steps=lambda schedule: choose(schedule).noise,
            **self.call,
        )

    def recorded(self) -> Rollout:
        """A rollout with transitions.

        Raises:
            UserError: the recipe's kernel draws no noise, so there are none.
        """
        rollout = self.rollout()
        if not rollout.transitions:
            raise UserError(
                f"kernel {self.config.policy.kernel!r} is deterministic in this recipe, so nothing is recorded that "
                "could be replayed; add policy.kernel=flow_sde policy.noise_level=0.7, or choose other measurements."
            )
        return rollout

    @cached_property
    def _checked(self) -> Any:
        return preflight(self.config)


def rollout_overhead(bench: Bench) -> list[Measure]:
    """A rollout over a plain call of the pipeline, LoRA and all; every pair has new prompts."""

    def plain(repetition: int) -> None:
        generators = [torch.Generator().manual_seed(seed) for seed in range(bench.config.micro_batch_size)]
        bench.policy.pipe(
            prompt=bench.prompts(repetition),
            num_inference_steps=bench.config.policy.steps,
            generator=generators,
            output_type="pt",
            **bench.call,
        )

    bench.policy.pipe.set_progress_bar_config(disable=True)
    pairs = measure_pairs(plain, bench.rollout, bench.repeats)
    return _overhead(pairs, "rollout", "plain call", bound=1.05)


def replay_overhead(bench: Bench) -> list[Measure]:
    """Replay, log-probability and backward over the denoiser alone, given the inputs that the pipeline gives it."""
    rollout = bench.recorded()
    step = sorted(rollout.transitions)[len(rollout.transitions) // 2]
    with torch.no_grad():
        calls = denoiser_calls(bench.policy, lambda: bench.policy.replay(rollout, step))

    def bare(_: int) -> None:
        torch.stack([module(*args, **kwargs)[0].mean() for module, args, kwargs in calls]).sum().backward()
        bench.trainer.optimizer.zero_grad()

    def replay(_: int) -> None:
        bench.policy.replay(rollout, step).log_prob.mean().backward()
        bench.trainer.optimizer.zero_grad()

    pairs = measure_pairs(bare, replay, 3 * bench.repeats)
    return _overhead(pairs, "replay", "bare denoiser", bound=1.10)


def storage(bench: Bench) -> list[Measure]:
    """Bytes that a recorded transition keeps alive, over the own size of what it must hold."""
    rollout = bench.recorded()
    kept, count = rollout.transition_bytes(), len(rollout.transitions)
    return [
        Measure.of([kept / own_bytes(rollout)], "storage", "bytes kept / own size", "x", bound=1.0),
        Measure.of([kept / count], "storage", "a transition keeps", "bytes"),
    ]


def startup(bench: Bench) -> list[Measure]:
    """``import flowrl`` where torch is imported already, and ``flowrl --help``, each in a new process."""

    def python(*arguments: str) -> tuple[float, str]:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
        return time.perf_counter() - start, done.stdout

    imports = [float(python("-c", IMPORT)[1]) for _ in range(bench.repeats + 1)][1:]
    helps = [python("-m", "flowrl", "--help")[0] for _ in range(bench.repeats + 1)][1:]
    return [
        Measure.of(imports, "startup", "import flowrl", "s", bound=0.3),
        Measure.of(helps, "startup", "flowrl --help", "s", bound=1.0),
    ]


def throughput(bench: Bench) -> list[Measure]:
    """Seconds and pictures a second of each phase of a training step, as the trainer runs it."""
    config, seconds = bench.config, defaultdict(list)
    for repetition in range(1 + max(1, bench.repeats // 3)):
        start = time.perf_counter()
        metrics = bench.trainer.step()
        bench.trainer.counters.idle = 0  # a model that never scores is as good as any for its speed
        if repetition:
            for phase in ("rollout", "score", "update"):
                seconds[f"{phase} of a step"].append(metrics[f"seconds/{phase}"])
            seconds["whole step"].append(time.perf_counter() - start)
    pictures = config.groups_per_step * config.group_size
    measures = []
    for name, values in seconds.items():
        measures.append(Measure.of(values, "throughput", name, "s"))
        measures.append(Measure.of([pictures / value for value in values], "throughput", name, "pictures/s"))
    steps = [1 / value for value in seconds["whole step"]]
    return [*measures, Measure.of(steps, "throughput", "whole steps", "steps/s")]


class Waiting(Reward):
    """Brightness, from a judge that takes its time and no processor, as a server's client does.

    Attributes:
        seconds: what it waits at each call.
    """

    seconds = 0.0

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The mean of the pixels `[B]`, after a wait."""
        time.sleep(self.seconds)
        return batch.images.flatten(1).mean(dim=1)


def overlap(bench: Bench) -> list[Measure]:
    """Sampling and scoring of a step, over the longer of the two alone; the reward waits as long as the rollout takes.

    The last micro-batch is scored when nothing is left to draw, so n micro-batches take at least 1 + 1/n; the step is
    cut into sixteen, unless groups that branch must stay together.
    """
    config, judge = bench.config, Waiting()
    pictures = config.groups_per_step * config.group_size
    if config.policy.branch is None:
        config = config.model_copy(update={"micro_batch_size": max(1, pictures // PARTS)})
    trainer = bench.trainer_of(config, RewardSet(("waiting",), (judge,), torch.ones(1)))
    count = -(-pictures // config.micro_batch_size)
    alone: list[float] = []
    both: list[float] = []
    for repetition in range(1 + bench.repeats):
        seconds: list[float] = []
        for wait in (False, True):
            # The rollout that the wait is taken from is the one just before: the machine's load changes.
            judge.seconds = seconds[0] / count if wait else 0.0
            metrics = trainer.step()
            trainer.counters.idle = 0
            seconds.append(metrics["seconds/rollout"] + metrics["seconds/score"])
        if repetition:
            alone.append(seconds[0])
            both.append(seconds[1])
    ratios = [together / single for single, together in zip(alone, both, strict=True)]
    return [
        Measure.of(ratios, "overlap", f"both / the longer, {count} parts", "x", bound=1.15),
        Measure.of(alone, "overlap", "rollout, as long as scoring", "s"),
        Measure.of(both, "overlap", "rollout and scoring", "s"),
    ]


MEASUREMENTS: dict[str, Callable[[Bench], list[Measure]]] = {
    "rollout": rollout_overhead,
    "replay": replay_overhead,
    "storage": storage,
    "startup": startup,
    "throughput": throughput,
    "overlap": overlap,
}
"""Every measurement by its name on the command line."""


def main(
    what: Sequence[str] = (), config: RunConfig | None = None, *, repeats: int = 9, json: Path | None = None
) -> list[Measure]:
    """Measure and print a table.

    Args:
        what: names in `MEASUREMENTS`; none for all.
        config: the run to measure; None for the bundled `RECIPE`.
        repeats: how often each quantity is measured, after a warm-up.
        json: file for the numbers, with the recipe and the environment.

    Raises:
        UserError: an unknown measurement, or a run that cannot work.
    """
    for name in what:
        if name not in MEASUREMENTS:
            raise UserError(f"no measurement {name!r}.{nearest(name, MEASUREMENTS)} Known: {', '.join(MEASUREMENTS)}.")
    if repeats < 1:
        raise UserError(f"repeats is {repeats}; wanted at least 1.")
    config, console = config or bundled_recipe(), Console()
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(config.model_copy(update={"output": Path(folder)}), repeats)
        for name in what or MEASUREMENTS:
            console.print(f"measuring {name} ...")
            measures += MEASUREMENTS[name](bench)
    device = Accelerator().device
    console.print(table(measures, _setting(config, device)))
    if json is not None:
        facts = {"recipe": config.model_dump(mode="json"), "environment": environment([], 1, device)}
        write_json(json, {**facts, "measures": [asdict(measure) for measure in measures]})
    return measures


def bundled_recipe(overrides: Sequence[str] = ()) -> RunConfig:
    """The bundled recipe that is measured if none is given, with dotted overrides."""
    with as_file(files("flowrl.configs") / RECIPE) as path:
        return load_config(path, overrides)


def denoiser_calls(policy: Policy, run: Callable[[], Any]) -> list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    """Every call of a trained module that ``run`` makes, but for those on a walk: the module and its arguments."""
    calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []

    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not policy.walking:
            calls.append((module, args, kwargs))

    hooks = [module.register_forward_pre_hook(listen, with_kwargs=True) for module in policy.modules.values()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def own_bytes(rollout: Rollout) -> int:
    """Bytes of what recorded transitions must hold: the latents between steps, each once, and log-probabilities."""
    latents = {place for step in rollout.transitions for place in (step, step + 1)}
    transitions = list(rollout.transitions.values())
    return len(latents) * _nbytes(transitions[0].x) + sum(_nbytes(transition.log_prob) for transition in transitions)


def _overhead(pairs: Sequence[Pair], ours: str, base: str, bound: float) -> list[Measure]:
    return [
        Measure.of([mine / theirs for theirs, mine in pairs], ours, f"{ours} / {base}", "x", bound),
        Measure.of([theirs for theirs, _ in pairs], ours, base, "s"),
        Measure.of([mine for _, mine in pairs], ours, ours, "s"),
    ]


def _setting(config: RunConfig, device: torch.device) -> str:
    policy = config.policy
    return (
        f"{config.model.path}, {config.model.dtype}, micro-batch {config.micro_batch_size}, {policy.steps} steps, "
        f"guidance {policy.guidance_scale:g}, {device.type}, {torch.get_num_threads()} threads"
    )


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
