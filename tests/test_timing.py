"""Tests of measuring: order, statistics and the table, never times."""

import io

import pytest
from rich.console import Console

from flowrl.timing import Measure, measure_pairs, table


def test_pairs_take_turns_after_a_warm_up():
    """Each side comes first in turn, both see the same number, and the first pair is not counted."""
    order = []
    pairs = measure_pairs(lambda i: order.append(("base", i)), lambda i: order.append(("ours", i)), repeats=2)
    assert order == [("base", 0), ("ours", 0), ("ours", 1), ("base", 1), ("base", 2), ("ours", 2)]
    assert len(pairs) == 2


def test_pairs_keep_base_before_ours(monkeypatch):
    """Whoever ran first, the base's seconds are the first of a pair: here 1 for the base and 3 for ours."""
    now = 0.0

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert measure_pairs(lambda _: take(1.0), lambda _: take(3.0), repeats=3) == [(1.0, 3.0)] * 3


@pytest.mark.parametrize(("bound", "above"), [(None, False), (2.0, False), (1.9, True)])
def test_measure_holds_the_median_against_its_bound(bound, above):
    """The median of 1, 9 and 2 is 2; one outlier does not break a bound."""
    measure = Measure.of([1.0, 9.0, 2.0], "rollout", "over the plain call", "x", bound)
    assert (measure.median, measure.low, measure.high) == (2.0, 1.0, 9.0)
    assert measure.above is above


def test_table_shows_numbers_and_bounds():
    """A row holds median, unit, range and bound, a number that did not vary no range; topics lie apart."""
    measures = [
        Measure.of([1.0, 9.0, 2.0], "rollout", "rollout / plain call", "x", 1.5),
        Measure.of([0.01234], "rollout", "plain call", "s"),
        Measure.of([82048.0], "storage", "a transition keeps", "bytes"),
    ]
    page = io.StringIO()
    Console(file=page, width=80).print(table(measures, "the setting"))
    lines = page.getvalue().splitlines()
    assert lines[0].strip() == "the setting"
    assert [[cell.strip() for cell in line.strip("│├┤").split("│")] for line in lines[4:-1]] == [
        ["rollout / plain call", "2.000 x", "1.000 .. 9.000", "<= 1.5"],
        ["plain call", "0.0123 s", "", ""],
        [lines[6].strip("├┤")],  # the line between two topics
        ["a transition keeps", "82,048 bytes", "", ""],
    ]


@pytest.mark.parametrize(("bound", "style"), [(None, ""), (2.0, "green"), (1.9, "bold red")])
def test_table_marks_what_is_above_its_bound(bound, style):
    """The row of a median of 2 is red above a bound of 1.9, green up to one of 2, and plain without."""
    shown = table([Measure.of([2.0], "rollout", "rollout / plain call", "x", bound)], "the setting")
    assert shown.rows[0].style == style
