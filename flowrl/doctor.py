"""``flowrl doctor``: is this machine, this installation and this recipe fit for a run?

Every line is a `Finding`. Rewards are asked for a picture that must score well and one that must score badly
(`flowrl.reward.Reward.examples`): a detector that finds nothing, or weights that were loaded wrongly, give numbers that
look like scores, and only this tells them apart.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement
from torch import Tensor

from . import plugins
from .config import Plugin, RewardOptions, RunConfig
from .data import load_prompts
from .errors import UserError
from .preflight import (
    check_disk,
    check_launcher,
    check_transitions,
    make_advantage,
    make_kernel,
    make_objective,
    make_rewards,
)
from .preset import resolve

State = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        topic: what it is about: ``versions``, ``devices``, ``plug-ins``, ``recipe`` or ``rewards``.
        name: the thing that was looked at.
        state: ``FAIL`` makes ``flowrl doctor`` fail; ``note`` is worth knowing.
        detail: what was found.
    """

    topic: str
    name: str
    state: State
    detail: str


def diagnose(config: RunConfig | None = None) -> Iterator[Finding]:
    """Look at the installation, and at a recipe or, without one, at every reward that is installed.

    Args:
        config: the recipe.
    """
    yield from versions()
    yield from devices()
    yield from plug_ins()
    if config is None:
        for name in plugins.known("rewards"):
            yield check_reward(name, RewardOptions(), if_missing="note")
        return
    yield from check_recipe(config)
    measured = config.rewards if config.eval.rewards is None else config.eval.rewards
    for name, options in {**measured, **config.rewards}.items():
        sources = [config.prompts] * (name in config.rewards) + [config.eval.prompts] * (name in measured)
        yield check_reward(name, options, prompts=sources)


def versions() -> Iterator[Finding]:
    """Python, and each package that flowrl requires, held against the requirement."""
    yield Finding("versions", "python", "ok", platform.python_version())
    for text in metadata.requires("flowrl") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _version(requirement)


def _version(requirement: Requirement) -> Finding:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding("versions", requirement.name, "FAIL", f"not installed; wanted {requirement}")
    fits = requirement.specifier.contains(version, prereleases=True)
    detail = version if fits else f"{version}; wanted {requirement}: pip install --upgrade '{requirement}'"
    return Finding("versions", requirement.name, "ok" if fits else "FAIL", detail)


def devices() -> Iterator[Finding]:
    """The accelerators that torch sees, and the CPU."""
    import torch

    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        bfloat16 = "bfloat16" if properties.major >= 8 else "no bfloat16"
        detail = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {bfloat16}"
        yield Finding("devices", f"cuda:{index}", "ok", detail)
    if torch.cuda.device_count() == 0:
        yield Finding("devices", "cuda", "note", "none: the bundled model trains on a CPU, large ones do not")
    yield Finding("devices", "cpu", "ok", f"{torch.get_num_threads()} threads")


def plug_ins() -> Iterator[Finding]:
    """Whether each installed entry point loads; one that needs a missing package is a note."""
    for group in plugins.GROUPS:
        for name in plugins.known(group):
            yield _attempt("plug-ins", f"{group}: {name}", partial(plugins.load, group, name), "note")


def check_recipe(config: RunConfig) -> Iterator[Finding]:
    """Every check of `flowrl.preflight` that does not depend on the state of the output folder."""
    yield _attempt("recipe", "launcher", lambda: check_launcher(config.model))
    try:
        resolved = resolve(config)
    except UserError as error:
        yield Finding("recipe", "model", "FAIL", str(error))
    else:
        config = resolved.config
        yield Finding("recipe", "model", "ok", resolved.line() if resolved.preset else "")
        yield _attempt("recipe", "disk", lambda: check_disk(config, resolved.files.place))
    yield _attempt("recipe", "advantage", lambda: make_advantage(config.advantage))
    yield _attempt("recipe", "objective", lambda: _objective_and_kernel(config, config.objective))
    yield _attempt("recipe", "prompts", lambda: load_prompts(config.prompts))
    yield _attempt("recipe", "eval.prompts", lambda: load_prompts(config.eval.prompts))


def _objective_and_kernel(config: RunConfig, objective: Plugin) -> None:
    check_transitions(objective.name, make_objective(objective), make_kernel(config.policy))


def check_reward(
    name: str, options: RewardOptions, *, prompts: Sequence[str] = (), if_missing: State = "FAIL"
) -> Finding:
    """Score a reward's example pictures; the good ones must all score better than the bad ones.

    Args:
        name: the plug-in name.
        options: its options.
        prompts: prompt sets that it must be able to score.
        if_missing: the state of a reward that cannot be made.
    """
    try:
        rewards = make_rewards({name: options})
        for source in prompts:
            rewards.check(load_prompts(source))
        examples = rewards.rewards[0].examples()
        if examples is None:
            return Finding("rewards", name, "note", "brings no example pictures: nothing to tell right from wrong by")
        good, bad = (rewards.combine(rewards.score(batch).raw) for batch in examples)
    except UserError as error:
        return Finding("rewards", name, if_missing, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a plug-in's own code raises is the diagnosis
        return Finding("rewards", name, "FAIL", f"{type(error).__name__}: {error}")
    sign = 1 if rewards.rewards[0].higher_is_better else -1
    detail = f"positive {_range(sign * good)}, negative {_range(sign * bad)}"
    # A NaN compares as false, so it fails here.
    separate = bool(good.min() > bad.max())
    return Finding("rewards", name, "ok" if separate else "FAIL", detail if separate else f"{detail}: no separation")


def _range(scores: Tensor) -> str:
    low, high = float(scores.min()), float(scores.max())
    return f"{low:.4g} to {high:.4g}" if low < high else f"{low:.4g}"  # NaN is not under NaN


def _attempt(topic: str, name: str, action: Callable[[], object], otherwise: State = "FAIL") -> Finding:
    try:
        action()
    except UserError as error:
        return Finding(topic, name, otherwise, str(error))
    return Finding(topic, name, "ok", "")
