"""The world of words: three dark capitals on a light ground, their captions and a renderer.

A caption is ``the word "CAT"``. A model is trained on random strings of three letters, and has to put letters together
that it has seen apart: the words of :func:`held_out_words` are in no picture that it was trained on, and in no prompt
for RL training.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...data import sample_seed

SIZE = 32
"""Side of a picture in pixels: the smallest of 32, 40 and 48, and both OCR engines read every clean word at it."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 3
HELD_OUT = 64
"""How many of the words are held out."""
_LISTED = """
ACE ACT ADD AGE AID AIM AIR ALE ANT APE ARC ARK ARM ART ASH ASK BAD BAG BAN BAR BAT BAY BED BEE BEG BET BID BIG BIN
BIT BOW BOX BOY BUD BUG BUN BUS BUY CAB CAN CAP CAR CAT COD COG COT COW CRY CUB CUE CUP CUT DAM DAY DEN DEW DIG DIM
DIP DOE DOG DOT DRY DUE DUG EAR EAT EEL EGG ELF ELK ELM END ERA EVE EWE EYE FAN FAR FAT FEE FEW FIG FIN FIR FIT FIX
FLY FOG FOX FUN FUR GAP GAS GEL GEM GET GUM GUY HAM HAT HAY HEN HID HIP HIT HOG HOP HOT HUB HUG HUT ICE INK INN IVY
JAM JAR JAW JAY JET JOB JOG JOY JUG KEY KID KIT LAB LAD LAP LAW LAY LEG LET LID LIP LOG LOT LOW MAN MAP MAT MAY MEN
MET MIX MOP MUD MUG NAP NET NEW NOD NOW NUT OAK OAR OAT OIL OLD ONE OUR OUT OWL OWN PAD PAN PAW PAY PEA PEG PEN PET
PIE PIG PIN PIT POD POT PUB PUP RAG RAM RAT RAW RAY RED RIB RIM ROD ROW RUB RUG RUN RYE SAD SAP SAW SAY SEA SET SHE
SHY SIP SIT SIX SKI SKY SON SPA SUM SUN TAB TAG TAP TAR TAX TEA TEN TIE TIN TIP TOE TON TOP TOY TUB TUG TWO URN USE
VAN VAT VET VOW WAG WAX WAY WEB WET WHO WHY WIG WIN WIT YAK YAM YES YET YOU ZIP ZOO
"""
WORDS: tuple[str, ...] = tuple(_LISTED.split())
"""Words that people know."""

_CAPTION = re.compile(f'the word "([A-Za-z]{{{LENGTH}}})"', re.IGNORECASE)


def caption(word: str) -> str:
    """Write the caption of a word.

    >>> caption("CAT")
    'the word "CAT"'
    """
    return f'the word "{word}"'


def parse(text: str) -> str:
    """Read a caption back: the word, in capitals.

    Raises:
        ValueError: the text is not a caption of this world; the message shows one.

    >>> parse('the word "cat"')
    'CAT'
    """
    match = _CAPTION.fullmatch(" ".join(text.split()).rstrip("."))
    if match is None:
        raise ValueError(f'{text!r} is not a caption of the world of words. Write three letters: the word "CAT"')
    return match[1].upper()


@cache
def shuffled_words() -> tuple[str, ...]:
    """All words in the order of their hashes, which looks random and is the same everywhere."""
    return tuple(sorted(WORDS, key=lambda word: sample_seed("words", word)))


def held_out_words() -> tuple[str, ...]:
    """The words that neither the bundled model nor a run of RL training has seen; :data:`HELD_OUT` of them."""
    return shuffled_words()[:HELD_OUT]


def train_words() -> tuple[str, ...]:
    """The other words, for RL training."""
    return shuffled_words()[HELD_OUT:]


def sample_word(rng: np.random.Generator) -> str:
    """Draw three letters, uniform over all strings but the held-out words.

    >>> sample_word(np.random.default_rng(0))
    'WQN'
    """
    while True:
        word = "".join(LETTERS[index] for index in rng.integers(len(LETTERS), size=LENGTH))
        if word not in held_out_words():
            return word


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """The bold fixed-width face that comes with matplotlib, so that it is the same everywhere."""
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono-Bold.ttf", size)


def render(word: str, rng: np.random.Generator, scale: int = 4) -> np.ndarray:
    """Draw a word near the middle, at a random place within two pixels, uint8 `[SIZE, SIZE, 3]`.

    >>> render("CAT", np.random.default_rng(0)).shape
    (32, 32, 3)
    """
    place = (SIZE / 2 + rng.uniform((-1, -2), (1, 2))) * scale
    ground, ink = int(rng.integers(215, 250)), int(rng.integers(10, 50))
    picture = Image.new("L", (SIZE * scale, SIZE * scale), ground)
    # 17 px: letters are 10.2 px wide, so that three of them fit.
    ImageDraw.Draw(picture).text(tuple(place), word, fill=ink, font=_font(17 * scale), anchor="mm")
    small = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX))
    return np.repeat(small[..., None], 3, axis=-1)
