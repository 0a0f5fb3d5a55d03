"""Processes of a run: who does what, and how results come together. With one process, everything is the identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(mine: Mapping[int, T]) -> dict[int, T]:
    """The union of every process's results, by index, in order; the same on all processes."""
    if world_size() == 1:
        return dict(sorted(mine.items()))
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, dict(mine))
    return dict(sorted((index, value) for part in parts for index, value in part.items()))


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Add up the gradients of all processes, in one message; a parameter without a gradient counts as 0."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if world_size() == 1:
        return
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(flat)
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view_as(parameter)


class Averages:
    """Running means of metrics over samples and processes; ``.../max_deviation`` keeps its largest value instead."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._sums: dict[str, list[float]] = {}

    def add(self, metrics: Mapping[str, Tensor], weight: int) -> None:
        """Add values, `[B]` or 0-dim, that stand for ``weight`` samples."""
        for name, value in metrics.items():
            number = float(value.double().mean())
            self._merge(name, number if _is_largest(name) else number * weight, weight)

    def over_processes(self) -> dict[str, float]:
        """The means of what all processes have added; the same on all."""
        merged = Averages()
        for part in gather({rank(): self._sums}).values():
            for name, (value, weight) in part.items():
                merged._merge(name, value, weight)
        return {name: value if _is_largest(name) else value / weight for name, (value, weight) in merged._sums.items()}

    def _merge(self, name: str, value: float, weight: float) -> None:
        total = self._sums.setdefault(name, [value, 0.0] if _is_largest(name) else [0.0, 0.0])
        total[0] = max(total[0], value) if _is_largest(name) else total[0] + value
        total[1] += weight


def _is_largest(name: str) -> bool:
    return name.endswith("max_deviation")
