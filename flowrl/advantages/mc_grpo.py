"""The weighted sum of the rewards, by median and median deviation."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import check, diagnostics, finish, median, moments, weighted_sum


def mc_grpo(
    scores: Tensor, weights: Tensor, *, eps: float = 1e-3, clip: float | None = 5.0
) -> tuple[Tensor, dict[str, float]]:
    """Compare with the median of the group, which one outlier of a small group does not move.

        A = (s - m) / (median|s - m| + eps) * G / (number of samples with s != m),    m = median(s)

    Meant for groups of an odd size: there the median is a sample, which gets 0, and the others' sum keeps its size.
    In a group of mostly equal scores the deviation is 0 and the others would get a thousandfold, hence the clip.
    Advantages do not add up to 0.

    See MC-GRPO, https://arxiv.org/abs/2601.22582, published for groups of 2 to 8 and one. The clip is ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        eps: added to the median deviation, in units of the weighted sum; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> mc_grpo(torch.tensor([[[0.0], [1.0], [3.0]]]), torch.ones(1), eps=0.0)[0].tolist()
    [[-1.5, 0.0, 3.0]]
    """
    check(scores, weights, eps=eps, clip=clip)
    total, valid = weighted_sum(scores, weights)
    _, _, live = moments(total, valid)
    deviation = torch.where(valid, total - median(total, valid), 0.0)
    moved = (deviation != 0).sum(dim=-1, keepdim=True).clamp(min=1)
    typical = median(deviation.abs(), valid) + eps
    # With eps 0 and mostly equal scores there is nothing to divide by: the clip takes over.
    found = deviation / typical.clamp(min=torch.finfo(torch.float64).tiny)
    found = found * valid.sum(dim=-1, keepdim=True) / moved
    return finish(found, valid & live, clip), diagnostics(total, valid, live)
