"""The worst that an ensemble of rewards makes plausible."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..group_statistics import by_column, check, columns_of, is_number, moments, require, usable


def pessimism(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    members: Sequence[str],
    beta: float = 1.0,
    rule: str = "gaussian",
) -> Tensor:
    """Replace the scores of an ensemble by its lower side: what they say under the worst nearby distribution.

        exact:     r = -beta log(1/K sum_k exp(-s_k / beta))
        gaussian:  r = max(mean(s) - var(s) / (2 beta), min(s)),    with the unbiased variance

    Large ``beta`` is the mean, small the minimum. ``gaussian`` is the better estimate from up to ten members, and the
    usual uncertainty-weighted sum with ``lambda = 1 / (2 beta)``. The result is in the column of every member, so that
    their weights add up; a member of weight 0 has an opinion all the same. A sample that a member cannot score is left
    out. Members need one scale: they differ in what they know, not in their units.

    See https://arxiv.org/abs/2606.09073; the floor at the minimum is ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        members: two or more of them.
        beta: in the scores' units, > 0.
        rule: ``gaussian`` or ``exact``.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> scores = torch.tensor([[[1.0] * 8 + [-2.0] * 2]])
    >>> names = list("abcdefghij")
    >>> pessimism(scores, torch.ones(10), names=names, members=names, rule="exact")[0, 0, 0].round(decimals=3).item()
    -0.572
    """
    check(scores, weights)
    require(is_number(beta) and beta > 0, "shaping pessimism: beta", "a number > 0", beta)
    require(rule in ("gaussian", "exact"), "shaping pessimism: rule", "gaussian or exact", rule)
    asked = columns_of(members, names, "shaping pessimism: members", least=2)
    valid = usable(scores, weights)
    valid = valid & valid[..., asked].all(dim=-1, keepdim=True)
    found = by_column(scores, valid, lambda values, _: values)
    opinions = scores[..., asked].double()
    if rule == "exact":
        worst = -beta * (torch.logsumexp(-opinions / beta, dim=-1) - math.log(len(asked)))
    else:
        mean, std, spread = moments(opinions.nan_to_num(), torch.ones_like(opinions, dtype=torch.bool), ddof=1)
        variance = torch.where(spread, std, 0.0).square()
        worst = (mean - variance / (2 * beta))[..., 0].maximum(opinions.amin(dim=-1))
    found[..., asked] = worst[..., None].where(valid[..., asked], torch.nan)
    return found
