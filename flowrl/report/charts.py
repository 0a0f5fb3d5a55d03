"""Chooses what to draw of a run: its rewards, diversity, loss and gradient first, everything else in reserve."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .alarms import DIVERSITY_FLOOR
from .curves import COLOURS, Curve, draw, window
from .folder import Run
from .metrics import Points


@dataclass(frozen=True)
class Chart:
    """A drawing with its words.

    Attributes:
        title: what it shows.
        note: one sentence on how to read it, or nothing.
        curves: the lines, for the legend.
        svg: the drawing.
    """

    title: str
    note: str
    curves: tuple[Curve, ...]
    svg: str


def last(curve: Curve) -> float | None:
    """The last finite value of a curve, for its legend."""
    return next((value for _, value in reversed(curve.points) if math.isfinite(value)), None)


def _wants_log(points: Points) -> bool:
    """Whether a curve spans more than two powers of ten, which a linear axis would show as a spike and a flat line."""
    values = [value for _, value in points if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def _chart(title: str, curves: Iterable[Curve], ident: str, note: str = "") -> Chart | None:
    """A chart, or None if none of its curves has a value."""
    kept = tuple(curve for curve in curves if last(curve) is not None)
    if not kept:
        return None
    log = len(kept) == 1 and _wants_log(kept[0].points)
    smoothed = [window(len(curve.points)) for curve in kept if curve.look == "trend"]
    parts = [
        note,
        f"Bold: running mean over {max(smoothed)} steps." if smoothed and max(smoothed) > 1 else "",
        "Logarithmic." if log else "",
    ]
    return Chart(title, " ".join(part for part in parts if part), kept, draw(kept, ident, log=log))


def _rewards(run: Run) -> list[Chart | None]:
    """One chart a reward: while training, and on the evaluation's prompts."""
    series = run.history.series
    names = list(dict.fromkeys(run.history.rewards("eval") + run.history.rewards("reward")))
    charts = [
        _chart(
            name,
            [
                Curve("training prompts", series(f"reward/{name}/mean"), 0, "trend"),
                Curve("evaluation prompts", series(f"eval/{name}/mean"), 1, "dots"),
            ],
            f"reward{place}",
            "" if run.higher_is_better(name) else "Lower is better.",
        )
        for place, name in enumerate(names)
    ]
    # With one reward of weight 1 the sum is that reward's own curve again.
    if len(run.history.rewards("reward")) != 1:
        curve = Curve("training prompts", series("reward/mean"), 0, "trend")
        charts.insert(0, _chart("reward, all combined", [curve], "rewards"))
    return charts


def _diversity(run: Run) -> Chart | None:
    points = run.history.series("eval/diversity")
    curves, note = [Curve("evaluation prompts", points, 1, "dots")], ""
    if len(points) > 1 and math.isfinite(points[0][1]):
        floor = DIVERSITY_FLOOR * points[0][1]
        curves.append(Curve("limit", [(points[0][0], floor), (points[-1][0], floor)], 0, "limit"))
        note = f"Dashed: {DIVERSITY_FLOOR:.0%} of the first evaluation."
    return _chart("diversity", curves, "diversity", note)


def main_charts(run: Run) -> list[Chart]:
    """The charts that a reader looks at first: rewards, diversity, loss, gradient norm; those that have values."""
    single = [
        _chart(title, [Curve("training", run.history.series(name), 0, "trend")], name)
        for title, name in (("loss", "loss"), ("gradient norm", "grad_norm"))
    ]
    return [chart for chart in (*_rewards(run), _diversity(run), *single) if chart is not None]


def _shown(run: Run) -> set[str]:
    """The metrics that are on the main charts or in the table."""
    rewards = {f"{stage}/{name}/mean" for stage in ("reward", "eval") for name in run.history.rewards(stage)}
    return rewards | {"reward/mean", "eval/diversity", "loss", "grad_norm", "time", "denoiser_calls"}


def other_charts(run: Run) -> list[Chart]:
    """Everything else that was logged: the times in one chart, each other metric in its own."""
    names = [name for name in run.history.names() if name not in _shown(run)]
    # What is timed in every step; an evaluation is rarer and longer, and would press the others flat.
    timed = [name for name in names if name.startswith("seconds/")]
    often = max((len(run.history.series(name)) for name in timed), default=0)
    seconds = [name for name in timed if len(run.history.series(name)) == often][:COLOURS]
    curves = [
        Curve(name.removeprefix("seconds/"), run.history.series(name), i, "line") for i, name in enumerate(seconds)
    ]
    rest = [
        _chart(name, [Curve("value", run.history.series(name), 0, "trend")], f"other{place}")
        for place, name in enumerate(name for name in names if name not in seconds)
    ]
    times = _chart("seconds a step", curves, "seconds")
    return [chart for chart in (times, *rest) if chart is not None]


def legend(curves: Sequence[Curve]) -> list[Curve]:
    """The curves that need a legend: all but limits, which the chart's note explains."""
    return [curve for curve in curves if curve.look != "limit"]
