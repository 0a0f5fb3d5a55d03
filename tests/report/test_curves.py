"""Drawing curves."""

import math
import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from flowrl.report.curves import Curve, draw, running_mean, window

LINE = Curve("loss", [(step, 1 / (step + 1)) for step in range(30)], look="trend")


def paths(svg):
    """The drawn lines: paths with a series colour."""
    return re.findall(r"stroke: var\(--series-\d\)", svg)


@pytest.mark.parametrize(
    ("curves", "log"),
    [
        ([LINE], False),
        ([LINE], True),
        ([Curve("one", [(7, 0.5)])], False),
        ([Curve("gap", [(1, 0.5), (2, math.nan), (3, 0.7)], 4, "dots")], False),
        ([Curve("constant", [(1, 0.0), (2, 0.0)]), Curve("limit", [(1, 0.1), (2, 0.1)], look="limit")], False),
        ([Curve("huge", [(0, -1e30), (100_000, 1e30)])], False),
    ],
)
def test_a_drawing_is_one_element_that_needs_nothing_else(curves, log):
    """It parses, holds no address, no script and no style sheet, and its colours are the page's variables only."""
    svg = draw(curves, "x", log=log)
    assert ElementTree.fromstring(svg).tag == "svg"  # noqa: S314 - drawn in the line above
    assert "http" not in svg
    assert "<script" not in svg
    assert "<style" not in svg
    assert "DejaVu" not in svg
    assert paths(svg)
    assert "#0101" not in svg


def test_identifiers_do_not_clash():
    """Two drawings on a page share no identifier, and each refers to its own only."""
    first, second = draw([LINE], "a"), draw([LINE], "b")
    for svg, ident in ((first, "a"), (second, "b")):
        defined = set(re.findall(r' id="([^"]+)"', svg))
        used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used <= defined
        assert all(name.startswith(f"{ident}-") for name in defined)


def test_the_same_curves_give_the_same_text():
    """A report of an unchanged run is unchanged, byte for byte."""
    assert draw([LINE], "x") == draw([LINE], "x")


def test_settings_of_the_user_neither_enter_nor_change():
    """A matplotlibrc with LaTeX would fail on most machines; ours draws without it and leaves it as it was."""
    with mpl.rc_context({"text.usetex": True, "svg.fonttype": "path"}):
        svg = draw([LINE], "x")
        assert mpl.rcParams["text.usetex"] is True
        assert mpl.rcParams["svg.fonttype"] == "path"
    assert svg == draw([LINE], "x")


def test_a_trend_is_two_lines_from_twenty_points_on():
    """Raw and smoothed; fewer points are drawn as they are."""
    assert len(paths(draw([LINE], "x"))) == 2
    assert len(paths(draw([Curve("few", LINE.points[:19], look="trend")], "x"))) == 1


def test_a_single_step_has_its_own_tick():
    """Around one step matplotlib alone would write hundredths of steps."""
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", draw([Curve("one", [(7, 0.5)])], "x"))
    assert "7" in texts
    assert not any(text.startswith(("6.", "7.")) for text in texts)


def test_running_mean():
    """Width 3 over 0 3 gap 9: (0+3)/2, (0+3)/2, (3+9)/2, 9."""
    points = [(1, 0.0), (2, 3.0), (3, math.nan), (4, 9.0)]
    assert running_mean(points, 3) == [(1, 1.5), (2, 1.5), (3, 6.0), (4, 9.0)]
    assert all(math.isnan(value) for _, value in running_mean([(1, math.nan)], 3))


@pytest.mark.parametrize("count", [20, 33, 100, 1000])
def test_window_is_odd(count):
    """The point of a running mean lies in its middle."""
    assert window(count) % 2 == 1
    assert window(count) in (count // 10, count // 10 + 1)
