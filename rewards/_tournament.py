"""Who is best of N by comparing pairs: all pairs, or a seeded knock-out with 2N - 2 of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

Pair = tuple[int, int]
Compare = Callable[[Sequence[Pair]], list[float]]
"""For each pair, how far the first beats the second: 1, 0, 0.5 for a tie, NaN for no verdict."""


def all_pairs(count: int, compare: Compare) -> Tensor:
    """Each one's mean result over its pairs with a verdict, `[N]`; NaN where there is none.

    >>> all_pairs(3, lambda pairs: [1.0 if a < b else 0.0 for a, b in pairs]).tolist()
    [1.0, 0.5, 0.0]
    """
    pairs = list(combinations(range(count), 2))
    return _means(count, pairs, compare(pairs))


def knock_out(count: int, compare: Compare) -> Tensor:
    """The rank of each in a seeded knock-out as ``1 - rank / (N - 1)``, `[N]`: 1 for the winner, 0 for the last.

    All meet sample 0, and their results are the seeds; then the bracket is played, where the first seeds meet last and
    pass rounds without an opponent. Those who lose in one round are ranked by their mean result over all they played. A
    tie, or a pair without a verdict, goes to the better seed; equal seeds stand in the samples' order. See ArenaRL,
    https://arxiv.org/abs/2601.06487.

    >>> knock_out(3, lambda pairs: [1.0 if a < b else 0.0 for a, b in pairs]).tolist()
    [1.0, 0.5, 0.0]
    """
    played = [(0, other) for other in range(1, count)]
    results = compare(played)
    seeding = [0.5 if math.isnan(value) else value for value in _means(count, played, results).tolist()]
    order = sorted(range(count), key=lambda one: -seeding[one])
    seed = {one: place for place, one in enumerate(order)}
    slots = [order[place] if place < count else None for place in _bracket(count)]
    ranking: list[int] = []
    while len(slots) > 1:
        meetings = list(zip(slots[::2], slots[1::2], strict=True))
        pairs = [(a, b) for a, b in meetings if a is not None and b is not None]
        verdicts = compare(pairs)
        played, results = [*played, *pairs], [*results, *verdicts]
        won = {pair: _winner(pair, verdict, seed) for pair, verdict in zip(pairs, verdicts, strict=True)}
        slots = [won[a, b] if a is not None and b is not None else b if a is None else a for a, b in meetings]
        means = _means(count, played, results).nan_to_num(nan=0.5).tolist()
        lost = [a + b - winner for (a, b), winner in won.items()]
        ranking = sorted(lost, key=lambda one: (-means[one], seed[one])) + ranking
    ranking = [one for one in slots if one is not None] + ranking
    ranks = torch.empty(count).scatter_(0, torch.tensor(ranking), torch.arange(count, dtype=torch.float32))
    return 1 - ranks / (count - 1)


def _winner(pair: Pair, verdict: float, seed: dict[int, int]) -> int:
    first, second = pair
    if verdict == 0.5 or math.isnan(verdict):
        return min(pair, key=lambda one: seed[one])
    return first if verdict > 0.5 else second


def _bracket(count: int) -> list[int]:
    """The seeds in the order of the bracket, which is filled up to a power of two.

    >>> _bracket(3), _bracket(8)
    ([0, 3, 1, 2], [0, 7, 3, 4, 1, 6, 2, 5])
    """
    seeds = [0]
    while len(seeds) < count:
        size = 2 * len(seeds)
        seeds = [seed for one in seeds for seed in (one, size - 1 - one)]
    return seeds


def _means(count: int, pairs: Sequence[Pair], results: Sequence[float]) -> Tensor:
    points: list[list[float]] = [[] for _ in range(count)]
    for (first, second), result in zip(pairs, results, strict=True):
        if not math.isnan(result):
            points[first].append(result)
            points[second].append(1 - result)
    return torch.tensor([sum(own) / len(own) if own else math.nan for own in points])
