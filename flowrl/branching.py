"""Rollouts whose samples share a trajectory until it parts: what they have in common is computed once.

The samples of a group start from the same noise and take the same steps, up to a step at which each trajectory goes on
in several ways, each with noise of its own; and so on, until every sample has a trajectory:

    step      0     1     2     3     4        two splits, at 1 and at 3, into 2 each: a group of four
    rows      1 ─── 1 ─┬─ 2 ─── 2 ─┬─ 4        model calls of the group: 1 + 1 + 2 + 2 + 4 instead of 20

A *stem* is a rollout of fewer samples that ends in a split. The model call of the splitting step is the stem's: the
ways part by their noise alone. The continuation *walks* to where the stem ended (see `flowrl.session`), which costs
no model call, and goes on with its own, larger batch. A replay of a shared step runs the stem's batch, so the ratio is
exactly 1 there too, and costs as little.

With one split this is the branching of "TempFlow-GRPO: When Timing Matters for GRPO in Flow Models", He et al.,
https://arxiv.org/abs/2508.04324; with several it is the tree of "BranchGRPO: Stable and Efficient GRPO with Structured
Branching in Diffusion Models", Li et al., https://arxiv.org/abs/2509.06040. There the variants of a split may share a
part of their noise; here they do not. Nothing is pruned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .data import sample_seed
from .errors import RunStopped, UserError
from .kernels import Place
from .memo import digest
from .policy import Policy, SeededNoise
from .session import Done, Recording, Schedule, Steps
from .trajectory import Rollout, Transition, spread


@dataclass(frozen=True)
class Tree:
    """How the samples of a group part.

    Attributes:
        group_size: samples that start as one.
        at: steps at which trajectories part, or a function that chooses them when the schedule is known.
        into: the ways in which each goes on, split by split, with the product ``group_size``; None for equal numbers.
    """

    group_size: int
    at: Collection[int] | Callable[[Schedule], Collection[int]]
    into: Sequence[int] | None = None

    def splits(self, schedule: Schedule) -> list[tuple[int, int]]:
        """Each splitting step and its number of ways, in order.

        >>> Tree(8, [5, 2], [2, 4]).splits(Schedule([], []))
        [(2, 2), (5, 4)]
        """
        at = sorted(self.at(schedule) if callable(self.at) else self.at)
        return list(zip(at, ways(len(at), self.group_size, self.into), strict=True))


def ways(splits: int, group_size: int, into: Sequence[int] | None = None) -> list[int]:
    """In how many ways each of ``splits`` splits goes on, so that a group of ``group_size`` comes out.

    Raises:
        UserError: the given numbers do not fit, or there are no equal ones.

    >>> ways(1, 8), ways(3, 8), ways(2, 8, [2, 4])
    ([8], [2, 2, 2], [2, 4])
    """
    if not splits:
        raise UserError("policy.branch: no step is left at which trajectories could part; write policy.branch.at.")
    if into is not None:
        if len(into) != splits or math.prod(into) != group_size or min(into) < 2:
            raise UserError(
                f"policy.branch.into is {list(into)}; wanted {splits} numbers of at least 2, one a split, with the "
                f"product {group_size} (group_size)."
            )
        return list(into)
    each = round(group_size ** (1 / splits))
    if each**splits != group_size or each < 2:
        raise UserError(
            f"policy.branch: {splits} splits make no group of {group_size} in equal parts; write policy.branch.into, "
            f"policy.branch.at, or a group_size such as {2**splits}."
        )
    return [each] * splits


def rollout_tree(
    policy: Policy,
    prompts: Sequence[str],
    *,
    tree: Tree,
    seeds: Sequence[int],
    steps: int,
    train_steps: Steps = "all",
    noise_steps: Steps = "all",
    **call: Any,
) -> Rollout:
    """Sample a micro-batch of whole groups, side by side; what comes back is used as any other rollout.

    A step before the first split has the same outcome for a whole group, so it is not recorded. A group's initial noise
    comes from the seed of its first sample.

    Args:
        policy: the policy.
        prompts: B prompts, the same within a group.
        tree: how the samples of a group part.
        seeds: B seeds of the samples' noise.
        steps: length of the schedule.
        train_steps: steps to record, as for `Policy.rollout`.
        noise_steps: steps that are stochastic; the splits must be among them.
        call: ``guidance_scale``, and further arguments of the pipeline. Lists and tensors with an entry for each
            sample, such as pictures to start from, have equal entries within a group.

    Raises:
        UserError: the groups are not whole, or a split is deterministic or before the pipeline's first step.
    """
    size, scale, prompts = tree.group_size, call.pop("guidance_scale", None), list(prompts)
    firsts = [row - row % size for row in range(len(prompts))]
    if len(seeds) != len(prompts) or len(prompts) % size or prompts != [prompts[i] for i in firsts]:
        raise UserError(
            f"{len(prompts)} prompts with {len(seeds)} seeds are no whole groups of {size} that could share the "
            "beginning of their trajectories."
        )

    def rows(width: int) -> range:
        return range(0, len(prompts), size // width)

    def noise(width: int) -> SeededNoise:
        """A stream for each of ``width`` nodes a group; the leaves' are those of a plain rollout."""
        if width == size:
            return SeededNoise(seeds)
        return SeededNoise([sample_seed("branch", width, seeds[row]) for row in rows(width)])

    stems: list[Rollout] = []
    begin = partial(Segment, policy, tree, noise, train_steps, noise_steps)
    width, segment = 1, begin()
    while True:
        rollout = policy.record(
            segment,
            [prompts[row] for row in rows(width)],
            latent_seeds=[seeds[firsts[row]] for row in rows(width)],
            steps=steps,
            guidance_scale=scale,
            call={name: _rows(value, rows(width), firsts) for name, value in call.items()},
            stem=stems[-1] if stems else None,
        )
        if segment.split is None:
            return _whole(rollout, stems)
        stems.append(rollout)
        width *= segment.ways
        segment = begin(segment)


