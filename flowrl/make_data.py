"""Preference data from a run's own model and rewards: ``flowrl data make``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import RunConfig
from .data import MicroBatch, PromptRow, plan_step
from .errors import UserError
from .files import remove_unfinished, whole_file, write_json
from .group_statistics import weighted_sum
from .media import suffix, to_frames, write_frames
from .preferences import FILE
from .preflight import preflight
from .reward import RewardBatch, RewardSet
from .stored import Noted
from .trainer import Trainer


def make(config: RunConfig, folder: Path, groups: int, tell: Callable[[str], object] = lambda line: None) -> Path:
    """Draw groups of pictures without noise on the way, score them, and keep latents, initial noise and scores.

    What is there already is not drawn again, so a call that was cut goes on.

    Args:
        config: the run whose model, prompts, sampling, group size and rewards are used.
        folder: where the data goes.
        groups: how many; the prompts are taken in their order, and again from the first.
        tell: is given a line for each group.

    Returns:
        The file with the preferences.

    Raises:
        UserError: the run cannot work, a reward needs a whole group or step, or the folder has data of another recipe.
    """
    remove_unfinished(folder)
    _same_recipe(config, folder)
    with tempfile.TemporaryDirectory() as elsewhere:
        light = config.model_copy(update={"output": Path(elsewhere) / "run", "trackers": [], "data": None})
        checked = preflight(light)
        for name, reward in zip(checked.rewards.names, checked.rewards.rewards, strict=True):
            if reward.scope != "sample":
                raise UserError(f"reward {name!r} scores a sample by others of its {reward.scope}; data keeps scores.")
        trainer = Trainer(checked.resolved.config, checked, Accelerator(cpu=not torch.accelerator.is_available()))
        lines = []
        for number in range(groups):
            row = checked.rows[number % len(checked.rows)]
            file = folder / "latents" / f"{number:06d}.safetensors"
            if not file.exists():
                _draw(trainer, checked.rewards, row, number, file)
            scores = load_file(file)["scores"]
            tell(f"group {number + 1} of {groups}: scores {scores.min():.3g} to {scores.max():.3g}  {row.prompt}")
            lines.append(_line(row, file, scores, folder))
    with whole_file(folder / FILE) as temporary:
        temporary.write_text("".join(lines), encoding="utf8")
    return folder / FILE


def _same_recipe(config: RunConfig, folder: Path) -> None:
    """Note what the data is drawn with, or refuse to go on with something else."""
    fields = ("seed", "prompts", "model", "policy", "rewards", "group_size", "micro_batch_size")
    wanted = config.model_dump(mode="json", include=set(fields))
    file = folder / "recipe.json"
    if not file.exists():
        write_json(file, wanted)
        return
    made = json.loads(file.read_text(encoding="utf8"))
    changed = [field for field in fields if made.get(field) != wanted[field]]
    if changed:
        raise UserError(f"{folder} holds data that was made with other {', '.join(changed)}; write another --out.")


def _line(row: PromptRow, file: Path, scores: Tensor, folder: Path) -> str:
    if not scores.isfinite().all():  # a group with a picture that could not be scored has another size than the rest
        return ""
    pictures = sorted((folder / "images").glob(f"{file.stem}_*"))
    names = [path.relative_to(folder).as_posix() for path in (file, *pictures)]
    said = {"prompt": row.prompt, "latents": names[0], "images": names[1:], "scores": scores.tolist()}
    return json.dumps(said, ensure_ascii=False) + "\n"


def _draw(trainer: Trainer, rewards: RewardSet, row: PromptRow, number: int, file: Path) -> None:
    """One group: its pictures, and then its tensors."""
    config, parts = trainer.config, []
    size, together = config.group_size, config.micro_batch_size
    for batch in plan_step([row], group_size=size, micro_batch_size=together, step=number, seed=config.seed):
        parts.append(_part(trainer, rewards, batch))
    latents, noise, scores, images = (torch.cat(found) for found in zip(*parts, strict=True))
    for old in (file.parent.parent / "images").glob(f"{file.stem}_*"):
        old.unlink()  # of a call that was cut
    for sample, image in enumerate(images):
        frames = to_frames((image.clamp(0, 1) * 255).round().to(torch.uint8).cpu())
        path = file.parent.parent / "images" / f"{file.stem}_{sample:03d}{suffix(frames)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_frames(frames, path, config.policy.fps)
    tensors = {"latents": latents, "noise": noise, "scores": scores}
    with whole_file(file) as temporary:
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)


def _part(trainer: Trainer, rewards: RewardSet, batch: MicroBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Final latents, initial noise, scores and pictures of a micro-batch."""
    policy, prompts = trainer.policy, [row.prompt for row in batch.rows]
    session, how = Noted(policy.kernel), trainer.how
    rollout = policy.record(session, prompts, latent_seeds=batch.latent_seeds, **how)
    assert session.first is not None, "a recording without a step is refused"
    metadata: list[dict[str, Any]] = [row.metadata for row in batch.rows]
    shown = RewardBatch(rollout.images, prompts, metadata, fps=trainer.config.policy.fps)
    total, valid = weighted_sum(rewards.combine(rewards.score(shown).raw)[None], rewards.weights)
    scores = torch.where(valid, total, torch.nan)[0].float()
    return rollout.latents.float(), session.first.float(), scores, rollout.images
