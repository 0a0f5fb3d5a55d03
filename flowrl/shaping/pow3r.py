"""More weight to the rewards that tell the samples of a group apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..group_statistics import by_column, check, columns_of, is_number, moments, require, usable


def pow3r(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    categories: Sequence[Sequence[str]] | None = None,
    eps: float = 0.05,
    low: float = 0.25,
    high: float = 4.0,
) -> Tensor:
    """Multiply each criterion by its contrast in the group, so that criteria that all pass or all fail stand back.

        s_r -> a_r s_r,    a_r ~ clip((std(s_r) + eps) / (weighted mean of that in the category), low, high)

    scaled so that ``sum |w_r| a_r = sum |w_r|`` in each category: what a category counts stays as its author set it.
    For criteria on one scale, such as [0, 1], and an advantage that does not normalise each reward by itself (``gdpo``
    would undo it). Rewards of weight 0 are left as they are.

    See POW3R, https://arxiv.org/abs/2605.20164, known here from a summary: how the contrast becomes a factor, and the
    defaults, are ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        categories: lists of rewards; those in none form one together. None is a single category.
        eps: contrast of a criterion without spread; > 0.
        low: least factor before scaling; > 0.
        high: largest factor before scaling; >= 1.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> scores = torch.tensor([[[0.0, 1.0], [1.0, 1.0]]])  # the second criterion is passed by all
    >>> pow3r(scores, torch.ones(2), names=["a", "b"])[0, 1].round(decimals=2).tolist()
    [1.76, 0.24]
    """
    check(scores, weights)
    require(is_number(eps) and eps > 0, "shaping pow3r: eps", "a number > 0", eps)
    require(is_number(low) and 0 < low <= 1, "shaping pow3r: low", "a number over 0, at most 1", low)
    require(is_number(high) and high >= 1, "shaping pow3r: high", "a number >= 1", high)
    columns = [columns_of(list(category), names, "shaping pow3r: categories") for category in categories or []]
    listed = [column for category in columns for column in category]
    require(len(set(listed)) == len(listed), "shaping pow3r: categories", "each reward once", categories)
    valid, w = usable(scores, weights), weights.double().abs()
    rest = [column for column in range(len(w)) if column not in listed]

    def shape(values: Tensor, known: Tensor) -> Tensor:
        _, std, spread = moments(values, known)
        contrast = torch.where(spread, std, 0.0)[..., 0] + eps
        factor = torch.ones_like(contrast)
        for category in (*columns, rest):
            used = [column for column in category if w[column] != 0]
            if used:
                total = w[used].sum()
                raw = contrast[:, used] / ((contrast[:, used] @ w[used]) / total)[:, None]
                raw = raw.clamp(low, high)
                factor[:, used] = raw / ((raw @ w[used]) / total)[:, None]
        return values * factor[..., None]

    return by_column(scores, valid, shape)
