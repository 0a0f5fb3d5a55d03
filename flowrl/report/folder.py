"""Reads the folder that a run leaves: what is there, and a note for each thing that is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from .metrics import History, read_metrics


@dataclass(frozen=True)
class Sample:
    """One picture of an evaluation.

    Attributes:
        file: the picture.
        prompt: what it was asked to show; anything a prompt file can hold.
        row: number of the prompt.
        sample: number of the picture among those of its prompt.
        seed: of its noise.
        scores: reward name -> raw score; NaN where the reward could not score it.
    """

    file: Path
    prompt: str
    row: int
    sample: int
    seed: int
    scores: Mapping[str, float]

    @property
    def key(self) -> tuple[int, int, int, str]:
        """Equal for two pictures that differ in nothing but the weights that made them."""
        return self.row, self.sample, self.seed, self.prompt


def label(step: int) -> str:
    """What to call an evaluation: before the first update the weights are the base model's.

    >>> label(0), label(40)
    ('base model', 'step 40')
    """
    return "base model" if step == 0 else f"step {step}"


@dataclass(frozen=True)
class Evaluation:
    """The pictures of one evaluation, made after ``step`` updates; step 0 is the base model."""

    step: int
    samples: tuple[Sample, ...]

    @property
    def label(self) -> str:
        """What to call it: ``base model`` or ``step 40``."""
        return label(self.step)


@dataclass(frozen=True)
class Run:
    """A run folder in memory. Parts that the run has not written, or not whole, are empty; ``notes`` says which."""

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    history: History
    evaluations: tuple[Evaluation, ...]
    notes: tuple[str, ...]

    @property
    def max_steps(self) -> int | None:
        """How many steps the run was to take, or None if its config is not readable."""
        steps = self.config.get("max_steps")
        return steps if isinstance(steps, int) else None

    @property
    def finished(self) -> bool:
        """Whether the last step of the plan is in the log."""
        return self.max_steps is not None and self.history.last_step >= self.max_steps

    @property
    def trained_rewards(self) -> list[str]:
        """The names of the rewards that the run trains on."""
        rewards = self.config.get("rewards")
        return list(rewards) if isinstance(rewards, Mapping) else []

    def higher_is_better(self, reward: str) -> bool:
        """Whether a larger score of this reward is a better one, as ``environment.json`` describes it."""
        described = self.environment.get("rewards")
        for entry in described if isinstance(described, list) else []:
            if isinstance(entry, Mapping) and entry.get("name") == reward:
                return bool(entry.get("higher_is_better", True))
        return True


def _score(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _sample(entry: Mapping[str, Any], folder: Path) -> Sample:
    return Sample(
        file=folder / Path(entry["file"]).name,  # the name alone: a list must not point out of its folder
        prompt=str(entry["prompt"]),
        row=int(entry["row"]),
        sample=int(entry["sample"]),
        seed=int(entry["seed"]),
        scores={str(name): _score(value) for name, value in entry["scores"].items()},
    )


def _evaluation(folder: Path) -> Evaluation:
    entries = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    return Evaluation(int(folder.name.removeprefix("step_")), tuple(_sample(entry, folder) for entry in entries))


def _evaluations(folder: Path) -> tuple[tuple[Evaluation, ...], list[str]]:
    """The evaluations of a run, steps rising, and a note for each that is not whole."""
    found: list[Evaluation] = []
    notes: list[str] = []
    for place in folder.glob("step_*"):
        try:
            found.append(_evaluation(place))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            notes.append(f"The evaluation in {folder.name}/{place.name} is not complete and is left out ({reason}).")
    return tuple(sorted(found, key=lambda evaluation: evaluation.step)), sorted(notes)


def _stop(path: Path) -> list[str]:
    """The diagnosis of a run that stopped itself, as a note."""
    if not (path / "stopped.json").exists():
        return []
    notes: list[str] = []
    stop = _mapping(path / "stopped.json", json.loads, notes)
    return [*notes, f"The run stopped itself after step {stop.get('step', '?')}: {stop.get('reason', '?')}"]


def _mapping(path: Path, parse: Callable[[str], object], notes: list[str]) -> Mapping[str, Any]:
    """A file that holds a mapping, or an empty one and a note."""
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"There is no {path.name}.")
        return {}
    except (OSError, ValueError, yaml.YAMLError) as problem:
        notes.append(f"{path.name} could not be read ({type(problem).__name__}).")
        return {}
    if isinstance(content, Mapping):
        return content
    notes.append(f"{path.name} holds no table of names and values.")
    return {}


def read_run(path: Path) -> Run:
    """Read a run folder, finished or not.

    Args:
        path: the folder that ``flowrl train`` wrote.

    Returns:
        All that could be read; the rest is in ``notes``.

    Raises:
        UserError: ``path`` is no run folder at all.
    """
    if not (path / "config.yaml").is_file() and not (path / "metrics.jsonl").is_file():
        raise UserError(
            f"{path} is no run folder: it holds neither config.yaml nor metrics.jsonl. Give the folder that "
            "`flowrl train` wrote (`output:` in its config), for example: flowrl report runs/shapes_nft"
        )
    notes: list[str] = []
    config = _mapping(path / "config.yaml", yaml.safe_load, notes)
    environment = _mapping(path / "environment.json", json.loads, notes)
    history = read_metrics(path / "metrics.jsonl")
    evaluations, unread = _evaluations(path / "samples")
    return Run(path, config, environment, history, evaluations, (*_stop(path), *notes, *history.notes, *unread))
