"""What a rollout leaves behind: pictures, final latents, and the recorded transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .kernels import Place


@dataclass(frozen=True)
class Transition:
    """One recorded step of a micro-batch.

    Attributes:
        place: where it stands in its schedule (step, timestep, sigma, sigma_next).
        x: `[B, ...]` latents before the step, as the scheduler is given them.
        x_next: `[B, ...]` latents after it. Of two recorded steps in a row, this is the same tensor as the next ``x``.
        log_prob: `[B]` log-density of ``x_next`` under the weights of the rollout, float32.
        std: std of the transition.
    """

    place: Place
    x: Tensor
    x_next: Tensor
    log_prob: Tensor
    std: float


@dataclass(frozen=True)
class Rollout:
    """A micro-batch that was sampled together, and is trained together.

    Attributes:
        images: `[B, 3, H, W]` float32 in [0, 1]; of a video `[B, F, 3, H, W]`.
        latents: `[B, ...]` final latents, as the scheduler gives them.
        transitions: the steps that were recorded for training, by step index.
        arrivals: what the step before returned, by step index: the latents with which a recorded or kept step begins.
            The step with which the pipeline starts has none.
        start: the step with which the pipeline started: not 0 if it started from a picture.
        places: the whole schedule, step by step.
        stds: std of every step of the schedule, whether recorded or not.
        prompts: the B prompts.
        latent_seeds: the B seeds of the initial noise and of whatever else the pipeline draws.
        call: the arguments of the pipeline call, to run it again.
        memory: what frozen parts of the pipeline returned (see `flowrl.memo`).
        arrivals_beside: what copies of the scheduler returned then, by step index and copy: latents beside the
            trajectory's own, such as the sound of a video, which are stepped without noise.
        noise: `[B, ...]` the noise that the samples were drawn from, if it was kept: only preference data has it.
        stems: what samples shared before they parted (see `flowrl.branching`), from the root on: rollouts of fewer
            samples that end in a step. The transitions and arrivals here are those of the stems too, for all B samples.
    """

    images: Tensor
    latents: Tensor
    transitions: Mapping[int, Transition]
    arrivals: Mapping[int, Tensor]
    start: int
    places: Sequence[Place]
    stds: Sequence[float]
    prompts: Sequence[str]
    latent_seeds: Sequence[int]
    call: Mapping[str, Any] = field(repr=False)
    memory: Any = field(repr=False)
    arrivals_beside: Mapping[int, Mapping[int, Tensor]] = field(default_factory=dict)
    noise: Tensor | None = None
    stems: Sequence[Rollout] = field(default=(), repr=False)

    def __len__(self) -> int:
        """B, the number of samples."""
        return len(self.prompts)

    def stem(self, step: int) -> Rollout | None:
        """The stem that recorded a step; None for a step that every sample took on its own."""
        return next((stem for stem in self.stems if step in stem.transitions), None)

    def leaves(self, step: int) -> int:
        """How many samples, side by side, share the recorded transition of a step: 1 where nothing is shared."""
        stem = self.stem(step)
        return 1 if stem is None else len(self) // len(stem.transitions[step].x_next)

    def transition_bytes(self) -> int:
        """Bytes that the recorded transitions hold; a tensor that two of them share counts once.

        Counted are whole storages, so a view that keeps a larger tensor alive shows.
        """
        beside = [tensor for copies in self.arrivals_beside.values() for tensor in copies.values()]
        held = [t for entry in self.transitions.values() for t in (entry.x, entry.x_next, entry.log_prob)]
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in (*held, *self.arrivals.values(), *beside)
        }
        return sum(storages.values())


def spread(tensor: Tensor, rows: int) -> Tensor:
    """Repeat each row of a `[N, ...]` tensor so that there are ``rows``, a multiple of N; itself if there are.

    >>> import torch
    >>> spread(torch.tensor([1, 2]), 4)
    tensor([1, 1, 2, 2])
    """
    return tensor if len(tensor) == rows else tensor.repeat_interleave(rows // len(tensor), dim=0)


def own(tensor: Tensor) -> Tensor:
    """The tensor itself if it owns exactly its storage, else a copy: a view would keep the whole batch alive."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()
