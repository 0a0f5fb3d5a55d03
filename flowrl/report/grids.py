"""The picture of before and after: pairs in a grid, prompt above, scores below, what changed in colour and in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont

from ..media import read_frames
from .pairs import Outcome, Pair, Pairing, spread
from .pictures import MAX_FRAMES, fit, thin
from .wording import number, printable

SIDE = 144
"""Side in pixels of the square that holds a picture."""
COLUMNS = 4
MAX_PAIRS = 16

_GAP, _MARGIN, _CAPTION, _FOOT, _HEAD = 10, 28, 44, 40, 74
_ACROSS, _DOWN = 36, 24
_INK, _MUTED, _PAPER, _PANEL = "#1c2024", "#68707a", "#ffffff", "#f3f4f6"
_GREEN, _RED = "#1a7f4b", "#c2352b"
_COLOURS = {
    Outcome.FIXED: _GREEN,
    Outcome.BETTER: _GREEN,
    Outcome.BROKEN: _RED,
    Outcome.WORSE: _RED,
}


@lru_cache(maxsize=8)
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings: the same letters on every machine, and most of the world's alphabets."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / name, size)


def wrap(text: str, font: ImageFont.FreeTypeFont, width: int, lines: int) -> list[str]:
    """Break a text into at most ``lines`` lines of ``width`` pixels; what is too long ends in an ellipsis."""
    broken: list[str] = []
    rest = printable(text)
    while rest and len(broken) < lines:
        end = len(rest)
        while end > 1 and font.getlength(rest[:end]) > width:
            end = rest.rfind(" ", 1, end) if " " in rest[1:end] else end - 1
        broken.append(rest[:end])
        rest = rest[end:].strip()
    if rest:
        final = broken[-1]
        while final and font.getlength(final + "\u2026") > width:
            final = final[:-1]
        broken[-1] = final.rstrip() + "\u2026"
    return broken


def _paste(sheet: Image.Image, picture: Image.Image, x: int, y: int) -> None:
    """Put a picture into the middle of its square."""
    fitted = fit(picture, SIDE)
    sheet.paste(fitted, (x + (SIDE - fitted.width) // 2, y + (SIDE - fitted.height) // 2))


def _cell(sheet: Image.Image, pair: Pair, pictures: tuple[Image.Image, Image.Image], corner: tuple[int, int]) -> None:
    """Draw one pair: caption, the two pictures, the scores, the outcome."""
    draw, (x, y) = ImageDraw.Draw(sheet), corner
    width = 2 * SIDE + _GAP
    top = y + _CAPTION
    for place, line in enumerate(reversed(wrap(pair.before.prompt, _font(14), width, 2))):
        draw.text((x, top - 25 - place * 19), line, fill=_INK, font=_font(14))
    colour = _COLOURS.get(pair.outcome, _MUTED)
    for place, picture in enumerate(pictures):
        left = x + place * (SIDE + _GAP)
        draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), fill=_PANEL)
        _paste(sheet, picture, left, top)
    if pair.outcome in _COLOURS:
        left = x + SIDE + _GAP
        draw.rectangle((left - 3, top - 3, left + SIDE + 2, top + SIDE + 2), outline=colour, width=3)
    words = f"{pair.outcome.mark} {pair.outcome.label}"
    draw.text((x + SIDE + _GAP, top + SIDE + 8), words, fill=colour, font=_font(13, bold=pair.outcome in _COLOURS))


def _scores(sheet: Image.Image, pair: Pair, reward: str, corner: tuple[int, int]) -> None:
    """Write the two scores, the second one at the right end, where the outcome leaves room."""
    draw, (x, y) = ImageDraw.Draw(sheet), corner
    foot = y + _CAPTION + SIDE + 8
    before, after = (number(sample.scores.get(reward)) for sample in (pair.before, pair.after))
    draw.text((x, foot), before, fill=_MUTED, font=_font(13))
    draw.text((x + 2 * SIDE + _GAP, foot), after, fill=_INK, font=_font(13, bold=True), anchor="ra")


def _heading(sheet: Image.Image, pairing: Pairing, title: str) -> None:
    """Write the title, what left and right are, and the count of every outcome over all pairs."""
    sides = f"left: {pairing.before.label}, right: {pairing.after.label}; same prompt, same noise"
    counts = ", ".join(f"{count} {outcome.label}" for outcome, count in pairing.tally().items())
    lines = [(title, 17, _INK), (sides, 13, _MUTED)]
    if pairing.reward is not None:
        lines.append((f"{pairing.reward}, of all {len(pairing.pairs)} pairs: {counts}", 13, _MUTED))
    draw, y = ImageDraw.Draw(sheet), _MARGIN - 4
    for text, size, colour in lines:
        font = _font(size, bold=size > 13)
        draw.text((_MARGIN, y), "".join(wrap(text, font, sheet.width - 2 * _MARGIN, 1)), fill=colour, font=font)
        y += size + 9


def draw_grid(pairing: Pairing, title: str, count: int = MAX_PAIRS) -> list[Image.Image]:
    """Draw pairs of pictures; of clips, a sheet for every frame.

    Args:
        pairing: the pairs; those whose files cannot be read are left out.
        title: one line above the grid.
        count: how many pairs at most, spread evenly over all, so that no score decides who is shown.

    Returns:
        The sheets, of one size; none if no pair can be read.
    """
    opened = [
        (pair, (before[0], after[0]))
        for pair in spread(pairing.pairs, count)
        if (before := read_frames(pair.before.file)) and (after := read_frames(pair.after.file))
    ]
    longest = max((len(frames) for _, clips in opened for frames in clips), default=0)
    moments = thin(range(longest), MAX_FRAMES)
    return [_sheet(pairing, title, [(pair, _at(clips, moment)) for pair, clips in opened]) for moment in moments]


def _at(clips: tuple[list[Image.Image], list[Image.Image]], moment: int) -> tuple[Image.Image, Image.Image]:
    """The frames of a moment; a clip that is over shows its last."""
    before, after = (frames[min(moment, len(frames) - 1)] for frames in clips)
    return before, after


def _sheet(pairing: Pairing, title: str, shown: Sequence[tuple[Pair, tuple[Image.Image, Image.Image]]]) -> Image.Image:
    """Draw one picture of each pair in a grid."""
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    across, down = 2 * SIDE + _GAP + _ACROSS, _CAPTION + SIDE + _FOOT + _DOWN
    size = (2 * _MARGIN + columns * across - _ACROSS, 2 * _MARGIN + _HEAD + rows * down - _DOWN)
    sheet = Image.new("RGB", size, _PAPER)
    _heading(sheet, pairing, title)
    for place, (pair, pictures) in enumerate(shown):
        corner = (_MARGIN + place % columns * across, _MARGIN + _HEAD + place // columns * down)
        _cell(sheet, pair, pictures, corner)
        if pairing.reward is not None:
            _scores(sheet, pair, pairing.reward, corner)
    return sheet
