"""flowrl.summary: the line of a step."""

import math

from flowrl.summary import summary_line


def test_summary_line_by_hand():
    """What there is, in one line: rewards, loss, gradient, clipped samples, evaluations, and all seconds together."""
    metrics = {
        "step": 12.0,
        "reward/mean": 0.12345,
        "loss": -0.00004,
        "grad_norm": 0.0123456,
        "ratio/clip_fraction": 0.256,
        "eval/rewards/mine.py:sharp/mean": 0.5,
        "eval/diversity": 0.3,
        "seconds/rollout": 1.25,
        "seconds/update": 2.5,
    }
    wanted = "step 12/100  reward 0.123  loss -0.0000  grad 0.0123  clipped 0.26  eval mine.py:sharp 0.500  3.8s"
    assert summary_line(metrics, 100) == wanted
    assert summary_line({"step": 0.0}, 100) == "step 0/100"
    assert summary_line({"step": 0.0, "eval/a/mean": math.nan}, 1) == "step 0/1  eval a nan"
