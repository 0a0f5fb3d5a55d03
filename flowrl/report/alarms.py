"""What a run's log says against the run: not learning, cheating the reward, losing variety, breaking down.

Each check is a function from a run and its table to one sentence or None; :data:`CHECKS` lists them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from ..config import GuardConfig
from ..guards import NAMES, STATISTICS
from .folder import Run
from .metrics import Points
from .table import Row, standard_error
from .wording import number

DIVERSITY_FLOOR: float = GuardConfig.model_fields["diversity"].default
"""Share of the base model's diversity below which pictures have begun to look alike."""


WATCHED = {"held_out": "", "diversity": "eval/diversity", **{name: f"pixels/{name}" for name in STATISTICS}}
"""The metric that each guard watches; rewards that are held out are in the table."""


def rise(points: Points) -> tuple[float, float, float] | None:
    """Compare the first quarter of a curve with the last.

    Args:
        points: the curve; values that are not finite are left out.

    Returns:
        Mean of the first quarter, mean of the last, and the standard error of their difference; None with fewer than
        16 values, where a quarter says nothing.

    >>> rise([(step, float(step // 8)) for step in range(16)])
    (0.0, 1.0, 0.0)
    """
    values = [value for _, value in points if math.isfinite(value)]
    quarter = len(values) // 4
    if quarter < 4:
        return None
    first, last = values[:quarter], values[-quarter:]
    error = math.hypot(standard_error(first) or 0.0, standard_error(last) or 0.0)
    return statistics.fmean(first), statistics.fmean(last), error


def not_learning(run: Run, rows: Sequence[Row]) -> str | None:
    """The training reward did not rise by more than its noise, and no reward of the evaluation did either."""
    found = rise(run.history.series("reward/mean"))
    if found is None or any(row.kind == "reward" and row.verdict == "better" for row in rows):
        return None
    first, last, error = found
    if last - first > 2 * error:
        return None
    return (
        f"The run is not learning: the training reward was {number(first)} in the first quarter and {number(last)} in "
        f"the last, a change within its noise (standard error {number(error, 2)}). Look at the learning rate, and at "
        "whether the groups have any spread in their rewards."
    )


def cheating(run: Run, rows: Sequence[Row]) -> str | None:
    """The training reward rose while a reward of the evaluation fell."""
    found = rise(run.history.series("reward/mean"))
    fallen = [row for row in rows if row.kind == "reward" and row.verdict == "worse"]
    if found is None or not fallen or found[1] - found[0] <= 2 * found[2]:
        return None
    worst = "; ".join(f"{row.name} went from {number(row.before)} to {number(row.after)}" for row in fallen)
    return (
        f"The run may be cheating its reward: the training reward rose from {number(found[0])} to {number(found[1])}, "
        f"but on the evaluation prompts {worst}. Look at the pictures before you trust the curve."
    )


def lost_diversity(run: Run, rows: Sequence[Row]) -> str | None:
    """Pictures of one prompt look more alike than the base model's."""
    row = next((row for row in rows if row.kind == "diversity"), None)
    if _has_guards(run):  # it has the run's own bound, and the steps
        return None
    if row is None or not row.before or row.after is None or row.after >= DIVERSITY_FLOOR * row.before:
        return None
    return (
        f"Pictures of one prompt have grown alike: diversity is {row.after / row.before:.0%} of the first "
        f"evaluation's ({number(row.before)} to {number(row.after)}); below {DIVERSITY_FLOOR:.0%} is a loss. A KL "
        "penalty, a lower learning rate or an earlier checkpoint keeps more."
    )


def not_finite(run: Run, rows: Sequence[Row]) -> str | None:
    """Loss or gradient norm were no finite numbers."""
    steps = sorted(
        {step for name in ("loss", "grad_norm") for step, value in run.history.series(name) if not math.isfinite(value)}
    )
    if not steps:
        return None
    return f"Loss or gradient was not a finite number in {len(steps)} step(s), first in step {steps[0]}."


def no_gradient(run: Run, rows: Sequence[Row]) -> str | None:
    """The gradient was exactly zero for three steps in a row."""
    series = run.history.series("grad_norm")
    for place in range(len(series) - 2):
        if all(value == 0 for _, value in series[place : place + 3]):
            return (
                f"The gradient was exactly zero for three steps in a row from step {series[place][0]} on: nothing was "
                "learned there. All rewards of a group were equal, or no trainable weight reached the loss."
            )
    return None


def guarded(run: Run, rows: Sequence[Row]) -> str | None:
    """Guards that were up during the run, at which steps, and what they watch."""
    told = []
    for name, watched in WATCHED.items():
        steps = [step for step, value in run.history.series(f"alarm/{name}") if value]
        values = [value for _, value in run.history.series(watched)]
        if steps:
            change = f", from {number(values[0])} to {number(values[-1])}" if values else ""
            told.append(f"{name.replace('_', ' ')} at step {', '.join(map(str, steps))}{change}")
    if not told:
        return None
    return f"Guards raised alarms: {'; '.join(told)}. Look at the pictures; docs/guards.md says what each means."


def _has_guards(run: Run) -> bool:
    return any(run.history.series(f"alarm/{name}") for name in NAMES)


CHECKS: tuple[Callable[[Run, Sequence[Row]], str | None], ...] = (
    not_finite,
    no_gradient,
    cheating,
    not_learning,
    lost_diversity,
    guarded,
)


def alarms(run: Run, rows: Sequence[Row]) -> list[str]:
    """Every alarm that a run raises, one sentence or two each.

    Args:
        run: the run, finished or not.
        rows: its table.
    """
    return [message for check in CHECKS if (message := check(run, rows)) is not None]
