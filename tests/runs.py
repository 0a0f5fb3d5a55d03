"""Tiny runs for tests, in this process and in others; a run of four steps takes about a second.

``python -m tests.runs`` writes `GOLDEN` anew.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor

from flowrl import plugins, trainer
from flowrl import recipe as recipes
from flowrl.config import RunConfig
from flowrl.preflight import preflight
from flowrl.trainer import Trainer

from . import tiny

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "data" / "golden_curve.json"
OBJECTIVES = tuple(plugins.known("objectives"))
"""Every objective, as the config knows them: a new one is in each test over all objectives by itself."""
EVERY_KIND = ("draft", "grpo", "nft", "prdp")
"""Gradients through the reward, transitions, final latents, and pairs: what `make test` takes through whole runs."""
each_objective = pytest.mark.parametrize(
    "objective", [pytest.param(name, marks=[] if name in EVERY_KIND else pytest.mark.slow) for name in OBJECTIVES]
)

PROMPTS = ("a red circle", "two blue squares", "a green triangle", "three yellow stars", "a purple circle")
EVAL_PROMPTS = ("a blue circle", "two red squares")
CHILDREN = multiprocessing.get_context("forkserver")
"""Makes processes from a server that has imported flowrl already: they start in a moment, and share nothing with us."""
PRELOAD = ("tests.runs", "flowrl.report", "diffusers.pipelines.stable_diffusion_3", "accelerate.state")
"""What that server imports: all that is slow, or each process would import it again, for a second or two."""


def reward(name: str) -> str:
    """The plug-in name of a function in ``toy_rewards.py``."""
    return f"{Path(__file__).parent / 'toy_rewards.py'}:{name}"


def save_model(folder: Path) -> Path:
    """A folder with a tiny random SD3 pipeline, and the prompt files of the runs beside it."""
    tiny.sd3().save_pretrained(folder / "model")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    (folder / "heldout.txt").write_text("\n".join(EVAL_PROMPTS))
    return folder / "model"


def _toy_reward(overrides: tuple[str, ...]) -> str:
    """Brightness, with gradients where the objective that the overrides name asks for them."""
    named = [text.removeprefix("objective.name=") for text in overrides if text.startswith("objective.name=")]
    asks = any(plugins.load("objectives", name).differentiates for name in named)
    return "Glow" if asks else "brightness"


def recipe(model: Path, output: Path, *overrides: str, rewards: Mapping[str, Any] | None = None) -> RunConfig:
    """A tiny run: four steps of two groups of four, in four denoising steps, with GRPO.

    Args:
        model: what `save_model` returned.
        output: the run's folder.
        overrides: dotted changes, such as ``max_steps=2``.
        rewards: other rewards than brightness.
    """
    fields = {
        "output": str(output),
        "max_steps": 4,
        "model": {"path": str(model)},
        "prompts": str(model.parent / "prompts.txt"),
        "policy": {"steps": 4, "guidance_scale": 1.0},
        "lora": {"rank": 2, "alpha": 6},
        "rewards": dict(rewards or {reward(_toy_reward(overrides)): 1.0}),
        "objective": {"name": "grpo"},
        "groups_per_step": 2,
        "group_size": 4,
        "micro_batch_size": 4,
        "ema_decay": 0.5,
        "eval": {"every": 2, "prompts": str(model.parent / "heldout.txt")},
        "checkpoint_every": 1,
        "trackers": [],
    }
    return recipes.build(RunConfig, fields, overrides, recipes.Source("tests/runs.py"))


@dataclass
class Trace:
    """What a process of a run did, step by step, but for the first: micro-batches of all steps in one list.

    Attributes:
        samples: prompts and seeds of each of its micro-batches.
        scores: `[P, G, R]` of all processes.
        advantages: `[P, G]` of all processes.
        sums: a float64 checksum of the parameters after each step.
    """

    samples: list[Any] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    advantages: list[Any] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)


class Watched(Trainer):
    """A trainer that keeps a `Trace`."""

    def __init__(self, config: RunConfig, checked: Any, accelerator: Accelerator) -> None:
        """Listen in where prompts and seeds go in, and scores come out."""
        self.trace = Trace()

        def advantage(scores: Tensor, weights: Tensor) -> Any:
            advantages, diagnostics = checked.advantage(scores, weights)
            self.trace.scores.append(scores.tolist())
            self.trace.advantages.append(advantages.tolist())
            return advantages, diagnostics

        super().__init__(config, replace(checked, advantage=advantage), accelerator)
        rollout = self.policy.rollout

        def listened(prompts: Any, *, seeds: Any, **call: Any) -> Any:
            self.trace.samples.append([list(prompts), list(seeds)])
            return rollout(prompts, seeds=seeds, **call)

        self.policy.rollout = listened

    def step(self) -> dict[str, float]:
        """A step, and the checksum after it."""
        metrics = super().step()
        self.trace.sums.append(float(sum(p.detach().double().square().sum() for p in self.parameters)))
        return metrics


def watched(config: RunConfig, resume: bool = False) -> Watched:
    """A trainer in this process, ready for `Trainer.step`; it has written nothing."""
    return Watched(config, preflight(config, resume), Accelerator(cpu=True))


def train(config: RunConfig, resume: bool = False) -> Path:
    """A whole run in this process, without its report, which takes longer than the run."""
    with mock.patch("flowrl.report.write_report"):
        return trainer.train(config, resume)


def start(target: Callable[..., object], *arguments: Any, log: Path, **environment: str) -> Any:
    """Start ``target(*arguments)`` in a process of its own.

    Args:
        target: a function of a module.
        arguments: can be pickled.
        log: file that takes its output.
        environment: further variables, such as a launcher sets.
    """
    if str(ROOT) not in sys.path:  # the process finds `tests` through it, whatever started pytest
        sys.path.append(str(ROOT))
    CHILDREN.set_forkserver_preload(list(PRELOAD))
    process = CHILDREN.Process(target=_child, args=(target, arguments, log, environment))
    process.start()
    return process


def _child(target: Callable[..., object], arguments: tuple[Any, ...], log: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        target(*arguments)


def together(target: Callable[..., object], *arguments: Any, log: Path, processes: int = 2) -> None:
    """Run ``target(*arguments)`` in several processes at once, with the variables that torchrun sets for each."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    everywhere = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    everywhere |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        start(target, *arguments, log=log, RANK=str(rank), LOCAL_RANK=str(rank), **everywhere)
        for rank in range(processes)
    ]
    for process in started:
        process.join(timeout=300)
    codes = [process.exitcode for process in started]
    assert codes == [0] * processes, log.read_text()


