"""Rewards weighted by their spread in the group."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def dvao(scores: Tensor, weights: Tensor, *, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """Weigh each reward's own advantage by how much of the group's spread it has: equal scores decide little.

        A = sum_r v_r (s_r - mean(s_r)) / std(s_r),    v_r = w_r std(s_r) / sum_q |w_q| std(s_q)

    which is the centred weighted sum over ``sum_q |w_q| std(s_q)``: never larger than the sum of the rewards'
    advantages, and smaller where they disagree. It sees the scale of a reward, so bring them to one range first. The
    standard deviation is the population's.

    See DVAO, https://arxiv.org/abs/2605.25604, known here from a summary with its formulas.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> dvao(torch.tensor([[[0.0, 0.0], [1.0, 3.0]]]), torch.ones(2))[0].tolist()
    [[-1.0, 1.0]]
    """
    check(scores, weights, clip=clip)
    used = weights != 0
    total, valid = weighted_sum(scores, weights)
    columns = scores[..., used].double().nan_to_num().movedim(-1, 0)
    _, std, spread = moments(columns, valid)
    size = torch.einsum("rpg,r->pg", torch.where(spread, std, 0.0), weights[used].double().abs())
    mean, _, live = moments(total, valid)
    return finish((total - mean) / torch.where(live, size, 1.0), valid & live, clip), diagnostics(total, valid, live)
