"""Draws curves as SVG that lives inside a page: no script, no outside file, colours from the page's CSS variables.

No text of a user reaches the drawing: titles and legends are the page's, which escapes and wraps them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from .metrics import Points
from .wording import number

WIDTH, HEIGHT = 340, 190
"""Size of a drawing in points; the page scales it to its column."""
COLOURS = 5
"""How many lines of one drawing differ in colour; the page's CSS has as many variables ``--series-N``."""

# Stand-ins that become CSS variables after drawing, so that one drawing serves the light and the dark page.
_VARIABLES = {
    "#010100": "var(--muted)",
    "#010101": "var(--line)",
    **{f"#0101{10 + i}": f"var(--series-{i})" for i in range(COLOURS)},
}
_MUTED, _LINE = "#010100", "#010101"


@dataclass(frozen=True)
class Curve:
    """One line of a drawing.

    Attributes:
        label: what the legend calls it.
        points: its values; NaN leaves a gap.
        colour: which of the page's series colours, 0 to ``COLOURS - 1``.
        look: ``line``; ``dots`` (a line with its points marked); ``trend`` (the values faint, their running mean over
            them); ``limit`` (dashed, without an entry in the legend of values).
    """

    label: str
    points: Points
    colour: int = 0
    look: Literal["line", "dots", "trend", "limit"] = "line"


def window(count: int) -> int:
    """Width of the running mean over so many points: a tenth, odd, and 1 (none) below 20 points.

    >>> window(12), window(40), window(100)
    (1, 5, 11)
    """
    return 1 if count < 20 else (count // 10) | 1


def running_mean(points: Points, width: int) -> Points:
    """Mean over ``width`` neighbours, the point in the middle; at the ends over those that are there.

    Args:
        points: the curve; NaN is left out of every mean.
        width: an odd number.

    >>> running_mean([(1, 1.0), (2, 4.0), (3, 1.0)], 3)
    [(1, 2.5), (2, 2.0), (3, 2.5)]
    """
    smooth: Points = []
    for place, (step, _) in enumerate(points):
        near = points[max(0, place - width // 2) : place + width // 2 + 1]
        values = [value for _, value in near if math.isfinite(value)]
        smooth.append((step, sum(values) / len(values) if values else math.nan))
    return smooth


def _stroke(curve: Curve) -> str:
    return f"#0101{10 + curve.colour % COLOURS}"


def _plot(axes: Axes, curve: Curve) -> None:
    """Draw one curve."""
    steps, values = [step for step, _ in curve.points], [value for _, value in curve.points]
    alone = sum(map(math.isfinite, values)) == 1
    if curve.look == "limit":
        axes.plot(steps, values, color=_MUTED, linewidth=1, dashes=(4, 3))
    elif curve.look == "trend" and window(len(values)) > 1:
        axes.plot(steps, values, color=_stroke(curve), linewidth=1, alpha=0.4)
        smooth = running_mean(curve.points, window(len(values)))
        axes.plot(steps, [value for _, value in smooth], color=_stroke(curve), linewidth=2)
    else:
        marked = alone or (curve.look == "dots" and len(values) <= 40)
        axes.plot(steps, values, color=_stroke(curve), linewidth=2, marker="o" if marked else "", markersize=5)


def _style(axes: Axes, *, log: bool) -> None:
    """Horizontal lines and numbers only: the fewest marks that let a value be read off."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_LINE)
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=11, labelcolor=_MUTED, pad=6)
    axes.margins(x=0.02, y=0.08)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    # Four digits: neighbouring ticks of a nearly constant curve must not read the same.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))
    axes.set_xlabel("step", loc="right", fontsize=11, color=_MUTED, labelpad=2)


@contextmanager
def _plain_settings() -> Iterator[None]:
    """Matplotlib's own defaults, whatever the user's matplotlibrc says, and text that stays text."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "flowrl", "text.parse_math": False})
        yield


def _restyle(style: str) -> str:
    """A style attribute with the page's colours, and the page's font instead of a list of fonts."""
    for stand_in, variable in _VARIABLES.items():
        style = style.replace(stand_in, variable)
    parts = [part.strip() for part in style.split(";") if part.strip() and not part.strip().startswith("font-family:")]
    # Older releases of matplotlib write the short form, `font: 11px 'DejaVu Sans', ...`.
    return "; ".join(f"font-size: {part.split()[1]}" if part.startswith("font:") else part for part in parts)


def _attribute(name: str, value: str, ident: str) -> str:
    """An attribute's value with the page's style, and identifiers that start with ``ident``."""
    if name == "style":
        value = _restyle(value)
    elif name == "id":
        return f"{ident}-{value}"
    elif name == "href":
        return f"#{ident}-{value.removeprefix('#')}"
    return value.replace("url(#", f"url(#{ident}-")


def _inline(drawing: str, ident: str) -> str:
    """Turn an SVG file into an element of a page: no name spaces, no metadata, identifiers of its own."""
    root = ElementTree.fromstring(drawing)  # noqa: S314 - drawn by us a moment ago, not a file from elsewhere
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        # Metadata links to matplotlib.org; the style sheet in <defs> would apply to the whole page.
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
        for name, value in list(parent.attrib.items()):
            del parent.attrib[name]
            plain = name.rpartition("}")[2]
            parent.set(plain, _attribute(plain, value, ident))
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("aria-hidden", "true")
    return ElementTree.tostring(root, encoding="unicode")


def draw(curves: Sequence[Curve], ident: str, *, log: bool = False) -> str:
    """Draw curves over steps.

    Args:
        curves: what to draw, later ones on top.
        ident: a word that no other drawing of the page has; it starts every identifier inside.
        log: a logarithmic axis of values, which must be positive.

    Returns:
        An ``<svg>`` element to put into a page. The same curves give the same text.

    >>> draw([Curve("loss", [(1, 0.5), (2, 0.25)])], "loss")[:4]
    '<svg'
    """
    with _plain_settings():
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for curve in curves:
            _plot(axes, curve)
        _style(axes, log=log)
        steps = {step for curve in curves for step, _ in curve.points}
        if len(steps) == 1:
            axes.set_xticks(list(steps))  # around a single step matplotlib would count in hundredths
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), ident)
