"""A run folder as the trainer leaves it, made in a moment and without a model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from flowrl.pipelines.shapes import world
from flowrl.report import write_report

HOSTILE = '<script>document.title="hacked"</script>'
ODD = [
    HOSTILE,
    '"><img src=x onerror=\'document.title="hacked"\'>',
    "{{ 7 * 7 }} {% raw %} ${7*7} $x_1^2$",
    "\u202eright to left\u202c, then\nanother line\x00",
    "\ud800 alone, \U0001f469\u200d\U0001f680 and \u4e09\u4e2a\u5706, \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
]
"""Prompts that would take over, break or blow up a careless page."""

CAPTIONS = ["a red square", "three green circles", "a blue cross left of a red circle", "two orange circles"]
REWARDS = [
    {"name": "shapes", "weight": 1.0, "higher_is_better": True, "range": [0.0, 1.0], "source": "procedural"},
    {"name": "my/rewards.py:<b>size</b>", "weight": 0.1, "higher_is_better": False, "range": [None, None]},
]
SIZE = REWARDS[1]["name"]


def picture(caption: str, seed: int) -> Image.Image:
    """A small picture; for the odd prompts, one of some other caption."""
    scene = world.parse(caption if caption in CAPTIONS else "a yellow triangle")
    return Image.fromarray(world.render(scene, np.random.default_rng(seed)))


def right(place: int, step: int) -> bool:
    """Whether a sample is right at a step. Of ten in a row: three always, four from step 20 on, one no longer."""
    return place % 10 in (0, 1, 2, 3, 4, 5, 6) if step >= 20 else place % 10 in (0, 1, 2, 7)


def write_evaluation(folder: Path, step: int, prompts: list[str], samples_per_prompt: int) -> None:
    """The pictures of one evaluation and their list."""
    place = folder / "samples" / f"step_{step:06d}"
    place.mkdir(parents=True)
    entries = []
    for row, prompt in enumerate(prompts):
        for sample in range(samples_per_prompt):
            number = len(entries)
            good = right(number, step)
            picture(prompt if good else "a yellow triangle", 100 * row + sample).save(place / f"{number:03d}.png")
            entries.append(
                {
                    "file": f"{number:03d}.png",
                    "prompt": prompt,
                    "row": row,
                    "sample": sample,
                    "seed": 1000 + number,
                    "scores": {"shapes": float(good), SIZE: None if number == 3 else 2.5 - step / 40},
                }
            )
    (place / "prompts.json").write_text(json.dumps(entries), encoding="utf-8")


def write_metrics(folder: Path, last_step: int, evaluations: list[int], samples: int) -> None:
    """A log: step 0 holds the evaluation of the base model alone."""
    rng = np.random.default_rng(0)
    lines = []
    for step in range(last_step + 1):
        line: dict[str, float | None] = {"step": float(step), "time": 2.0 + 3 * step, "denoiser_calls": 640 * step + 80}
        share = step / max(last_step, 1)
        if step:
            line |= {
                "reward/mean": 0.4 + 0.4 * share + 0.02 * rng.normal(),
                "reward/shapes/mean": 0.5 + 0.3 * share + 0.02 * rng.normal(),
                f"reward/{SIZE}/mean": 2.5 - 0.5 * share,
                "loss": 1.0 - 0.3 * share,
                "grad_norm": 0.2 + 0.01 * rng.random(),
                "kl": 0.001 * step,
                "seconds/rollout": 1.5,
                "seconds/update": 1.0,
            }
        if step in evaluations:
            line |= {
                "eval/shapes/mean": float(np.mean([right(place, step) for place in range(samples)])),
                f"eval/{SIZE}/mean": 2.5 - step / 40,
                "eval/diversity": 0.5 - 0.001 * step,
            }
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_run(folder: Path, last_step: int = 40, prompts: list[str] | None = None, samples_per_prompt: int = 2) -> Path:
    """A run of 40 steps, evaluated every 20, that got as far as ``last_step``."""
    folder.mkdir(parents=True)
    config = {
        "output": str(folder.name),
        "seed": 0,
        "max_steps": 40,
        "prompts": "shapes_train",
        "model": {"path": "shapes-sd3"},
        "policy": {"kernel": "flow_sde", "steps": 10, "guidance_scale": 4.5},
        "rewards": {"shapes": 1.0},
        "objective": {"name": "nft"},
        "eval": {"every": 20, "prompts": "shapes_heldout"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    environment = {"python": "3.11.7", "packages": {"torch": "2.6.0"}, "devices": ["cpu"], "rewards": REWARDS}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    evaluations = [step for step in (0, 20, 40) if step <= last_step]
    prompts = prompts or [*CAPTIONS, *ODD]
    write_metrics(folder, last_step, evaluations, len(prompts) * samples_per_prompt)
    for step in evaluations:
        write_evaluation(folder, step, prompts, samples_per_prompt)
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`write_run` into an empty folder of its own."""
    return lambda **options: write_run(tmp_path / "runs" / "shapes <i>nft", **options)


@pytest.fixture
def run(make_run: Callable[..., Path]) -> Path:
    """A finished run, hostile prompts included."""
    return make_run()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and its report, for tests that only read them."""
    folder = write_run(tmp_path_factory.mktemp("finished") / "shapes <i>nft")
    write_report(folder)
    return folder


@pytest.fixture
def odd() -> list[str]:
    """The hostile and odd prompts of `run`, the script first."""
    return list(ODD)
