"""Numbers and texts as a person reads them."""

from __future__ import annotations

import math
import unicodedata

MINUS = "\u2212"
"""The minus sign, as wide as the plus: columns of changes line up."""
MISSING = "\u2014"
"""What stands where a value is missing."""


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with so many significant digits, thousands apart, and a dash for what is missing.

    Args:
        value: any number; None and NaN are missing.
        digits: significant digits; numbers with more of them before the point are written out to the unit.

    >>> number(0.78125), number(12345.6), number(None), number(4.2e-05), number(1.0), number(0.0)
    ('0.781', '12,346', '—', '4.2e-05', '1', '0')
    """
    if value is None or math.isnan(value):
        return MISSING
    value += 0.0  # minus zero becomes zero
    # From 999.5 on, three digits would be written as 1e+03.
    if math.isinf(value) or 10**digits - 0.5 <= abs(value) < 1e9:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", MINUS, 1) if value < 0 else text


def signed(value: float | None) -> str:
    """Write a change: a number with its sign.

    >>> signed(0.28), signed(0.0), signed(None)
    ('+0.28', '0', '—')
    """
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def duration(seconds: float | None) -> str:
    """Write a time span in its two largest units.

    >>> duration(4.25), duration(67), duration(3725), duration(None)
    ('4.2 s', '1 min 07 s', '1 h 02 min', '—')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: str) -> str:
    r"""Make a text safe to lay out on one line: no control characters, no direction marks, no lone surrogates.

    A prompt file can hold anything. A lone surrogate cannot be encoded, a right-to-left override would turn the rest
    of the line around, a newline would break the layout of a picture.

    >>> printable("a\nred\u202e circle \ud800!")
    'a red circle ?!'
    """
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    # Zero-width joiners (category Cf as well) stay: they hold emoji and Indic words together.
    kept = (c if c in "\u200c\u200d" or unicodedata.category(c) not in ("Cc", "Cf") else " " for c in encodable)
    return " ".join("".join(kept).split())
