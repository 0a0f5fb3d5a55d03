"""The table of first against last evaluation."""

import math
import re

import pytest

from flowrl.report.folder import read_run
from flowrl.report.table import Row, elapsed, first_and_last, standard_error, table


def test_rows_of_a_run(run):
    """Every reward with its direction and whether it was trained on, then diversity, calls and time."""
    found = read_run(run)
    rows = table(found, first_and_last(found))
    assert [(row.name, row.kind) for row in rows] == [
        ("shapes", "reward"),
        ("my/rewards.py:<b>size</b>", "reward"),
        ("diversity", "diversity"),
        ("denoiser calls", "count"),
        ("time", "seconds"),
    ]
    shapes, size, diversity, calls, time = rows
    assert (shapes.before, shapes.after, shapes.trained, shapes.verdict) == (8 / 18, 14 / 18, True, "better")
    assert (size.change, size.gain, size.trained, size.verdict) == (-1.0, 1.0, False, "better")
    # 0.5 - 0.001 * 40; 640 calls a step after 80 of the first evaluation; 3 seconds a step after 2.
    assert diversity.cells() == ("diversity", "0.5", "0.46", "\u22120.04 (92%)")
    assert calls.cells() == ("denoiser calls", "80", "25,680", "+25,600")
    assert time.cells() == ("time", "2 s", "2 min 02 s", "2 min 00 s")
    assert {row.verdict for row in (diversity, calls, time)} == {""}


def test_error_of_the_change_is_paired(run):
    """18 pairs, of ten in a row: 3 right before and after, 4 fixed, 1 broken, 2 wrong before and after.

    So of 18: fixed at 3, 4, 5, 6, 13, 14, 15, 16 (8), broken at 7, 17 (2). Mean change 6/18 = 1/3, mean square
    10/18; the sample variance is (10/18 - 1/9) * 18/17 = 8/17, and the error sqrt(8/17/18).
    """
    found = read_run(run)
    shapes = table(found, first_and_last(found))[0]
    assert shapes.error == pytest.approx(math.sqrt(8 / 17 / 18))


def test_error_is_left_out_when_the_pictures_are_of_other_evaluations(run):
    """The log goes to step 40; pictures that end at step 20 say nothing about that change."""
    (run / "samples" / "step_000040" / "prompts.json").unlink()
    found = read_run(run)
    assert table(found, first_and_last(found))[0].error is None


def test_the_base_model_cost_nothing(run):
    """The trainer logs no calls and no time with the evaluation before the first step; without any, no row."""
    log = run / "metrics.jsonl"
    first, *rest = log.read_text().splitlines()
    first = re.sub(r'"(time|denoiser_calls)": [\d.]+, ', "", first)
    log.write_text("\n".join([first, *rest]))
    rows = {row.name: row for row in table(read_run(run), None)}
    assert rows["denoiser calls"].cells() == ("denoiser calls", "0", "25,680", "+25,680")
    assert rows["time"].cells()[1:] == ("0 s", "2 min 02 s", "2 min 02 s")
    log.write_text("\n".join(re.sub(r'"(time|denoiser_calls)": [\d.]+, ', "", line) for line in [first, *rest]))
    assert not {"denoiser calls", "time"} & {row.name for row in table(read_run(run), None)}


def test_one_evaluation_makes_no_table(make_run):
    """There is nothing to compare yet."""
    found = read_run(make_run(last_step=9))
    assert first_and_last(found) is None
    assert table(found, None) == []


@pytest.mark.parametrize(
    ("before", "after", "higher", "error", "verdict"),
    [
        (0.5, 0.7, True, 0.05, "better"),
        (0.7, 0.5, True, 0.05, "worse"),
        (0.7, 0.5, False, 0.05, "better"),
        (0.5, 0.59, True, 0.05, "unclear"),
        (0.5, 0.5, True, None, "unclear"),
        (0.5, 0.51, True, None, "better"),
        (0.5, None, True, None, ""),
        (5.0, 9.0, None, None, ""),
    ],
)
def test_verdict(before, after, higher, error, verdict):
    """A change counts from two standard errors on, in the reward's direction; a cost is neither good nor bad."""
    assert Row("x", "reward", before, after, higher_is_better=higher, error=error).verdict == verdict


def test_a_missing_value_is_a_dash():
    """Nothing is made up where a value is missing."""
    assert Row("x", "reward", None, 0.5, higher_is_better=True, error=0.1).cells() == ("x", "\u2014", "0.5", "\u2014")


def test_standard_error():
    """1 and 3: sample standard deviation sqrt(2), over sqrt(2)."""
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)
    assert standard_error([1.0]) is None


def test_clock_times_count_from_the_first_line(run):
    """A log whose `time` is the clock gives the same durations as one that counts seconds."""
    log = run / "metrics.jsonl"
    log.write_text(re.sub(r'"time": (\d+)', lambda found: f'"time": {1_700_000_000 + int(found[1])}', log.read_text()))
    found = read_run(run)
    assert elapsed(found, 0) == 0.0
    assert elapsed(found, 1) == 3.0
