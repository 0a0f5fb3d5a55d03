"""Evaluation: held-out prompts, fixed seeds, and the pipeline's stock sampler, whatever the training settings are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import parallel, pixels
from .data import MicroBatch, PromptRow, plan_step, sample_seed
from .policy import Policy
from .reward import RewardBatch, RewardSet
from .set_scoring import joined, observe_all, settle, split

T = TypeVar("T")
Progress = Callable[[Sequence[T]], Iterable[T]]

THUMBNAIL = 64
"""Pictures are compared for diversity at no more than this many pixels a side."""

STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "edge_energy": pixels.edge_energy,
    "saturation": pixels.saturation,
    "dark_share": pixels.dark_share,
}
"""Statistics of pixels that every evaluation reports, ``pixels/<name>``: what `flowrl.guards` watches."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; the same on all processes.

    Attributes:
        metrics: ``eval/<reward>/mean``, ``eval/<reward>/std``, ``eval/unscored``, ``eval/diversity``, and
            ``pixels/<statistic>`` of :data:`STATISTICS`. The mean of a reward with a number for whole sets
            (:meth:`~flowrl.set_reward.SetReward.measure`) is that number, and it has no std.
        images: `[3, H, W]`, or `[F, 3, H, W]` of videos, uint8, the first sample of every prompt, up to the number that
            was asked for.
        records: prompt, row, sample, seed and scores of each of them.
    """

    metrics: dict[str, float]
    images: list[Tensor]
    records: list[dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    """How to evaluate.

    Attributes:
        samples_per_prompt: pictures a prompt.
        steps: denoising steps.
        guidance_scale: the pipeline's; None leaves it at its default.
        micro_batch_size: pictures drawn at once.
        seed: of the run.
        call: further arguments of the pipeline.
        fps: frames a second of videos, for rewards.
        keep: pictures to hand back.
    """

    samples_per_prompt: int
    steps: int
    guidance_scale: float | None
    micro_batch_size: int
    seed: int
    call: Mapping[str, Any]
    fps: float | None = None
    keep: int = 48


def evaluate(
    policy: Policy,
    rows: Sequence[PromptRow],
    rewards: RewardSet,
    setting: Setting,
    progress: Progress[MicroBatch] = lambda batches: batches,
) -> Evaluation:
    """Sample and score held-out prompts, the micro-batches spread over all processes.

    Args:
        policy: what to evaluate, with the weights that it has now.
        rows: prompts.
        rewards: what to measure.
        setting: how.
        progress: wraps the micro-batches of this process, for a progress bar.
    """
    calls = policy.denoiser_calls
    batches = eval_batches(rows, setting)
    single, sets = split(rewards)
    mine, seen = {}, {}
    for batch in progress([b for b in batches if b.index % parallel.world_size() == parallel.rank()]):
        prompts = [row.prompt for row in batch.rows]
        images = draw(policy, batch, setting)
        scored = RewardBatch(
            images, prompts, [row.metadata for row in batch.rows], torch.tensor(batch.groups), fps=setting.fps
        )
        first = [
            sample == 0 and group < setting.keep for group, sample in zip(batch.groups, batch.samples, strict=True)
        ]
        kept = (images[first].clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        mine[batch.index] = (single.score(scored), _thumbnails(images), kept, _statistics(images))
        seen[batch.index] = observe_all(sets, scored)
    policy.denoiser_calls = calls  # an evaluation is no part of the training's cost
    settled = settle(sets, seen, measure=True) if sets else None
    mine_raw = {
        index: (joined(rewards.names, [scores, *([settled.scores[index]] if settled else [])]).raw, *rest)
        for index, (scores, *rest) in mine.items()
    }
    parts = parallel.gather(mine_raw)
    scores = torch.cat([part[0] for part in parts.values()])
    metrics = _summary(scores, rewards.names)
    for name, number in (settled.numbers if settled else {}).items():
        metrics[f"eval/{name}/mean"] = number
        del metrics[f"eval/{name}/std"]  # of single scores, which this number is no mean of
    thumbnails = torch.cat([part[1] for part in parts.values()]).unflatten(0, (len(rows), setting.samples_per_prompt))
    metrics["eval/diversity"] = diversity(thumbnails)
    means = torch.cat([part[3] for part in parts.values()]).double().mean(dim=0)
    metrics |= {f"pixels/{name}": value for name, value in zip(STATISTICS, means.tolist(), strict=True)}
    kept_images = [image for part in parts.values() for image in part[2]]
    return Evaluation(metrics, kept_images, _records(batches, scores, rewards.names, setting.keep))


def eval_batches(rows: Sequence[PromptRow], setting: Setting) -> list[MicroBatch]:
    """The micro-batches of an evaluation, the same each time."""
    return plan_step(
        rows,
        group_size=setting.samples_per_prompt,
        micro_batch_size=setting.micro_batch_size,
        step=0,
        seed=sample_seed("evaluation", setting.seed),
    )


def draw(policy: Policy, batch: MicroBatch, setting: Setting) -> Tensor:
    """Pictures or videos of a micro-batch."""
    prompts = [row.prompt for row in batch.rows]
    return policy.sample(
        prompts, seeds=batch.seeds, steps=setting.steps, guidance_scale=setting.guidance_scale, **setting.call
    )


def diversity(images: Tensor) -> float:
    """Mean distance of two samples of a prompt: root of the mean squared pixel difference.

    Args:
        images: `[P, G, 3, H, W]`, or `[P, G, F, 3, H, W]` of videos, in [0, 1].

    Returns:
        0 for identical samples, at most 1; NaN for one sample a prompt.

    >>> diversity(torch.tensor([0.0, 0.0, 1.0]).view(1, 3, 1, 1, 1).expand(1, 3, 3, 2, 2))  # doctest: +ELLIPSIS
    0.666...
    """
    flat = images.flatten(2).float()
    count = flat.shape[1]
    if count < 2:
        return float("nan")
    distance = torch.cdist(flat, flat) / flat.shape[2] ** 0.5
    return float(distance.sum(dim=(1, 2)).mean() / (count * (count - 1)))


def _thumbnails(images: Tensor) -> Tensor:
    side = max(images.shape[-2:])
    if side > THUMBNAIL:
        frames = images.flatten(0, -4)
        small = F.interpolate(frames, scale_factor=THUMBNAIL / side, mode="area")
        images = small.unflatten(0, images.shape[:-3])
    return images.cpu()


def _statistics(images: Tensor) -> Tensor:
    """:data:`STATISTICS` of each picture or video, `[B, S]`."""
    found = [measure(images) for measure in STATISTICS.values()]
    return torch.stack([value.reshape(len(images), -1).mean(dim=1) for value in found], dim=1).cpu()


def _summary(scores: Tensor, names: Sequence[str]) -> dict[str, float]:
    metrics = {"eval/unscored": float(scores.isnan().any(dim=1).sum())}
    for name, column in zip(names, scores.T, strict=True):
        valid = column[~column.isnan()].double()
        metrics[f"eval/{name}/mean"] = float(valid.mean())
        metrics[f"eval/{name}/std"] = float((valid - valid.mean()).square().mean().sqrt())  # Tensor.std warns if empty
    return metrics


def _records(batches: Sequence[MicroBatch], scores: Tensor, names: Sequence[str], keep: int) -> list[dict[str, Any]]:
    samples = [sample for b in batches for sample in zip(b.rows, b.groups, b.samples, b.seeds, strict=True)]
    return [
        {
            "prompt": row.prompt,
            "row": row.row,
            "sample": number,
            "seed": seed,
            "scores": {
                name: None if math.isnan(value) else value for name, value in zip(names, values.tolist(), strict=True)
            },
        }
        for (row, group, number, seed), values in zip(samples, scores, strict=True)
        if number == 0 and group < keep
    ]
