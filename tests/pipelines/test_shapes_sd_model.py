"""The bundled model ``assets/shapes-sd``: Stable Diffusion in small, believable and imperfect."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel

from flowrl.data import load_prompts
from flowrl.rewards.shapes import judge


@pytest.fixture(scope="module")
def pipe():
    """The bundled pipeline, by diffusers alone."""
    loaded = StableDiffusionPipeline.from_pretrained(Path(str(files("flowrl.assets"))) / "shapes-sd")
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_it_is_another_paradigm(pipe):
    """A UNet that predicts the noise of a DDPM-type schedule."""
    assert isinstance(pipe.unet, UNet2DConditionModel)
    assert pipe.scheduler.config.prediction_type == "epsilon"


def test_it_is_believable_and_imperfect(pipe):
    """Strict accuracy on held-out prompts with 10 steps is between 0.35 and 0.65."""
    prompts = [row.prompt for row in load_prompts("shapes_heldout")]
    right = []
    for start in range(0, len(prompts), 32):
        part = prompts[start : start + 32]
        generators = [torch.Generator().manual_seed(seed) for seed in range(start, start + len(part))]
        call = {"num_inference_steps": 10, "guidance_scale": 1.0, "generator": generators, "output_type": "np"}
        right += [judge(image, prompt)[0] for image, prompt in zip(pipe(part, **call).images, part, strict=True)]
    assert 0.35 <= np.mean(right) <= 0.65
