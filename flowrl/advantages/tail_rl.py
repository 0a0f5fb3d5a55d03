"""The best samples of a group count by how rare they are."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def tail_rl(scores: Tensor, weights: Tensor, *, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """Raise the log-probability of passing every threshold, the high ones that few samples pass as well.

        a_i = G sum_{j <= i} (s_(j) - s_(j-1)) / (G - j + 1),    A = a - mean(a)

    in ascending order of the weighted sum: each threshold below a sample's score adds one over the share of samples
    that pass it. For a score of 0 or 1 that is ``1 / (share of ones)``. Advantages keep the scale of the scores, and a
    lone winner's is about G times its lead.

    See TailRL, https://github.com/Zanette-Labs/TailRL.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> tail_rl(torch.tensor([[[0.0], [0.5], [1.0]]]), torch.ones(1))[0].tolist()
    [[-1.0, -0.25, 1.25]]
    """
    check(scores, weights, clip=clip)
    total, valid = weighted_sum(scores, weights)
    count = valid.sum(dim=-1, keepdim=True)
    ordered, order = torch.where(valid, total, torch.inf).sort(dim=-1)
    place = torch.arange(total.shape[-1], device=total.device).expand_as(total)
    gaps = torch.where((place > 0) & (place < count), ordered - ordered.roll(1, dims=-1), 0.0)
    raw = (gaps * count / (count - place).clamp(min=1)).cumsum(dim=-1)
    found = torch.empty_like(raw).scatter_(-1, order, raw)
    _, _, live = moments(total, valid)
    mean, _, _ = moments(found, valid)
    return finish(found - mean, valid & live, clip), diagnostics(total, valid, live)
