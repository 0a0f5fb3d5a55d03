"""Fixed utilities by the place in the group, of which the best half gets nearly all."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import by_column, check, usable


def rank(scores: Tensor, weights: Tensor) -> Tensor:
    """Replace each score by a utility of its place in the group: 1 is the best of n.

        u = max(0, log(n / 2 + 1) - log(place)) / (sum over places of the same) - 1 / n

    Samples that tie share the mean of their places' utilities. The worse half gets -1/n whatever it scored, so failures
    pull no weight; for places in equal steps take ``win_rate``. A group's utilities add up to 0.

    See "Natural Evolution Strategies", Wierstra et al., https://arxiv.org/abs/1106.4487.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.

    Raises:
        ValueError: the shapes do not fit.

    >>> rank(torch.tensor([[[0.1], [7.0], [7.0]]]), torch.ones(1)).flatten().round(decimals=3).tolist()
    [-0.333, 0.167, 0.167]
    """
    check(scores, weights)

    def shape(values: Tensor, valid: Tensor) -> Tensor:
        count = valid.sum(dim=-1, keepdim=True)
        places = torch.arange(1, values.shape[-1] + 1, device=values.device)
        raw = (torch.log(count / 2 + 1).double() - torch.log(places.double())).clamp(min=0)
        raw = torch.where(places <= count, raw, 0.0)
        summed = torch.nn.functional.pad(raw.cumsum(dim=-1), (1, 0))  # utilities of the first k places, k = 0 .. G
        others = valid[..., None, :]
        better = ((values[..., None, :] > values[..., :, None]) & others).sum(dim=-1)
        tied = ((values[..., None, :] == values[..., :, None]) & others).sum(dim=-1)
        share = summed.gather(-1, better + tied) - summed.gather(-1, better)
        total = summed[..., -1:].where(count > 0, 1.0)
        return share / tied.clamp(min=1) / total - 1 / count.clamp(min=1)

    return by_column(scores, usable(scores, weights), shape)