class Segment(Recording):
    """Records the steps from one split to the next: walks to where the stem ended, and ends in a split of its own.

    Attributes:
        split: the step at which the samples part; None if they go on to the end.
        ways: in how many.
        children: their streams of noise, which begin with the split.
    """

    children: SeededNoise

    def __init__(
        self,
        policy: Policy,
        tree: Tree,
        noise: Callable[[int], SeededNoise],
        train_steps: Steps,
        noise_steps: Steps,
        stem: Segment | None = None,
    ) -> None:
        """The first segment, or the one after ``stem``; ``noise`` makes the streams of ``width`` nodes a group."""
        super().__init__(
            policy.kernel,
            noise(1) if stem is None else stem.children,
            train_steps=train_steps,
            noise_steps=noise_steps,
            reduction=policy.reduction,
        )
        self.split: int | None = None
        self.ways = 1
        self.walking = stem is not None
        self._tree, self._streams, self._stem = tree, noise, stem
        self._depth: int = 0 if stem is None else stem._depth + 1
        self._width: int = 1 if stem is None else stem._width * stem.ways

    def begin(self, places: list[Place]) -> None:
        """Find the split; leave out what a whole group does alike."""
        super().begin(places)
        splits = self._tree.splits(self.schedule)
        for step, _ in splits:
            if not 0 <= step < len(places) or (self.stds[step] == 0 and self._kernel.noise_level > 0):
                stochastic = [k for k, std in enumerate(self.stds) if std > 0]
                raise UserError(
                    f"trajectories cannot part at step {step}, which draws no noise; stochastic steps here: "
                    f"{stochastic or 'none'}."
                )
        early = {step for step in self._train if step < splits[0][0]}
        self._train, self._keep = self._train - early, self._keep - early
        if self._depth < len(splits):
            self.split, self.ways = splits[self._depth]
            self.children = self._streams(self._width * self.ways)

    def step(self, place: Place, x: Tensor, model_output: Tensor) -> Tensor:
        """Walk on, arrive, or record."""
        if self._stem is not None and place.step <= self._stem.split_step:
            self.start = place.step if self.start is None else self.start
            if place.step < self._stem.split_step:
                return x
            self.walking, self.last = False, self._stem.last
            assert self.last is not None, "a stem ends with a step"
            return self.last
        if self.split is not None and place.step > self.split:
            raise UserError(f"trajectories cannot part at step {self.split}: the pipeline starts at {place.step}.")
        x_next = super().step(place, x, model_output)
        if place.step == self.split:
            raise Done
        return x_next

    def parted(self, place: Place, mean: Tensor) -> Tensor:
        """At the split every mean serves several samples, which draw from streams of their own."""
        if place.step != self.split:
            return mean
        self._noise = self.children
        return mean.repeat_interleave(self.ways, dim=0)

    @property
    def split_step(self) -> int:
        """The split of a stem."""
        assert self.split is not None, "a stem has a split"
        return self.split


