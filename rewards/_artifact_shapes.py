"""Made ``assets/artifact/shapes.safetensors``: ``python -m flowrl.rewards._artifact_shapes`` makes it anew.

Clean pictures are scenes of the shapes world: rendered, and passed through the bundled model's decoder from latents
with some noise, as a sampler leaves it: what a decoder makes of every picture is no artifact. Flawed ones are these
with an artifact of the kinds in :data:`._artifacts.TRAINING`. What it prints is measured on scenes with pairs of colour
and shape that no training picture has, and on pictures that the bundled model draws of such scenes.
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import PromptRow, load_prompts
from ..pipelines.shapes import world
from ._artifact_head import Head, auc, filter_features, fit_head
from ._artifacts import HELD_OUT, TRAINING, Artifact, spoil
from .shapes import judge

Pictures = list[np.ndarray]


def rendered(count: int, rng: np.random.Generator, *, held_out: bool) -> Pictures:
    """Scenes with, or without, a pair that is kept from training; `[48, 48, 3]` float32 in [0, 1]."""
    pictures: Pictures = []
    while len(pictures) < count:
        scene = world.sample_scene(rng)
        if scene.held_out == held_out:
            pictures.append(world.render(scene, rng).astype(np.float32) / 255)
    return pictures


@torch.no_grad()
def decoded(vae: Any, pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """The pictures after encoding and decoding, with noise of up to a fifth of the latents' spread in between."""
    images = []
    for start in range(0, len(pictures), 50):
        latents = vae.encode(_to_tensor(pictures[start : start + 50]) * 2 - 1).latent_dist.mode()
        noise = torch.from_numpy(rng.normal(size=latents.shape)).float()
        amount = torch.from_numpy(rng.uniform(0, 0.2, size=(len(latents), 1, 1, 1))).float() * latents.std()
        images.append(vae.decode(latents + amount * noise).sample)
    return list(((torch.cat(images) + 1) / 2).clamp(0, 1).permute(0, 2, 3, 1).numpy())


def drawn(pipe: Any, rows: list[PromptRow], seed: int) -> tuple[Pictures, list[bool]]:
    """A picture of each prompt, drawn by the bundled model as the recipes do, and whether it is right."""
    pictures: Pictures = []
    for start in range(0, len(rows), 24):
        prompts = [row.prompt for row in rows[start : start + 24]]
        generators = [torch.Generator().manual_seed(seed + start + index) for index in range(len(prompts))]
        options = {"num_inference_steps": 10, "guidance_scale": 1.0, "height": world.SIZE, "width": world.SIZE}
        pictures += list(pipe(prompts, generator=generators, output_type="np", **options).images.astype(np.float32))
    return pictures, [judge(p, row.prompt)[0] == 1 for p, row in zip(pictures, rows, strict=True)]


def features_of(pictures: Pictures) -> Tensor:
    """The filter features of pictures of one size."""
    with torch.no_grad():
        return torch.cat([filter_features(_to_tensor(pictures[i : i + 100])) for i in range(0, len(pictures), 100)])


def train(vae: Any, seed: int) -> tuple[Head, int]:
    """The head, and the number of clean pictures that it was trained on."""
    rng = np.random.default_rng(seed)
    clean = rendered(800, rng, held_out=False) + decoded(vae, rendered(800, rng, held_out=False), rng)
    flawed = [spoil(picture, rng, TRAINING) for picture in clean for _ in range(2)]
    labels = torch.arange(len(clean) + len(flawed)) >= len(clean)
    return fit_head(torch.cat([features_of(clean), features_of(flawed)]), labels, seed=seed), len(clean)


def table(head: Head, drawings: Pictures, right: list[bool], seed: int) -> list[str]:
    """Lines of what the head does on held-out scenes: by kinds, and against pictures that the model drew."""
    rng = np.random.default_rng(seed + 1)
    clean = rendered(300, rng, held_out=True)
    sets = {"rendered": clean, "drawn by the model": drawings}
    sets["drawn, and right"] = [picture for picture, good in zip(drawings, right, strict=True) if good]
    logits = {name: head.logits(features_of(pictures)) for name, pictures in sets.items()}
    lines = [f"| {name} | {len(z)} | {(z > 0).float().mean():.3f} |" for name, z in logits.items()]
    for label, kinds in (("trained", TRAINING), ("held out", HELD_OUT)):
        found = {name: _spoiled_logits(head, clean, kind, rng) for name, kind in kinds.items()}
        for name, z in [("all", torch.cat(list(found.values()))), *found.items()]:
            areas = " | ".join(f"{auc(z, reference):.3f}" for reference in logits.values())
            lines.append(f"| {label} | {name} | {areas} | {(z <= 0).float().mean():.2f} |")
    return lines


def _spoiled_logits(head: Head, clean: Pictures, kind: Artifact, rng: np.random.Generator) -> Tensor:
    return head.logits(features_of([spoil(picture, rng, {"": kind}) for picture in clean]))


def _to_tensor(pictures: Pictures) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


def main() -> None:
    """Train, write, measure, print."""
    from diffusers import DiffusionPipeline

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/artifact/shapes.safetensors"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pipe = DiffusionPipeline.from_pretrained(str(importlib.resources.files("flowrl.assets") / "shapes-sd3"))
    pipe.set_progress_bar_config(disable=True)
    head, count = train(pipe.vae, arguments.seed)
    about = {"made_by": f"python -m flowrl.rewards._artifact_shapes --seed {arguments.seed}", "clean": str(count)}
    head.save(arguments.out, about)
    drawings, right = drawn(pipe, load_prompts("shapes_heldout"), arguments.seed)
    sys.stdout.write("\n".join(table(head, drawings, right, arguments.seed)) + "\n")


if __name__ == "__main__":
    main()
