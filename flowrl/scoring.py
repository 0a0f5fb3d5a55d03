"""Scores the pictures of a step while the next ones are drawn, with the scores that scoring them afterwards gives.

A reward that waits for a server, or whose operations leave Python free, then costs only what it takes longer than the
rollout. Micro-batches are scored by one thread, one after the other and in the order of the step, so no reward is ever
called twice at a time. A reward with ``thread_safe = False`` is called after the rollout, by the main thread. Of a
reward that sees a whole group or step, that holds for its features; the scores follow when all features are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from . import parallel
from .data import MicroBatch
from .reward import RewardBatch, RewardSet, Scores
from .set_reward import Seen
from .set_scoring import SetRewards, joined, observe_all, settle, split
from .trajectory import Rollout

Progress = Callable[[Sequence[int]], Iterable[int]]
_Rewards = tuple[RewardSet, SetRewards]
_Found = tuple[Scores, dict[str, Seen]]


class Scoring:
    """The scoring of one step, beside its rollouts; use it as a context.

    What a reward raises for the run (:class:`~flowrl.errors.RunStopped`, :class:`~flowrl.errors.UserError`) is raised
    in the main thread: by the next `begin`, or by `finish`.

    >>> from flowrl.reward import FunctionReward
    >>> brightness = FunctionReward(lambda images, prompts, metadata: images.mean(dim=(1, 2, 3)), name="brightness")
    >>> with Scoring(RewardSet(("brightness",), (brightness,), torch.ones(1))) as scoring:
    ...     scoring.begin(0, RewardBatch(torch.ones(2, 3, 8, 8), ["a", "b"], [{}, {}]))
    ...     scoring.finish()[0].raw.tolist()
    [[1.0], [1.0]]
    """

    def __init__(self, rewards: RewardSet) -> None:
        """Be ready to score with ``rewards``."""
        self._rewards = rewards
        self._sets = split(rewards)[1]
        self._beside, self._after = (split(_part(rewards, thread_safe)) for thread_safe in (True, False))
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flowrl-scoring")
        self._begun: dict[int, tuple[RewardBatch, Future[_Found]]] = {}

    def __enter__(self) -> Scoring:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for what is being scored, and drop what has not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, index: int, batch: RewardBatch) -> None:
        """Start scoring a micro-batch, and return at once.

        Args:
            index: its number in the step.
            batch: its pictures.
        """
        for _, future in self._begun.values():
            if future.done():
                future.result()  # a run that is broken stops now, not after the remaining rollouts
        self._begun[index] = batch, self._pool.submit(_score, self._beside, batch)

    def finish(self, progress: Progress = lambda indices: indices) -> dict[int, Scores]:
        """The scores of every micro-batch that was begun, in that order. Processes call it together.

        Args:
            progress: wraps the numbers of the micro-batches, for a progress bar.
        """
        found, seen = {}, {}
        for index in progress(list(self._begun)):
            batch, future = self._begun[index]
            (beside, sets), (after, more) = future.result(), _score(self._after, batch)
            found[index], seen[index] = [beside, after], {name: {**sets, **more}[name] for name in self._sets}
        if self._sets:
            settled = settle(self._sets, seen).scores
            found = {index: [*parts, settled[index]] for index, parts in found.items()}
        return {index: joined(self._rewards.names, parts) for index, parts in found.items()}


def to_score(batch: MicroBatch, rollout: Rollout, fps: float | None = None) -> RewardBatch:
    """What rewards see of a rollout.

    Args:
        batch: the micro-batch that was rolled out.
        rollout: its pictures, or videos.
        fps: frames a second of videos, if known.
    """
    metadata, groups = [row.metadata for row in batch.rows], torch.tensor(batch.groups)
    return RewardBatch(rollout.images, list(rollout.prompts), metadata, groups, rollout.latents, fps)


def scores_of_step(rewards: RewardSet, mine: Mapping[int, Scores]) -> Scores:
    """The scores of a whole step, from the micro-batches of all processes; the same on each.

    Args:
        rewards: that gave them.
        mine: scores of this process's micro-batches, by their numbers in the step.

    Raises:
        RunStopped: a reward could score nothing at all.
    """
    merged = merge_scores(list(parallel.gather(mine).values()))
    rewards.require_alive(merged)
    return merged


def merge_scores(parts: Sequence[Scores]) -> Scores:
    """The scores of several micro-batches as one: failures add up, the first error of a reward stays."""
    failures = {name: sum(part.failures[name] for part in parts) for name in parts[0].failures}
    errors = {name: message for part in reversed(parts) for name, message in part.errors.items()}
    return Scores(torch.cat([part.raw for part in parts]), failures, errors)


def score_metrics(rewards: RewardSet, scores: Scores) -> dict[str, float]:
    """Mean raw score, and samples without one, of each reward; a reward that scored nothing has the mean NaN."""
    metrics = {}
    for name, column in zip(rewards.names, scores.raw.T, strict=True):
        metrics[f"reward/{name}/mean"] = float(column[~column.isnan()].double().mean())
        metrics[f"reward/{name}/failures"] = float(scores.failures[name])
    return metrics


def _part(rewards: RewardSet, thread_safe: bool) -> RewardSet:
    """The rewards of a set that may be called in another thread, or those that may not."""
    chosen = [index for index, reward in enumerate(rewards.rewards) if reward.thread_safe is thread_safe]
    names, kept = (rewards.names[index] for index in chosen), (rewards.rewards[index] for index in chosen)
    return RewardSet(tuple(names), tuple(kept), rewards.weights[chosen])


def _score(rewards: _Rewards, batch: RewardBatch) -> _Found:
    single, sets = rewards
    # A thread starts on the first GPU; a reward that says "cuda" means the one of its process.
    with torch.cuda.device_of(batch.images):
        return single.score(batch), observe_all(sets, batch)
