"""Measures the OCR reward on rendered words: ``python -m tests.rewards.ocr_table`` prints the table of its page."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from flowrl.reward import RewardBatch
from flowrl.rewards.ocr import ENGINES, OcrReward

FONTS = sorted(f for f in (Path(mpl.get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf") if "Display" not in f.name)
WORDS = [
    "garden", "winter", "bridge", "silver", "market", "orange", "planet",
    "yellow", "castle", "window", "forest", "summer", "dinner", "school",
    "flight", "rocket", "coffee", "island", "violet", "hammer",
]  # fmt: skip
INKS = (((20, 20, 60), (240, 240, 230)), ((250, 240, 90), (30, 60, 40)), ((150, 20, 30), (200, 210, 220)))


def rendered(word: str, font: Path, side: int, *, ink: int = 0, blur: float = 0.0) -> torch.Tensor:
    """A picture `[3, side, side]` of a word, four fifths as wide; ``blur`` in pixels at 256."""
    colour, ground = INKS[ink]
    picture = Image.new("RGB", (side, side), ground)
    draw = ImageDraw.Draw(picture)
    size = next(s for s in range(side // 3, 4, -1) if draw.textlength(word, ImageFont.truetype(font, s)) <= 0.8 * side)
    draw.text((side / 2, side / 2), word, fill=colour, font=ImageFont.truetype(font, size), anchor="mm")
    picture = picture.filter(ImageFilter.GaussianBlur(blur * side / 256))
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


def scores(reward: OcrReward, side: int, *, blur: float = 0.0, count: int = 60) -> torch.Tensor:
    """The scores `[count]` of words in turn over words, fonts and colours."""
    words = [WORDS[index % len(WORDS)] for index in range(count)]
    images = [
        rendered(word, FONTS[index % len(FONTS)], side, ink=index % len(INKS), blur=blur)
        for index, word in enumerate(words)
    ]
    return reward(RewardBatch(torch.stack(images), [f'"{word}"' for word in words], [{}] * count))


def main() -> None:
    """Print one line an engine and side: words read exactly, mean score, milliseconds of processor time."""
    torch.set_num_threads(1)
    sys.stdout.write(
        "| engine | side | blur | exact | mean score | ms a picture |\n| --- | --- | --- | --- | --- | --- |\n"
    )
    for engine in ENGINES:
        reward = OcrReward(engine)
        for side, blur in [(64, 0), (128, 0), (256, 0), (512, 0), (256, 2), (256, 4), (256, 8), (256, 12), (256, 20)]:
            start = time.process_time()
            found = scores(reward, side, blur=blur)
            cost = (time.process_time() - start) / len(found) * 1000
            exact = (found == 1).float().mean()
            sys.stdout.write(f"| `{engine}` | {side} | {blur} | {exact:.3f} | {found.mean():.3f} | {cost:.0f} |\n")


if __name__ == "__main__":
    main()
