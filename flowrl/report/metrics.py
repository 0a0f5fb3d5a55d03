"""Reads ``metrics.jsonl``, also of a run that was killed while it wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Points = list[tuple[int, float]]
"""A curve: (step, value), steps rising; NaN where the run wrote a value that is no finite number."""


@dataclass(frozen=True)
class History:
    """What a run logged.

    Attributes:
        rows: step -> the metrics of that step, steps rising.
        notes: what could not be read, one sentence each.
    """

    rows: Mapping[int, Mapping[str, float]]
    notes: tuple[str, ...] = ()

    @property
    def last_step(self) -> int:
        """The last step that was logged, 0 for an empty log."""
        return max(self.rows, default=0)

    def names(self) -> list[str]:
        """Every metric of the log, in the order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def series(self, name: str) -> Points:
        """The curve of one metric; empty if it was never logged.

        >>> History({1: {"loss": 0.5}, 2: {"loss": 0.25, "eval/diversity": 0.9}}).series("loss")
        [(1, 0.5), (2, 0.25)]
        """
        return [(step, row[name]) for step, row in self.rows.items() if name in row]

    def at(self, step: int, name: str) -> float | None:
        """One value, or None where it is missing or not finite."""
        value = self.rows.get(step, {}).get(name)
        return value if value is not None and math.isfinite(value) else None

    def evaluations(self) -> list[int]:
        """The steps at which the run was evaluated."""
        return [step for step, row in self.rows.items() if any(name.startswith("eval/") for name in row)]

    def rewards(self, stage: str) -> list[str]:
        """The names of the rewards in metrics ``<stage>/<name>/mean``. A name may hold slashes itself.

        >>> History({0: {"eval/my/sharp.py:score/mean": 1.0, "eval/diversity": 0.9}}).rewards("eval")
        ['my/sharp.py:score']
        """
        start, end = f"{stage}/", "/mean"
        inner = (name[len(start) : -len(end)] for name in self.names() if name.startswith(start) and name.endswith(end))
        return [name for name in inner if name]


def _numbers(line: Mapping[str, object]) -> dict[str, float]:
    """The numeric entries of a line; null stands for "not a number" in JSON."""
    kept: dict[str, float] = {}
    for name, value in line.items():
        if name == "step":
            continue
        if value is None:
            kept[name] = math.nan
        elif isinstance(value, int | float) and not isinstance(value, bool):
            kept[name] = float(value)
    return kept


def _parse(line: bytes) -> tuple[int, dict[str, float]] | None:
    """Step and metrics of one line, or None if it is no metrics line."""
    try:
        found = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    step = found.get("step") if isinstance(found, dict) else None
    # The trainer writes 2.0 for step 2: all its metrics are floats.
    if isinstance(step, bool) or not isinstance(step, int | float) or step < 0 or step != step // 1:
        return None
    return int(step), _numbers(found)


def read_metrics(path: Path) -> History:
    """Read a log of one JSON object a line.

    A last line without its end is what a kill leaves behind: it is left out, and noted. A step that was logged twice
    (the run was resumed from an earlier checkpoint) keeps the later values.

    Args:
        path: the file; a missing one is an empty log, and noted.

    Returns:
        The log, steps rising.
    """
    if not path.is_file():
        return History({}, (f"There is no {path.name}: the run stopped before its first step.",))
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    rows: dict[int, dict[str, float]] = {}
    notes: list[str] = []
    for position, line in enumerate(lines, start=1):
        parsed = _parse(line)
        if parsed is not None:
            rows.setdefault(parsed[0], {}).update(parsed[1])
        elif position == len(lines):
            notes.append(
                f"The last line of {path.name} is cut off: the run was stopped while it wrote. It is left out."
            )
        else:
            notes.append(f"Line {position} of {path.name} could not be read and is left out.")
    if not rows:
        notes.append(f"{path.name} holds no complete step yet.")
    return History(dict(sorted(rows.items())), tuple(notes))
