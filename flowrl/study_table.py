"""The table of a study: what each method reached with as many denoiser calls, from the curves of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Point:
    """An evaluation of a run.

    Attributes:
        calls: samples that the denoiser had processed before it, without evaluations.
        seconds: of training before it.
        measure: mean of the reward that the study is about.
        held_out: mean of the reward that nothing was trained on.
        diversity: of the pictures of a prompt.
    """

    calls: float
    seconds: float
    measure: float
    held_out: float
    diversity: float


@dataclass(frozen=True)
class Curve:
    """A run: its seed, its evaluations in order, the first of the base model, and why it stopped itself, if it did."""

    seed: int
    points: Sequence[Point]
    stopped: str | None = None


def calls_to(points: Sequence[Point], gain: float) -> float:
    """Denoiser calls after which the measure first stood ``gain`` above the base model's; infinity if it never did.

    Between evaluations the curve is taken for a straight line.

    >>> curve = [Point(0, 0, 0.5, 0, 0), Point(100, 0, 0.6, 0, 0), Point(200, 0, 0.8, 0, 0)]
    >>> round(calls_to(curve, 0.2))
    150
    """
    goal = points[0].measure + gain
    for before, after in pairwise(points):
        if after.measure >= goal:
            share = (goal - before.measure) / (after.measure - before.measure)
            return before.calls + share * (after.calls - before.calls)
    return math.inf


def spread(values: Sequence[float], form: str) -> str:
    """The median, and in brackets the lowest and highest of several values; ``never`` for infinity.

    >>> spread([0.25, 0.5, 0.125], ".3f"), spread([2.0], ".0f"), spread([3.0, math.inf, math.inf], ",.0f")
    ('0.250 (0.125 to 0.500)', '2', 'never (3 to never)')
    """

    def shown(value: float) -> str:
        return "never" if math.isinf(value) else format(value, form)

    middle = shown(statistics.median_high(values) if math.inf in values else statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))} to {shown(max(values))})"


def table(rows: dict[str, Sequence[Curve]], *, measure: str, held_out: str, gain: float) -> str:
    """The rows as Markdown, the highest median of the measure first.

    Args:
        rows: the finished runs of each method; methods without any are left out.
        measure: name of the measure.
        held_out: name of the reward that nothing was trained on.
        gain: by which the measure is to rise, for a column of its own.

    >>> curve = Curve(0, [Point(0, 0, 0.5, 0.8, 0.2), Point(900, 60, 0.75, 0.7, 0.1)])
    >>> print(table({"nft": [curve]}, measure="shapes", held_out="artifact", gain=0.2).splitlines()[-1])
    | nft | 0 | 0.500 | 0.750 | 0.800 → 0.700 | 50 % | 720 | 900 | 1.0 |
    """
    head = ["method", "seeds", f"`{measure}` before", "after", f"`{held_out}`", "diversity kept"]
    head += [f"calls to +{gain:g}", "calls", "minutes"]
    found = {name: _cells(curves, gain) for name, curves in rows.items() if curves}
    best = sorted(found, key=lambda name: -statistics.median(curve.points[-1].measure for curve in rows[name]))
    lines = [head, ["---"] * len(head), *([name, *found[name]] for name in best)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(curves: Sequence[Curve], gain: float) -> list[str]:
    ends = [(curve.points[0], curve.points[-1]) for curve in curves]
    held = " → ".join(f"{statistics.median(pair[end].held_out for pair in ends):.3f}" for end in (0, 1))
    kept = statistics.median(last.diversity / first.diversity for first, last in ends)
    return [
        " ".join(f"{curve.seed}{'*' if curve.stopped else ''}" for curve in curves),
        f"{statistics.median(first.measure for first, _ in ends):.3f}",
        spread([last.measure for _, last in ends], ".3f"),
        held,
        f"{kept:.0%}".replace("%", " %"),
        spread([calls_to(curve.points, gain) for curve in curves], ",.0f"),
        f"{statistics.median(last.calls for _, last in ends):,.0f}",
        f"{statistics.median(last.seconds for _, last in ends) / 60:.1f}",
    ]
