"""Pairs of pictures from the same prompt and the same noise, before and after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from .folder import Evaluation, Sample

T = TypeVar("T")


class Outcome(Enum):
    """What became of a picture. A reward that only says 0 or 1 judges; any other ranks."""

    FIXED = "fixed"
    RIGHT = "right"
    WRONG = "wrong"
    BROKEN = "broken"
    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    UNSCORED = "unscored"

    @property
    def label(self) -> str:
        """The outcome in words."""
        return _LABELS[self]

    @property
    def mark(self) -> str:
        """The outcome as one sign, so that colour is never the only cue."""
        return _MARKS[self]


_LABELS = {
    Outcome.FIXED: "wrong to right",
    Outcome.RIGHT: "stayed right",
    Outcome.WRONG: "stayed wrong",
    Outcome.BROKEN: "right to wrong",
    Outcome.BETTER: "better",
    Outcome.SAME: "same score",
    Outcome.WORSE: "worse",
    Outcome.UNSCORED: "not scored",
}
_MARKS = {
    Outcome.FIXED: "\u2713",
    Outcome.RIGHT: "\u2713",
    Outcome.WRONG: "\u2717",
    Outcome.BROKEN: "\u2717",
    Outcome.BETTER: "\u2191",
    Outcome.SAME: "=",
    Outcome.WORSE: "\u2193",
    Outcome.UNSCORED: "?",
}


@dataclass(frozen=True)
class Pair:
    """The same prompt and noise through the model before and after."""

    before: Sample
    after: Sample
    outcome: Outcome


@dataclass(frozen=True)
class Pairing:
    """All pairs of two evaluations.

    Attributes:
        before: the earlier evaluation.
        after: the later one.
        reward: the reward that the outcomes speak of, or None where nothing was scored.
        pairs: in the order of the evaluation.
    """

    before: Evaluation
    after: Evaluation
    reward: str | None
    pairs: tuple[Pair, ...]

    def tally(self) -> dict[Outcome, int]:
        """How many pairs had which outcome, in the order of :class:`Outcome`, without the empty ones."""
        counts = {outcome: sum(pair.outcome is outcome for pair in self.pairs) for outcome in Outcome}
        return {outcome: count for outcome, count in counts.items() if count}

    def changes(self, reward: str) -> list[float]:
        """After minus before of one reward, over the pairs in which both could be scored."""
        both = (
            pair.after.scores.get(reward, math.nan) - pair.before.scores.get(reward, math.nan) for pair in self.pairs
        )
        return [change for change in both if math.isfinite(change)]


def judge(before: float, after: float, *, binary: bool, higher_is_better: bool = True) -> Outcome:
    """Say what became of a picture.

    Args:
        before: score of the earlier picture.
        after: score of the later one.
        binary: the scores are 0 (wrong) and 1 (right), the other way round where lower is better.
        higher_is_better: the direction of the reward.

    >>> judge(0.0, 1.0, binary=True), judge(0.4, 0.3, binary=False)
    (<Outcome.FIXED: 'fixed'>, <Outcome.WORSE: 'worse'>)
    """
    if not (math.isfinite(before) and math.isfinite(after)):
        return Outcome.UNSCORED
    if not higher_is_better:
        before, after = (1 - before, 1 - after) if binary else (-before, -after)
    if binary:
        outcomes = {(0, 1): Outcome.FIXED, (1, 1): Outcome.RIGHT, (0, 0): Outcome.WRONG, (1, 0): Outcome.BROKEN}
        return outcomes[int(before), int(after)]
    if math.isclose(before, after, rel_tol=1e-6, abs_tol=1e-9):
        return Outcome.SAME
    return Outcome.BETTER if after > before else Outcome.WORSE


def _is_binary(reward: str, samples: Sequence[Sample]) -> bool:
    scores = {sample.scores.get(reward, math.nan) for sample in samples}
    finite = {score for score in scores if math.isfinite(score)}
    return bool(finite) and finite <= {0.0, 1.0}


def pair_up(before: Evaluation, after: Evaluation, higher_is_better: Callable[[str], bool] = lambda _: True) -> Pairing:
    """Pair the pictures of two evaluations.

    Only pictures of the same prompt row, prompt, sample number and seed make a pair: anything else would show luck.
    The outcome is that of the first reward whose scores are all 0 or 1, because right and wrong say more than better
    and worse; without one, that of the first reward.

    Args:
        before: the earlier evaluation.
        after: the later one.
        higher_is_better: the direction of a reward, by its name.
    """
    later = {sample.key: sample for sample in after.samples}
    matched = [(sample, later[sample.key]) for sample in before.samples if sample.key in later]
    everything = [sample for both in matched for sample in both]
    names = list(dict.fromkeys(name for sample in everything for name in sample.scores))
    reward = next((name for name in names if _is_binary(name, everything)), names[0] if names else None)
    if reward is None:
        return Pairing(before, after, None, tuple(Pair(*both, Outcome.UNSCORED) for both in matched))
    binary, higher = _is_binary(reward, everything), higher_is_better(reward)
    pairs = (
        Pair(
            first,
            second,
            judge(
                first.scores.get(reward, math.nan),
                second.scores.get(reward, math.nan),
                binary=binary,
                higher_is_better=higher,
            ),
        )
        for first, second in matched
    )
    return Pairing(before, after, reward, tuple(pairs))


def spread(items: Sequence[T], count: int) -> list[T]:
    """Take ``count`` items at even distances, first and last included: a choice that cannot look at scores.

    >>> spread("abcdefghi", 3), spread("ab", 5)
    (['a', 'e', 'i'], ['a', 'b'])
    """
    if len(items) <= count:
        return list(items)
    if count < 2:
        return list(items[:count])
    return [items[round(place * (len(items) - 1) / (count - 1))] for place in range(count)]
