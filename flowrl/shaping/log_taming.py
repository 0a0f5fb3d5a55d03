"""The logarithm of rewards that vary much."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..group_statistics import by_column, check, is_number, moments, require, usable


def log_taming(scores: Tensor, weights: Tensor, *, names: Sequence[str], delta: float | None = None) -> Tensor:
    """Take the logarithm of the rewards that vary most in the step, so that they do not drown the others.

        s -> log(1 + s) where h = std(s) / (mean(s) + 1e-6) > delta

    with statistics over all samples of the step (population), for scores that are not negative. A reward of weight 0 is
    left as it is.

    See PaCo-RL, https://arxiv.org/abs/2512.04784.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        delta: > 0; None is the mean of h over the rewards, so that at least one is tamed unless all vary alike.

    Raises:
        ValueError: the shapes do not fit.
        UserError: delta is out of range, or a reward has negative scores.

    >>> scores = torch.tensor([[[2.0, 0.9], [4.0, 1.0], [6.0, 1.1], [8.0, 1.0]]])
    >>> log_taming(scores, torch.ones(2), names=["a", "b"])[0, :, 0].round(decimals=3).tolist()
    [1.099, 1.609, 1.946, 2.197]
    """
    check(scores, weights)
    require(delta is None or (is_number(delta) and delta > 0), "shaping log_taming: delta", "a number > 0", delta)
    valid, used = usable(scores, weights), weights != 0
    lowest = torch.where(valid, scores, 0.0).amin(dim=(0, 1))
    for name, low, counts in zip(names, lowest.tolist(), used.tolist(), strict=True):
        if counts and low < 0:
            raise UserError(
                f"shaping log_taming: reward {name!r} scored {low:g}, and the logarithm needs scores of 0 or more. "
                "Give it the weight 0, or write another shaping, such as win_rate."
            )
    columns = by_column(scores, valid, lambda values, _: values).flatten(0, 1).T
    mean, std, spread = moments(columns.nan_to_num(), valid.flatten(0, 1).T)
    h = torch.where(spread, std, 0.0)[:, 0] / (mean[:, 0] + 1e-6)
    limit = h[used].mean() if delta is None else delta
    tamed = used & (h > limit)
    return by_column(scores, valid, lambda values, _: torch.where(tamed[:, None], values.log1p(), values))
