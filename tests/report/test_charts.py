"""Which charts a run gets."""

from pathlib import Path

import pytest

from flowrl.report.charts import legend, main_charts, other_charts
from flowrl.report.folder import Run, read_run
from flowrl.report.metrics import History


def run_with(rows):
    """A run with this log."""
    return Run(Path("runs/x"), {}, {}, History(rows), (), ())


def test_charts_of_a_run(run):
    """Rewards first, each with training and evaluation, then diversity, loss, gradient; the rest in reserve."""
    found = read_run(run)
    charts = main_charts(found)
    assert [chart.title for chart in charts] == [
        "reward, all combined",
        "shapes",
        "my/rewards.py:<b>size</b>",
        "diversity",
        "loss",
        "gradient norm",
    ]
    assert [curve.label for curve in charts[1].curves] == ["training prompts", "evaluation prompts"]
    assert "Lower is better." in charts[2].note
    assert [chart.title for chart in other_charts(found)] == ["seconds a step", "kl"]


def test_every_metric_is_somewhere(run):
    """No logged number is lost: on a chart, or in the table (time, calls)."""
    found = read_run(run)
    drawn = {tuple(curve.points) for chart in main_charts(found) + other_charts(found) for curve in chart.curves}
    for name in set(found.history.names()) - {"time", "denoiser_calls"}:
        assert tuple(found.history.series(name)) in drawn, name


def test_one_reward_has_one_chart():
    """Its sum would be the same curve again."""
    log = {step: {"reward/mean": 0.1 * step, "reward/shapes/mean": 0.1 * step} for step in range(1, 4)}
    assert [chart.title for chart in main_charts(run_with(log))] == ["shapes"]


def test_rare_times_have_a_chart_of_their_own():
    """An evaluation is timed in one step of three: among the others it would be the only thing to see."""
    log = {step: {"seconds/rollout": 1.0, "seconds/update": 2.0} for step in range(1, 4)}
    log[3]["seconds/evaluation"] = 90.0
    charts = other_charts(run_with(log))
    assert [[curve.label for curve in chart.curves] for chart in charts] == [["rollout", "update"], ["value"]]
    assert charts[1].title == "seconds/evaluation"


def test_an_empty_log_has_no_charts():
    """Neither has one whose values are all missing."""
    assert main_charts(run_with({})) == other_charts(run_with({})) == []
    assert main_charts(run_with({1: {"loss": float("nan")}})) == []


@pytest.mark.parametrize(("values", "log"), [((0.1, 20.0), True), ((0.1, 5.0), False), ((0.0, 50.0), False)])
def test_a_wide_positive_curve_is_logarithmic(values, log):
    """More than two powers of ten, and no zero among them."""
    (chart,) = main_charts(run_with({step: {"grad_norm": value} for step, value in enumerate(values)}))
    assert ("Logarithmic" in chart.note) is log


def test_the_limit_of_diversity_is_explained_and_not_in_the_legend():
    """A dashed line at 0.8 of the first value."""
    (chart,) = main_charts(run_with({0: {"eval/diversity": 0.5}, 10: {"eval/diversity": 0.45}}))
    assert [curve.label for curve in legend(chart.curves)] == ["evaluation prompts"]
    assert chart.curves[1].points == [(0, pytest.approx(0.4)), (10, pytest.approx(0.4))]
    assert "80%" in chart.note
