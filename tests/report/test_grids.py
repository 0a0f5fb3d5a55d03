"""The grid of before and after."""

import numpy as np
import pytest
from PIL import ImageFont

from flowrl.report.folder import read_run
from flowrl.report.grids import SIDE, _font, draw_grid, wrap
from flowrl.report.table import first_and_last


@pytest.fixture
def pairing(run):
    """The pairs of the run with hostile prompts."""
    return first_and_last(read_run(run))


def has_colour(grid, colour):
    """Whether some pixel has exactly this colour."""
    return bool((np.asarray(grid) == np.array(colour)).all(axis=-1).any())


def test_a_grid_has_four_columns(pairing):
    """One, five and sixteen pairs: one column, then four; rows as needed."""
    one, five, sixteen = (draw_grid(pairing, "run", count)[0].size for count in (1, 5, 16))
    assert one[0] < five[0] == sixteen[0]
    assert one[1] < five[1] < sixteen[1]
    assert five[0] > 8 * SIDE


def test_pictures_are_shown_in_whole_pixels(pairing):
    """A 48-pixel picture fills its square of 144 with squares of three pixels."""
    grid = np.asarray(draw_grid(pairing, "run", 1)[0])
    (row, column), *_ = np.argwhere((grid == np.array([0xF3, 0xF4, 0xF6])).all(axis=-1)).tolist() or [(None, None)]
    assert row is None, f"the panel shows through at {row}, {column}: the picture does not fill its square"


def test_gains_are_framed_green_and_losses_red(pairing):
    """The frame's colours are there exactly when such pairs are."""
    (grid,) = draw_grid(pairing, "run")
    assert has_colour(grid, (0x1A, 0x7F, 0x4B))
    assert has_colour(grid, (0xC2, 0x35, 0x2B))
    (only_right,) = draw_grid(pairing, "run", 1)
    assert not has_colour(only_right, (0x1A, 0x7F, 0x4B))
    assert not has_colour(only_right, (0xC2, 0x35, 0x2B))


def test_unreadable_pictures_are_left_out(pairing):
    """A pair with one broken file is skipped; without any pair there is no grid."""
    whole = draw_grid(pairing, "run", 2)[0].size
    pairing.pairs[0].after.file.write_bytes(b"cut")
    assert draw_grid(pairing, "run", 2)[0].size[0] < whole[0]
    for pair in pairing.pairs:
        pair.before.file.unlink()
    assert draw_grid(pairing, "run") == []


def test_wrap_breaks_at_spaces_and_ends_in_an_ellipsis():
    """No line is wider than asked, no word is lost before the ellipsis."""
    font = _font(14)
    assert isinstance(font, ImageFont.FreeTypeFont)
    lines = wrap("three green circles left of a yellow cross and much more that nobody reads", font, 150, 2)
    assert len(lines) == 2
    assert all(font.getlength(line) <= 150 for line in lines)
    assert lines[0] in "three green circles left"
    assert lines[1].endswith("\u2026")


@pytest.mark.parametrize("text", ["", "x" * 400, "\ud800\n\u202e", "a " * 300])
def test_wrap_of_odd_texts(text):
    """Nothing at all, one endless word, unprintable characters: at most two lines that fit."""
    lines = wrap(text, _font(14), 100, 2)
    assert len(lines) <= 2
    assert all(_font(14).getlength(line) <= 100 for line in lines)


def test_a_word_wider_than_the_line_is_cut_without_loss():
    """With room enough the pieces are the word again."""
    assert "".join(wrap("abcdefghijklmnopqrstuvwxyz", _font(14), 60, 9)) == "abcdefghijklmnopqrstuvwxyz"
