"""Measuring on a noisy machine.

The two sides of a ratio run in pairs, one right after the other and each first in turn, so that what else the machine
does meets both. The ratio is taken pair by pair, and its median is what counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from rich.table import Table

Pair = tuple[float, float]
"""Seconds of the base and of ours."""


@dataclass(frozen=True)
class Measure:
    """A quantity, measured several times.

    Attributes:
        topic: the name in `MEASUREMENTS`.
        name: what was measured.
        unit: ``"x"`` for a ratio.
        median: over the repetitions.
        low: the least of them.
        high: the greatest of them.
        bound: what the median should not exceed; None for what is only reported.
    """

    topic: str
    name: str
    unit: str
    median: float
    low: float
    high: float
    bound: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], topic: str, name: str, unit: str, bound: float | None = None) -> Measure:
        """Sum up repetitions.

        >>> Measure.of([3.0, 1.0, 2.0], "startup", "flowrl --help", "s", bound=1.0)
        Measure(topic='startup', name='flowrl --help', unit='s', median=2.0, low=1.0, high=3.0, bound=1.0)
        """
        return cls(topic, name, unit, statistics.median(values), min(values), max(values), bound)

    @property
    def above(self) -> bool:
        """Whether the bound is exceeded."""
        return self.bound is not None and self.median > self.bound


def measure_pairs(base: Callable[[int], Any], ours: Callable[[int], Any], repeats: int) -> list[Pair]:
    """Seconds of two functions of the repetition's number, pair by pair, each first in turn; the first pair warms up.

    >>> order = []
    >>> pairs = measure_pairs(lambda i: order.append(f"base {i}"), lambda i: order.append(f"ours {i}"), repeats=1)
    >>> len(pairs), order
    (1, ['base 0', 'ours 0', 'ours 1', 'base 1'])
    """
    pairs = []
    for repetition in range(repeats + 1):
        if repetition % 2 == 0:
            theirs, mine = _seconds(partial(base, repetition)), _seconds(partial(ours, repetition))
        else:
            mine, theirs = _seconds(partial(ours, repetition)), _seconds(partial(base, repetition))
        pairs.append((theirs, mine))
    return pairs[1:]


def table(measures: Sequence[Measure], title: str) -> Table:
    """A table for the console, a section a topic; a median above its bound is red."""
    shown = Table("measured", "median", "min .. max", "wanted", title=title, title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    for _, topic in groupby(measures, key=lambda measure: measure.topic):
        shown.add_section()
        for measure in topic:
            style = "" if measure.bound is None else "bold red" if measure.above else "green"
            shown.add_row(*_cells(measure), style=style)
    return shown


def _cells(measure: Measure) -> tuple[str, str, str, str]:
    median, low, high = (
        f"{value:,.0f}" if value >= 1000 else f"{value:.3f}" if measure.unit == "x" else f"{value:.3g}"
        for value in (measure.median, measure.low, measure.high)
    )
    return (
        measure.name,
        f"{median} {measure.unit}",
        "" if low == high else f"{low} .. {high}",
        "" if measure.bound is None else f"<= {measure.bound:g}",
    )


def _seconds(function: Callable[[], Any]) -> float:
    _wait()
    start = time.perf_counter()
    function()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
