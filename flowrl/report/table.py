"""The table of a run: first against last evaluation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from .folder import Run
from .pairs import Pairing, pair_up
from .wording import MISSING, duration, number, signed

Kind = Literal["reward", "diversity", "count", "seconds"]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: of the reward or the metric.
        kind: ``reward``; ``diversity``, of which a run should keep most; ``count`` and ``seconds``, which are costs.
        before: at the first evaluation, None where missing.
        after: at the last evaluation.
        higher_is_better: direction of a reward; None for everything else, of which a change is no verdict.
        error: standard error of the change, over pairs of pictures with the same prompt and noise.
        trained: whether the run trains on it; None where that is no question.
    """

    name: str
    kind: Kind
    before: float | None
    after: float | None
    higher_is_better: bool | None = None
    error: float | None = None
    trained: bool | None = None

    @property
    def change(self) -> float | None:
        """After minus before."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def gain(self) -> float | None:
        """The change, positive where it is for the better; None where no direction is."""
        if self.change is None or self.higher_is_better is None:
            return None
        return self.change if self.higher_is_better else -self.change

    @property
    def verdict(self) -> Literal["better", "worse", "unclear", ""]:
        """``better`` or ``worse`` if the change is over two standard errors, else ``unclear``.

        Without a standard error any change counts; without a direction there is no verdict (empty).
        """
        if self.gain is None:
            return ""
        if self.gain == 0 or abs(self.gain) < 2 * (self.error or 0.0):
            return "unclear"
        return "better" if self.gain > 0 else "worse"

    def cells(self) -> tuple[str, str, str, str]:
        """Name, before, after and change as text, for a table in a terminal or on the page.

        >>> Row("shapes", "reward", 0.5, 0.78125, higher_is_better=True, error=0.036).cells()
        ('shapes', '0.5', '0.781', '+0.281 ± 0.036')
        """
        if self.kind == "seconds":
            return self.name, duration(self.before), duration(self.after), duration(self.change)
        change = signed(self.change)
        if self.kind == "diversity" and self.before and self.after is not None:
            change += f" ({self.after / self.before:.0%})"
        if self.error is not None and change != MISSING:
            change += f" ± {number(self.error, 2)}"
        return self.name, number(self.before), number(self.after), change


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of a mean, sample standard deviation over sqrt(n); None for fewer than two values.

    >>> standard_error([0.0, 1.0, 0.0, 1.0])  # sqrt(1/3) / 2
    0.28867513459481287
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def first_and_last(run: Run) -> Pairing | None:
    """The pictures of the first and of the last evaluation, in pairs; None before the second evaluation."""
    if len(run.evaluations) < 2:
        return None
    return pair_up(run.evaluations[0], run.evaluations[-1], run.higher_is_better)


def elapsed(run: Run, step: int) -> float | None:
    """Seconds from the start of the run to a step."""
    time = run.history.at(step, "time")
    if time is None or time < 1e9:
        return time
    # Larger than thirty years: a clock time, so count from the first line.
    start = next((value for _, value in run.history.series("time") if math.isfinite(value)), time)
    return time - start


def _cost(step: int, logged: float | None) -> float | None:
    """What training had cost by a step: nothing before the first, where the trainer logs the evaluation alone."""
    return 0.0 if logged is None and step == 0 else logged


def _both(steps: tuple[int, int], value: Callable[[int], float | None]) -> tuple[float | None, float | None]:
    return value(steps[0]), value(steps[1])


def _reward_row(run: Run, name: str, steps: tuple[int, int], pairing: Pairing | None) -> Row:
    before, after = _both(steps, lambda step: run.history.at(step, f"eval/{name}/mean"))
    # The pictures tell the error of the change only if they are those of the two evaluations in the log.
    same = pairing is not None and (pairing.before.step, pairing.after.step) == steps
    return Row(
        name,
        "reward",
        before,
        after,
        higher_is_better=run.higher_is_better(name),
        error=standard_error(pairing.changes(name)) if pairing is not None and same else None,
        trained=name in run.trained_rewards,
    )


def table(run: Run, pairing: Pairing | None) -> list[Row]:
    """Compare the first evaluation of a run with its last.

    Args:
        run: the run.
        pairing: pictures of the two evaluations, for the standard errors.

    Returns:
        A row for each reward, the diversity, and what it cost in denoiser calls and time; empty before the second
        evaluation.
    """
    evaluations = run.history.evaluations()
    if len(evaluations) < 2:
        return []
    steps = (evaluations[0], evaluations[-1])
    rows = [_reward_row(run, name, steps, pairing) for name in run.history.rewards("eval")]
    rows += [
        Row("diversity", "diversity", *_both(steps, lambda step: run.history.at(step, "eval/diversity"))),
        Row("denoiser calls", "count", *_both(steps, lambda step: _cost(step, run.history.at(step, "denoiser_calls")))),
        Row("time", "seconds", *_both(steps, lambda step: _cost(step, elapsed(run, step)))),
    ]
    costs = ("count", "seconds")
    return [row for row in rows if row.after is not None or (row.before is not None and row.kind not in costs)]
