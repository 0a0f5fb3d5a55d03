"""Numbers and texts for people."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.report.wording import MINUS, MISSING, duration, number, printable, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234, "0.123"),
        (999.4, "999"),
        (999.6, "1,000"),  # three digits would be 1e+03
        (91_000, "91,000"),
        (3e9, "3e+09"),
        (-0.05, f"{MINUS}0.05"),
        (-0.0, "0"),  # no sign
        (1e-12, "1e-12"),
        (math.inf, "inf"),
        (math.nan, MISSING),
        (None, MISSING),
    ],
)
def test_number(value, text):
    """Three digits that count, thousands apart, a real minus sign, a dash for what is missing."""
    assert number(value) == text


def test_signed():
    """A gain shows its plus; zero has no sign."""
    assert [signed(x) for x in (0.5, -0.5, 0.0, None)] == ["+0.5", f"{MINUS}0.5", "0", MISSING]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (59.7, "60 s"), (60, "1 min 00 s"), (3599.6, "1 h 00 min"), (90_000, "25 h 00 min")],
)
def test_duration(seconds, text):
    """The two largest units; a rounding up never gives 60 seconds of a minute."""
    assert duration(seconds) == text


@given(st.text(alphabet=st.characters(codec=None)))
def test_printable_text_can_be_written_on_one_line(text):
    """Whatever comes in, what goes out encodes, and holds neither control characters nor changes of direction."""
    clean = printable(text)
    clean.encode("utf-8")
    assert "\n" not in clean
    bad = {c for c in clean if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert bad <= {"\u200c", "\u200d"}  # the joiners that emoji and Indic words need


def test_printable_keeps_joined_characters():
    """An emoji of several parts stays one emoji."""
    assert printable("an \U0001f469\u200d\U0001f680") == "an \U0001f469\u200d\U0001f680"