def run_watched(config: RunConfig, resume: bool = False, die_at: int | None = None) -> None:
    """For a process of its own: a whole run; its `Trace` and its file operations go into a file beside its folder.

    Args:
        config: the run.
        resume: continue.
        die_at: kill the process by SIGKILL before this operation on a file of the run, counted from 0.
    """
    made: list[Watched] = []

    def make(*arguments: Any) -> Watched:
        made.append(Watched(*arguments))
        return made[-1]

    operations = _count_operations(config.output, die_at)
    with mock.patch("flowrl.trainer.Trainer", make):
        train(config, resume)
    rank = os.environ.get("RANK", "0")
    record = {**vars(made[0].trace), "operations": len(operations)}
    trace_file(config.output, rank).write_text(json.dumps(record))


def trace_file(output: Path, rank: int | str = 0) -> Path:
    """Where `run_watched` leaves the trace of a process."""
    return output.with_name(f"{output.name}.trace{rank}.json")


def _count_operations(folder: Path, die_at: int | None) -> list[str]:
    """The list that grows by each Python operation on a file below a folder: opening, renaming, removing, ..."""
    seen: list[str] = []

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        touches = event == "open" or event.startswith(("os.", "shutil."))
        if touches and any(str(argument).startswith(str(folder)) for argument in arguments[:2]):
            if len(seen) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(event)

    sys.addaudithook(listen)
    return seen


def metrics(run: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``, but for what the clock says."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("seconds/")} for row in rows]


def state(run: Path) -> dict[str, Tensor]:
    """Every tensor that a run left: its last checkpoint and its exports, by file and name."""
    files = [*max((run / "checkpoints").iterdir()).glob("*.safetensors"), *run.glob("adapter/**/*.safetensors")]
    return {f"{file.relative_to(run)}:{name}": tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_run(run: Path, wanted: Path) -> None:
    """Two runs ended with the same tensors, bit for bit, the same metrics and the same pictures."""
    found, expected = state(run), state(wanted)
    assert found.keys() == expected.keys()
    assert [name for name, tensor in found.items() if not torch.equal(tensor, expected[name])] == []
    assert metrics(run) == metrics(wanted)
    pictures = [{p.relative_to(f): p.read_bytes() for p in f.glob("samples/**/*.*")} for f in (run, wanted)]
    assert pictures[0] == pictures[1]


def curve(model: Path, folder: Path, objective: str) -> list[dict[str, float]]:
    """Mean reward, loss and gradient norm of ten steps of two large updates: on-policy, the loss of GRPO would be 0."""
    settings = (f"objective.name={objective}", "max_steps=10", "eval.every=0", "updates_per_step=2")
    changes = ("objective.beta=1.0",) if objective == "grpo" else ()
    run = train(recipe(model, folder / objective, *settings, "learning_rate=0.02", *changes))
    return [{key: row[key] for key in ("reward/mean", "loss", "grad_norm")} for row in metrics(run) if row["step"] > 0]


def main() -> None:
    """Write the golden curves anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_model(folder)
        curves = {objective: curve(model, folder, objective) for objective in OBJECTIVES}
    GOLDEN.write_text(json.dumps(curves, indent=1) + "\n")


if __name__ == "__main__":
    main()
