"""Rewards that are normalised before they are summed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum
from .group import group


def gdpo(
    scores: Tensor, weights: Tensor, *, ddof: int = 1, eps: float = 1e-4, clip: float | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Normalise each reward inside its group before they are summed, so that a wide reward does not drown a narrow one.

        a_r = (s_r - mean(s_r)) / (std(s_r) + eps),    a = sum_r w_r a_r
        A = (a - mean(a over the step)) / (std(a over the step) + eps)

    Without this, [(0, 0), (1, 0)] and [(0, 0), (1, 1)] get the same advantages, though the second winner is better in
    both rewards. A reward without spread in a group adds 0 there. With a single reward of weight other than 0 this is
    :func:`group`.

    See "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization", Liu et al.,
    https://arxiv.org/abs/2601.05242. The released code takes a NaN for a score of 0; here its sample is left out.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        ddof: 0 for the population's standard deviation, 1 for the unbiased estimate.
        eps: added to each standard deviation; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> scores = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    >>> advantages, _ = gdpo(scores, torch.ones(2), ddof=0, eps=0.0)
    >>> (advantages[1] / advantages[0]).tolist()
    [2.0, 2.0]
    """
    check(scores, weights, ddof, eps, clip)
    used = weights != 0
    if int(used.sum()) == 1:
        return group(scores, weights, ddof=ddof, eps=eps, clip=clip)
    total, valid = weighted_sum(scores, weights)
    columns = scores[..., used].double().nan_to_num().movedim(-1, 0)
    mean, std, spread = moments(columns, valid, ddof)
    normalised = torch.where(valid & spread, (columns - mean) / (std + eps), 0.0)
    summed = torch.einsum("rpg,r->pg", normalised, weights[used].double())
    live = spread.any(dim=0)
    mean, std, _ = moments(summed.reshape(1, -1), valid.reshape(1, -1), ddof)
    return finish((summed - mean) / (std + eps), valid & live, clip), diagnostics(total, valid, live)