def node_advantages(
    scores: Tensor, weights: Tensor, advantage: Callable[..., tuple[Tensor, Any]], leaves: int
) -> Tensor:
    """Advantages `[P, G]` of steps that ``leaves`` samples, side by side, have in common.

    Such a step leads to all of these samples, so its score is their mean, and it is compared with the other steps of
    its depth in the group: BranchGRPO's credit, by any advantage function. NaN scores are left out of the mean.

    Args:
        scores: `[P, G, R]`.
        weights: `[R]`.
        advantage: ``f(scores, weights)``, the run's own.
        leaves: a divisor of G; G itself leaves nothing to compare with, and gives 0.

    >>> from flowrl.advantages import group
    >>> scores = torch.tensor([[[0.0], [2.0], [3.0], [5.0]]])
    >>> node_advantages(scores, torch.ones(1), group, 2).round(decimals=3)
    tensor([[-1., -1.,  1.,  1.]])
    """
    size = scores.shape[1]
    if leaves == size:
        return scores.new_zeros(scores.shape[:2]).float()
    means = scores.unflatten(1, (size // leaves, leaves)).nanmean(dim=2)
    return advantage(means, weights)[0].repeat_interleave(leaves, dim=1)


def advantages_by_leaves(
    advantages: Tensor,
    scores: Tensor,
    weights: Tensor,
    advantage: Callable[..., tuple[Tensor, Any]],
    rollouts: Iterable[Rollout],
) -> dict[int, Tensor]:
    """Advantages `[P, G]` by how many samples share a step: the samples' own for 1, and `node_advantages` for more."""
    shared = {rollout.leaves(step) for rollout in rollouts for step in rollout.transitions} - {1}
    return {1: advantages, **{n: node_advantages(scores, weights, advantage, n) for n in sorted(shared)}}


def credit(rollout: Rollout, by_leaves: Mapping[int, Tensor], device: torch.device) -> tuple[Tensor, dict[int, Tensor]]:
    """Advantages `[B]` of a micro-batch's samples, and of each step that has others, on a device.

    Args:
        rollout: the micro-batch.
        by_leaves: advantages by how many samples share a step: `[B]`, or `[B, T]` with those of every step, whose mean
            is then the sample's.
        device: where they go.
    """
    moved = {leaves: values.to(device) for leaves, values in by_leaves.items()}
    if moved[1].ndim == 2:
        if moved[1].shape[1] != len(rollout.places):
            raise RunStopped(
                f"the advantage has numbers for {moved[1].shape[1]} steps, but the pipeline's schedule has "
                f"{len(rollout.places)}; write one for each of them."
            )
        return moved[1].mean(dim=1), dict(enumerate(moved[1].unbind(dim=1)))
    shared = {step: rollout.leaves(step) for step in rollout.transitions}
    return moved[1], {step: moved[leaves] for step, leaves in shared.items() if leaves > 1}


def _rows(value: Any, rows: Sequence[int], firsts: Sequence[int]) -> Any:
    """Some rows of a list or tensor with an entry for each sample; anything else whole.

    A list of that length that has nothing to do with samples (of layers, say) shows by entries that differ in a group.
    """
    counted = isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)
    if not counted or len(value) != len(firsts):
        return value
    if any(digest(value[row]) != digest(value[first]) for row, first in enumerate(firsts)):
        return value
    return value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]


def _whole(rollout: Rollout, stems: Sequence[Rollout]) -> Rollout:
    """The last segment's rollout with what its stems recorded, for all samples."""
    size = len(rollout)
    transitions: dict[int, Transition] = {}
    arrivals: dict[int, Tensor] = {}
    for part in (*stems, rollout):
        for step, t in part.transitions.items():
            x, x_next, log_prob = (spread(tensor, size) for tensor in (t.x, t.x_next, t.log_prob))
            transitions[step] = Transition(t.place, x, x_next, log_prob, t.std)
        arrivals |= {step: spread(arrival, size) for step, arrival in part.arrivals.items()}
    return replace(rollout, transitions=transitions, arrivals=arrivals, stems=tuple(stems))
