"""Alarms: each on the run that it is for, and silent on a good one."""

import math
from pathlib import Path

import numpy as np
import pytest

from flowrl.report.alarms import alarms, rise
from flowrl.report.folder import Run, read_run
from flowrl.report.metrics import History
from flowrl.report.table import Row, first_and_last, table

NOISE = np.random.default_rng(0).normal(size=40) * 0.02
FLAT = [0.5 + float(noise) for noise in NOISE]
RISING = [0.4 + 0.01 * step + float(noise) for step, noise in enumerate(NOISE)]
FELL = Row("quality", "reward", 0.8, 0.5, higher_is_better=True, error=0.05)
ROSE = Row("shapes", "reward", 0.5, 0.8, higher_is_better=True, error=0.05)


def run_with(**series):
    """A run whose log holds these curves, from step 1 on."""
    length = max(map(len, series.values()))
    names = {"reward": "reward/mean"}
    rows = {
        step + 1: {names.get(name, name): values[step] for name, values in series.items() if step < len(values)}
        for step in range(length)
    }
    return Run(Path("runs/x"), {}, {}, History(rows), (), ())


def test_a_good_run_raises_none(run):
    """Reward up, diversity at 92 %, finite losses, gradients that flow."""
    found = read_run(run)
    assert alarms(found, table(found, first_and_last(found))) == []


@pytest.mark.parametrize("values", [FLAT, [0.5] * 40, RISING[::-1]])
def test_not_learning(values):
    """A flat, a constant and a falling reward are called so; not when the evaluation rose nevertheless."""
    (message,) = alarms(run_with(reward=values), [])
    assert "not learning" in message
    assert alarms(run_with(reward=values), [ROSE]) == []


def test_a_short_run_is_not_judged():
    """Fifteen steps are too few to tell a trend from noise."""
    assert alarms(run_with(reward=[0.5] * 15), []) == []


def test_cheating():
    """The training reward rose and an evaluation reward fell: the alarm names that reward and both values."""
    (message,) = alarms(run_with(reward=RISING), [ROSE, FELL])
    assert "cheating" in message
    assert "quality went from 0.8 to 0.5" in message
    assert "shapes" not in message
    assert alarms(run_with(reward=RISING), [ROSE]) == []


@pytest.mark.parametrize(("after", "count"), [(0.41, 0), (0.39, 1)])
def test_lost_diversity(after, count):
    """Below 0.8 of the base model's 0.5, that is 0.4."""
    found = alarms(run_with(reward=RISING), [Row("diversity", "diversity", 0.5, after)])
    assert len(found) == count
    assert all("78%" in message for message in found)


def test_not_finite():
    """A NaN in the loss and an infinity in the gradient, in different steps, count as two; the first is named."""
    (message,) = alarms(run_with(loss=[1.0, math.nan, 1.0], grad_norm=[1.0, 1.0, math.inf]), [])
    assert "2 step(s), first in step 2" in message


def test_no_gradient():
    """Exactly zero three times in a row; twice is not enough."""
    (message,) = alarms(run_with(grad_norm=[1.0, 0.0, 0.0, 0.0, 1.0]), [])
    assert "from step 2 on" in message
    assert alarms(run_with(grad_norm=[1.0, 0.0, 0.0, 1.0, 0.0]), []) == []


def test_rise_compares_quarters():
    """Quarters of 16 values hold four: means of 0 0 2 2 and 5 5 5 5; NaN is left out before that.

    The first has sample variance 4/3, so its error is sqrt(4/3/4) = sqrt(1/3); the last has none.
    """
    values = [0, 0, 2, 2, *[3] * 8, 5, 5, 5, 5, math.nan]
    assert rise(list(enumerate(map(float, values)))) == pytest.approx((1.0, 5.0, math.sqrt(1 / 3)))


def test_pixels_out_of_their_bounds():
    """A guard of pixels that was up: the statistic, the steps, first and last value."""
    found = run_with(reward=[0.5, 0.5, 0.5], **{"pixels/saturation": [0.1, 0.4, 0.3], "alarm/saturation": [0, 1, 1]})
    (message,) = alarms(found, [])
    assert "saturation at step 2, 3, from 0.1 to 0.3" in message
    held = run_with(
        reward=[0.5, 0.5], **{"alarm/held_out": [0, 1], "alarm/diversity": [0, 1], "eval/diversity": [0.5, 0.1]}
    )
    (message,) = alarms(held, [Row("diversity", "diversity", 0.5, 0.1)])  # one sentence, not two
    assert "held out at step 2; diversity at step 2, from 0.5 to 0.1" in message
    quiet = run_with(reward=[0.5, 0.5], **{"pixels/saturation": [0.1, 0.2], "alarm/saturation": [0, 0]})
    assert alarms(quiet, []) == []
