"""``flowrl doctor``: is this machine, this installation and this recipe fit for a run?

Every line is a `Finding`. Rewards are asked for a picture that must score well and one that must score badly
(`flowrl.reward.Reward.examples`): a detector that finds nothing, or weights that were loaded wrongly, give numbers that
look like scores, and only this tells them apart.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata

from packaging.requirements import Requirement

from . import plugins
from .config import Plugin, RewardOptions, RunConfig
from .data import load_prompts
from .errors import UserError
from .findings import Finding, State
from .preflight import (
    check_disk,
    check_launcher,
    check_transitions,
    make_advantage,
    make_kernel,
    make_objective,
)
from .preset import resolve
from .reward_checks import check_reward


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
    yield _attempt("recipe", "advantage", lambda: make_advantage(config.advantage, config.shaping, config.rewards))
    yield _attempt("recipe", "objective", lambda: _objective_and_kernel(config, config.objective))
    yield _attempt("recipe", "prompts", lambda: load_prompts(config.prompts))
    yield _attempt("recipe", "eval.prompts", lambda: load_prompts(config.eval.prompts))


def _objective_and_kernel(config: RunConfig, objective: Plugin) -> None:
    check_transitions(objective.name, make_objective(objective), make_kernel(config.policy))


def _attempt(topic: str, name: str, action: Callable[[], object], otherwise: State = "FAIL") -> Finding:
    try:
        action()
    except UserError as error:
        return Finding(topic, name, otherwise, str(error))
    return Finding(topic, name, "ok", "")
