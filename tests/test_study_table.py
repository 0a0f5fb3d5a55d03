"""flowrl.study_table: cells by hand."""

import math

from flowrl.study_table import Curve, Point, calls_to, spread, table


def curve(seed, *ends, stopped=None):
    """Evaluations at 0, 100, ... calls, each a minute after the last, with a held-out reward and diversity of 1."""
    points = [Point(100.0 * n, 60.0 * n, value, 1.0, 1.0) for n, value in enumerate(ends)]
    return Curve(seed, points, stopped)


def test_calls_to_by_hand():
    """From .625 at 100 calls to .875 at 200, .75 lies half way; the first crossing counts; infinite without one."""
    assert calls_to(curve(0, 0.5, 0.625, 0.875).points, 0.25) == 150
    assert calls_to(curve(0, 0.5, 0.75, 0.25, 1.0).points, 0.25) == 100
    assert calls_to(curve(0, 0.5, 0.625).points, 0.25) == math.inf


def test_spread_with_runs_that_never_do():
    """Infinity sorts last: of two the median is the worse, of three the middle one."""
    assert spread([100.0, math.inf], ".0f") == "never (100 to never)"
    assert spread([100.0, 200.0, math.inf], ".0f") == "200 (100 to never)"
    assert spread([math.inf], ".0f") == "never"


def test_table_by_hand():
    """Medians of two seeds, the best method first, stars for runs that stopped themselves, no line without a run."""
    rows = {"a": [curve(0, 0.5, 0.6), curve(1, 0.5, 0.9, stopped="dead")], "b": [curve(0, 0.5, 0.8)], "c": []}
    lines = table(rows, measure="shapes", held_out="artifact", gain=0.25).splitlines()
    assert lines[0].startswith(
        "| method | seeds | `shapes` before | after | `artifact` | diversity kept | calls to +0.25 |"
    )
    assert lines[2] == "| b | 0 | 0.500 | 0.800 | 1.000 → 1.000 | 100 % | 83 | 100 | 1.0 |"
    # Of a: .75 lies at .25 / .4 of the way in one seed, and is never reached in the other.
    assert (
        lines[3]
        == "| a | 0 1* | 0.500 | 0.750 (0.600 to 0.900) | 1.000 → 1.000 | 100 % | never (62 to never) | 100 | 1.0 |"
    )
    assert len(lines) == 4
