"""Rollouts from preference data: stored samples in place of drawn ones, scored by what the data says.

The trainer takes them as it takes its own. A sample's final latents come from the data; the conditions (prompts, the
schedule, what a pipeline computes before its loop) come from a pipeline call that ends at its first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .data import MicroBatch
from .encode import PictureEncoder
from .errors import RunStopped, UserError
from .kernels import Kernel, Place
from .policy import Policy
from .preferences import SCORE, StoredGroup, has_noise, sizes
from .reward import Reward, RewardBatch, RewardSet
from .session import Done, Recording
from .trajectory import Rollout


class StoredScore(Reward):
    """What the data says a sample is worth."""

    name = SCORE
    needs = frozenset({SCORE})
    source = "preference data"

    def __call__(self, batch: RewardBatch) -> Tensor:
        """The scores, `[B]`."""
        return torch.tensor([float(row[SCORE]) for row in batch.metadata])


@dataclass(frozen=True)
class StoredData:
    """Preference data as a source of rollouts.

    Attributes:
        groups: all of one size.
    """

    groups: Sequence[StoredGroup]

    @staticmethod
    def of(groups: Sequence[StoredGroup], group_size: int, needs_noise: bool = False) -> StoredData:
        """Data that fits a run.

        Raises:
            UserError: groups of another size than the run's, or no noise where the objective needs it.
        """
        found = sizes(groups)
        if found != {group_size}:
            listed = ", ".join(map(str, sorted(found)))
            hint = f"write group_size: {listed}" if len(found) == 1 else "make them of one size"
            raise UserError(f"data: its groups have {listed} pictures, and group_size is {group_size}; {hint}.")
        if needs_noise and not has_noise(groups):
            raise UserError(
                "data: the objective wants the noise that each sample was drawn from, and not every group has it; "
                "`flowrl data make` keeps it."
            )
        return StoredData(groups)

    def scored(self, batches: Sequence[MicroBatch]) -> list[MicroBatch]:
        """The micro-batches of a step with each sample's score among the metadata of its row."""
        return [
            replace(
                batch,
                rows=[
                    replace(row, metadata={SCORE: self.groups[row.row].scores[sample]})
                    for row, sample in zip(batch.rows, batch.samples, strict=True)
                ],
            )
            for batch in batches
        ]


def stored_rewards() -> RewardSet:
    """The one reward that scores stored samples."""
    return RewardSet((SCORE,), (StoredScore(),), torch.ones(1))


class StoredRollouts:
    """Makes the rollouts of a run that learns from data."""

    def __init__(self, data: StoredData, policy: Policy, how: Mapping[str, Any]) -> None:
        """Draw nothing yet.

        Args:
            data: the data.
            policy: the policy.
            how: arguments of `Policy.record`: ``steps``, ``guidance_scale`` and ``call``.
        """
        self._data, self._policy, self._how = data, policy, how
        self._encoder: PictureEncoder | None = None

    def __call__(self, batch: MicroBatch) -> Rollout:
        """A micro-batch of stored samples.

        Raises:
            RunStopped: a sample does not fit the pipeline.
        """
        prompts, session = [row.prompt for row in batch.rows], Given(self._policy.kernel)
        stored = [self._sample(row.row, sample) for row, sample in zip(batch.rows, batch.samples, strict=True)]
        found = self._policy.record(session, prompts, latent_seeds=batch.latent_seeds, **self._how)
        assert session.first is not None, "a recording without a step is refused"
        noise = [row["noise"] for row in stored if "noise" in row]
        return replace(
            found,
            images=torch.zeros(len(prompts), 3, 1, 1),  # nothing looks at them: the data has the scores
            latents=_fitting([row["latents"] for row in stored], session.first, batch),
            noise=_fitting(noise, session.first, batch) if len(noise) == len(stored) else None,
        )

    def _sample(self, number: int, sample: int) -> dict[str, Tensor]:
        group = self._data.groups[number]
        if group.latents is not None:
            with safe_open(group.latents, framework="pt") as file:
                there = [name for name in ("latents", "noise") if name in file.keys()]  # noqa: SIM118 (no mapping)
                return {name: file.get_slice(name)[sample] for name in there}
        if self._encoder is None:
            self._encoder = PictureEncoder(self._policy, group.prompt, self._how)
        return {"latents": self._encoder(group.images[sample])}


class Given(Recording):
    """Ends a pipeline call at its first step, after which there is nothing to record.

    Attributes:
        first: the latents with which the pipeline starts, `[B, ...]`.
    """

    first: Tensor | None = None

    def __init__(self, kernel: Kernel) -> None:
        """Record nothing."""
        super().__init__(kernel, torch.zeros_like, train_steps=(), noise_steps=())

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Remember where it starts, and end."""
        self.first, self.last, self.start = x, x, place.step
        raise Done


class Noted(Given):
    """Ends nothing, but remembers the latents with which the pipeline starts."""

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Remember the first."""
        if self.first is None:
            self.first = x.clone()
        return Recording.step(self, place, x, model_output)


def _fitting(rows: Sequence[Tensor], like: Tensor, batch: MicroBatch) -> Tensor:
    """Stored tensors as a batch like the pipeline's own."""
    for row, of in zip(rows, batch.rows, strict=True):
        if row.shape != like.shape[1:]:
            raise RunStopped(
                f"{of.where}: it has latents of the shape {list(row.shape)}, and the pipeline draws "
                f"{list(like.shape[1:])}: the data is of another model, or not of policy.height and policy.width."
            )
    return torch.stack(list(rows)).to(like.device, like.dtype)
