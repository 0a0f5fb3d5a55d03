"""Climbs `ocr_ctc` in the pixels of words, and reads the result with both engines: a table of ``docs/words.md``.

Run it as ``python -m tests.pipelines.words_ascent``.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from flowrl.pipelines.shapes.train import to_tensor
from flowrl.pipelines.words import world
from flowrl.rewards.ocr import OcrJudgeReward, OcrReward
from flowrl.rewards.ocr_ctc import OcrCtcReward

from .words_table import SIDE, scores

STEPS, STEP = 40, 0.02


def climb(reward: OcrCtcReward, images: Tensor, words: list[str], *, reach: float) -> Tensor:
    """Go up the sign of the reward's gradient, no pixel further than ``reach`` from where it was; `[B, 3, H, W]`."""
    low, high = (images - reach).clamp(min=0), (images + reach).clamp(max=1)
    found = images.clone()
    for _ in range(STEPS):
        found.requires_grad_(True)
        (gradient,) = torch.autograd.grad(scores(reward, found, words).sum(), found)
        found = torch.minimum(torch.maximum(found.detach() + STEP * gradient.sign(), low), high)
    return found


def starts(words: list[str]) -> dict[str, Tensor]:
    """Pictures to start from, none of which shows the word: of the next word, and of noise."""
    rng = np.random.default_rng(0)
    others = to_tensor([world.render(word, rng) for word in words[1:] + words[:1]]) / 2 + 0.5
    noise = torch.rand(others.shape, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.6
    return {"another word": others, "noise": noise}


def main() -> None:
    """Print a line for each start, before and after."""
    torch.set_num_threads(1)
    words = list(world.held_out_words()[:32])
    reward, engines = OcrCtcReward(), [OcrReward(side=SIDE), OcrJudgeReward(side=SIDE)]
    sys.stdout.write(
        "| start | reach | `ocr_ctc` | `ocr` exact | `ocr_judge` exact |\n| --- | --- | --- | --- | --- |\n"
    )
    for name, images in starts(words).items():
        for reach in (0.0, 0.1, 0.3):
            shown = climb(reward, images, words, reach=reach) if reach else images
            with torch.no_grad():
                likely = scores(reward, shown, words).mean()
            exact = [(scores(engine, shown, words) == 1).float().mean() for engine in engines]
            sys.stdout.write(f"| {name} | {reach} | {likely:.2f} | {exact[0]:.3f} | {exact[1]:.3f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
