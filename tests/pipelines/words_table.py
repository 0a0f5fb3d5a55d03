"""Measures models that write words with both OCR engines; `python -m tests.pipelines.words_table runs/words_grpo`."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline

from flowrl.pipelines.words import world
from flowrl.reward import Reward, RewardBatch
from flowrl.rewards.ocr import OcrJudgeReward, OcrReward
from flowrl.rewards.ocr_ctc import OcrCtcReward

SIDE = 96
"""Both engines' detector side, which reads every clean word."""
MODEL = Path(str(files("flowrl.assets"))) / "words-sd3"


def load(folder: Path = MODEL) -> StableDiffusion3Pipeline:
    """The bundled model, or one in another folder, by diffusers alone."""
    pipe = StableDiffusion3Pipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe: StableDiffusion3Pipeline, words: list[str], first: int = 0) -> torch.Tensor:
    """Pictures `[B, 3, H, W]` of words, in 10 steps without guidance, with seeds that count up from ``first``."""
    parts = []
    for start in range(0, len(words), 32):
        part = words[start : start + 32]
        generators = [torch.Generator().manual_seed(first + start + index) for index in range(len(part))]
        call = {"num_inference_steps": 10, "guidance_scale": 1.0, "max_sequence_length": 10}
        prompts = [world.caption(word) for word in part]
        parts.append(pipe(prompts, generator=generators, output_type="np", **call).images)
    return torch.from_numpy(np.concatenate(parts)).permute(0, 3, 1, 2)


def scores(reward: Reward, images: torch.Tensor, words: list[str]) -> torch.Tensor:
    """The score of each picture `[B]`; 1 of an engine is an exact match."""
    return reward(RewardBatch(images, [world.caption(word) for word in words], [{}] * len(words)))


def measure(pipe: StableDiffusion3Pipeline, samples: int) -> dict[str, torch.Tensor]:
    """The scores `[words, samples]` of the held-out words, by each engine and by `ocr_ctc`."""
    words = [word for word in world.held_out_words() for _ in range(samples)]
    images = draw(pipe, words)
    rewards = [OcrReward(side=SIDE), OcrJudgeReward(side=SIDE), OcrCtcReward()]
    with torch.no_grad():
        return {reward.name: scores(reward, images, words).view(-1, samples) for reward in rewards}


def line(name: str, found: dict[str, torch.Tensor]) -> str:
    """A row: exact matches with their standard error over words, and mean scores, by each engine; mean `ocr_ctc`."""
    cells = [name]
    for engine in ("ocr", "ocr_judge"):
        score = found[engine]
        exact = (score == 1).float().mean(dim=1)
        cells += [f"{exact.mean():.3f} ± {exact.std() / len(exact) ** 0.5:.3f}", f"{score.mean():.3f}"]
    return f"| {' | '.join(cells)} | {found['ocr_ctc'].mean():.2f} |\n"


def main() -> None:
    """Print a line for the base model, and one for each adapter of a run that the command line names."""
    torch.set_num_threads(1)
    header = "| model | `ocr` exact | mean | `ocr_judge` exact | mean | `ocr_ctc` mean |\n"
    sys.stdout.write(header + "| --- " * 6 + "|\n")
    sys.stdout.write(line("base", measure(load(), samples=4)))
    for folder in sys.argv[1:]:
        pipe = load()
        pipe.load_lora_weights(Path(folder) / "adapter" / "ema")
        sys.stdout.write(line(folder, measure(pipe, samples=4)))


if __name__ == "__main__":
    main()
