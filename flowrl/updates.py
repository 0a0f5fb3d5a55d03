"""How a training step's samples are shared out to its optimizer updates, and how far each goes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from .config import RunConfig


def shares(counts: Mapping[int, int], updates: int) -> list[dict[int, slice]]:
    """Which samples each update of a step trains on: contiguous shares, wherever the micro-batches were cut.

    Args:
        counts: samples of each micro-batch, by index, in order.
        updates: number of updates; if there are fewer samples, there are fewer updates.

    Returns:
        For each update, the part of each micro-batch that it trains on.

    >>> shares({0: 4, 1: 2}, 2)
    [{0: slice(0, 3, None)}, {0: slice(3, 4, None), 1: slice(0, 2, None)}]
    """
    total = sum(counts.values())
    bounds = [total * number // updates for number in range(updates + 1)]
    found = []
    for low, high in pairwise(bounds):
        share, start = {}, 0
        for index, count in counts.items():
            part = slice(max(low - start, 0), min(high - start, count))
            if part.start < part.stop:
                share[index] = part
            start += count
        if share:
            found.append(share)
    return found


def learning_rate(config: RunConfig, step: int) -> float:
    """The learning rate of a step, from 0: a linear warm-up, times a half for every half-life.

    >>> config = RunConfig(model={"path": "a"}, rewards={"b": 1}, warmup_steps=2, learning_rate_half_life=10)
    >>> learning_rate(config, 0), learning_rate(config, 10), config.learning_rate
    (0.00015, 0.00015, 0.0003)
    """
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    half_life = config.learning_rate_half_life
    return config.learning_rate * warm * (1.0 if half_life is None else 0.5 ** (step / half_life))
