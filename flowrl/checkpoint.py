"""Exact resume: everything that the next step depends on, written whole or not at all.

Prompts, seeds and the order of work are functions of the run's seed and the step's number, so a checkpoint holds only
weights, named weight copies, the optimizer's moments, and a few counters. Tensors are safetensors; no pickle.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .adapters import WeightCopy, as_state
from .errors import UserError
from .files import whole_folder, write_json

_NAME = re.compile(r"step_(\d{6,})")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class Counters:
    """The state of a run that is not a tensor.

    Attributes:
        step: training steps done.
        denoiser_calls: samples that the denoiser has processed, over all processes.
        seconds: wall time so far.
        idle: steps in a row without a learning signal.
        alarmed: evaluations in a row with an alarm (see `flowrl.guards`).
        best: best value so far of the measure that the best weights are kept by; None before there is one.
        best_of: that measure.
        first: what the first evaluation found, the measure of the others.
    """

    step: int = 0
    denoiser_calls: int = 0
    seconds: float = 0.0
    idle: int = 0
    alarmed: int = 0
    best: float | None = None
    best_of: str | None = None
    first: dict[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run: a folder of folders ``step_000010``."""

    def __init__(self, folder: Path, keep: int) -> None:
        """Keep the newest ``keep`` checkpoints below ``folder``."""
        self._folder, self._keep = folder, keep

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, in order; what a killed process left unfinished does not count."""
        if not self._folder.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in self._folder.iterdir() if path.is_dir())
        return sorted(int(name[1]) for name in names if name)

    def save(
        self,
        counters: Counters,
        parameters: Mapping[str, nn.Parameter],
        copies: Mapping[str, WeightCopy],
        optimizer: torch.optim.Optimizer,
    ) -> Path:
        """Write a checkpoint and remove the oldest ones."""
        path = self._folder / f"step_{counters.step:06d}"
        if not path.exists():
            with whole_folder(path) as temporary:
                save_file(_flatten(parameters, copies), temporary / "weights.safetensors")
                save_file(_moments(parameters, optimizer), temporary / "optimizer.safetensors")
                write_json(temporary / "state.json", asdict(counters))
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self._folder / f"step_{step:06d}")
        return path

    def load(
        self,
        step: int,
        parameters: Mapping[str, nn.Parameter],
        copies: Mapping[str, WeightCopy],
        optimizer: torch.optim.Optimizer,
    ) -> Counters:
        """Put a checkpoint's state back in place.

        Raises:
            UserError: a file is missing or damaged, or holds other tensors than this run has.
        """
        path = self._folder / f"step_{step:06d}"
        try:
            weights = load_file(path / "weights.safetensors")
            moments = load_file(path / "optimizer.safetensors")
            counters = Counters(**json.loads((path / "state.json").read_text(encoding="utf8")))
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise UserError(
                f"checkpoint {path} cannot be read: {error}. Remove it to resume from an older one."
            ) from error
        _same_tensors(path / "weights.safetensors", weights, _flatten(parameters, copies))
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights[f"parameters/{name}"])
            for copy_name, weight_copy in copies.items():
                for name, tensor in weight_copy.tensors.items():
                    tensor.copy_(weights[f"copies/{copy_name}/{name}"])
        _restore_moments(path / "optimizer.safetensors", moments, parameters, optimizer)
        return counters


def _flatten(parameters: Mapping[str, nn.Parameter], copies: Mapping[str, WeightCopy]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {f"parameters/{name}": parameter for name, parameter in parameters.items()}
    for copy_name, weight_copy in copies.items():
        state |= {f"copies/{copy_name}/{name}": tensor for name, tensor in weight_copy.tensors.items()}
    return as_state(state)


def _moments(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return as_state(
        {
            f"{name}/{moment}": optimizer.state[parameter][moment]
            for name, parameter in parameters.items()
            if parameter in optimizer.state
            for moment in _MOMENTS
        }
    )


def _restore_moments(
    path: Path, moments: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    wanted = {f"{name}/{moment}" for name in parameters for moment in _MOMENTS}
    if moments and set(moments) != wanted:
        raise UserError(f"{path} does not hold the optimizer state of this run's parameters.")
    optimizer.state.clear()
    for name, parameter in parameters.items() if moments else ():
        state: dict[str, Any] = {moment: moments[f"{name}/{moment}"].clone() for moment in _MOMENTS}
        state["exp_avg"] = state["exp_avg"].to(parameter.device)
        state["exp_avg_sq"] = state["exp_avg_sq"].to(parameter.device)
        optimizer.state[parameter] = state


def _same_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    shapes = [name for name in wanted if name in found and found[name].shape != wanted[name].shape]
    if missing or extra or shapes:
        raise UserError(
            f"{path} is of another run: missing {missing[:3]}, unknown {extra[:3]}, of another shape {shapes[:3]}. "
            "Resume with the model, LoRA and objective that it was started with."
        )
