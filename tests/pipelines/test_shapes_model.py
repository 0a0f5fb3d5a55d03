"""The bundled models: genuine and small; and ``assets/shapes-sd3``: believable and imperfect."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from flowrl.data import load_prompts
from flowrl.pipelines.shapes import train, world
from flowrl.rewards.shapes import judge

ASSETS = Path(str(files("flowrl.assets")))
FOLDER = ASSETS / "shapes-sd3"
MODELS = [path.parent for path in sorted(ASSETS.glob("*/model_index.json"))]
each_model = pytest.mark.parametrize("folder", MODELS, ids=[path.name for path in MODELS])


@pytest.fixture(scope="module")
def pipe():
    """The bundled pipeline, by diffusers alone."""
    loaded = StableDiffusion3Pipeline.from_pretrained(FOLDER)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def _strict(pictures: np.ndarray, prompts: list[str]) -> float:
    return float(np.mean([judge(picture, prompt)[0] for picture, prompt in zip(pictures, prompts, strict=True)]))


def _draw(pipe, prompts: list[str], **call) -> np.ndarray:
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(prompts))]
    return pipe(prompts, num_inference_steps=10, generator=generators, output_type="np", **call).images


@each_model
def test_it_is_small_and_safe(folder):
    """At most 16 MB, weights in safetensors, nothing pickled."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in paths) <= 16 * 2**20
    assert {path.suffix for path in paths} <= {".json", ".safetensors", ".csv", ".txt"}


@each_model
def test_it_is_a_genuine_pipeline(folder):
    """Diffusers' own classes, nothing that needs remote code, and no trace of the folder where it was trained."""
    index = json.loads((folder / "model_index.json").read_text())
    assert getattr(diffusers, index["_class_name"]).__name__ == index["_class_name"]
    assert {value[0] for value in index.values() if isinstance(value, list)} <= {"diffusers", "transformers", None}
    for path in folder.rglob("*.json"):
        assert '_name_or_path": "/' not in path.read_text(encoding="utf-8"), path


@each_model
def test_its_training_log_falls(folder):
    """The loss of every stage fell to less than a third."""
    rows = list(csv.DictReader((folder / "training_log.csv").read_text().splitlines()))
    for stage in {row["stage"] for row in rows}:
        losses = [float(row["loss"]) for row in rows if row["stage"] == stage]
        assert len(losses) > 10
        assert losses[-1] < losses[0] / 3


def test_the_vae_is_not_the_ceiling(pipe):
    """Rendered truths pass the judge at 0.97 or more after a round trip through the autoencoder."""
    rng = np.random.default_rng(0)
    scenes = [world.sample_scene(rng) for _ in range(500)]
    pictures = train.to_tensor([world.render(scene, rng) for scene in scenes])
    with torch.no_grad():
        restored = [pipe.vae.decode(pipe.vae.encode(part).latent_dist.mean).sample for part in pictures.split(100)]
    images = (torch.cat(restored) / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    assert _strict(images, [world.caption(scene) for scene in scenes]) >= 0.97


def test_it_is_believable_and_imperfect(pipe):
    """Strict accuracy on held-out prompts with 10 steps is between 0.35 and 0.65."""
    prompts = [row.prompt for row in load_prompts("shapes_heldout")]
    pictures = np.concatenate(
        [
            _draw(pipe, prompts[i : i + 32], guidance_scale=1.0, max_sequence_length=10)
            for i in range(0, len(prompts), 32)
        ]
    )
    assert 0.35 <= _strict(pictures, prompts) <= 0.65


def test_the_pipelines_defaults_draw_too(pipe):
    """A call without our ``max_sequence_length``, and with guidance, still draws what was asked for, often enough."""
    prompts = [row.prompt for row in load_prompts("shapes_heldout")][:24]
    assert _strict(_draw(pipe, prompts), prompts) >= 0.25
