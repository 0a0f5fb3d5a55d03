"""One score for all samples that a noisy reward cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..group_statistics import by_column, check, columns_of, is_number, require, usable


def dropout_bins(
    scores: Tensor, weights: Tensor, *, names: Sequence[str], members: Sequence[str], z: float = 1.0
) -> Tensor:
    """Merge the samples of a group whose scores differ by less than the reward's own noise, each bin by its mean.

    Members are one reward, asked several times with noise (dropout, augmentation), each under a name of its own. In the
    order of the samples' means m, a new bin begins where

        m_(i+1) - m_(i) > z sqrt((std_(i)^2 + std_(i+1)^2) / 2)

    with each sample's std over the members (unbiased). Every member's column becomes the mean of the sample's bin, so
    that their weights add up. A sample that a member cannot score is left out.

    The idea is that of https://arxiv.org/abs/2606.21795; how bins are formed is ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        members: two or more of them.
        z: how many deviations apart bins are, >= 0.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> scores = torch.tensor([[[0.0, 0.2], [0.1, 0.3], [5.0, 5.2]]])  # the means .1 and .2 are within the noise
    >>> dropout_bins(scores, torch.ones(2), names=["a", "b"], members=["a", "b"])[0, :, 0].round(decimals=3).tolist()
    [0.15, 0.15, 5.1]
    """
    check(scores, weights)
    require(is_number(z) and z >= 0, "shaping dropout_bins: z", "a number >= 0", z)
    asked = columns_of(members, names, "shaping dropout_bins: members", least=2)
    valid = usable(scores, weights)
    valid = valid & valid[..., asked].all(dim=-1, keepdim=True)
    found = by_column(scores, valid, lambda values, _: values)
    known = valid[..., asked[0]]
    passes = torch.where(known[..., None], scores[..., asked].double(), 0.0)
    binned = _bins(passes.mean(dim=-1), passes.std(dim=-1), known, z)
    found[..., asked] = torch.where(known, binned, torch.nan)[..., None].expand_as(passes)
    return found


def _bins(means: Tensor, stds: Tensor, known: Tensor, z: float) -> Tensor:
    """The mean of each sample's bin `[P, G]`; unknown samples come last and join nobody."""
    first = stds.argsort(dim=-1, stable=True)  # equal means in the order of their stds, so that rows may be shuffled
    key = torch.where(known, means, torch.inf)
    order = first.gather(-1, key.gather(-1, first).argsort(dim=-1, stable=True))
    m, s, k = means.gather(-1, order), stds.gather(-1, order), known.gather(-1, order)
    apart = (m[:, 1:] - m[:, :-1] > z * ((s[:, 1:].square() + s[:, :-1].square()) / 2).sqrt()) | ~k[:, 1:]
    number = torch.nn.functional.pad(apart.long().cumsum(dim=-1), (1, 0))
    sums = torch.zeros_like(m).scatter_add_(-1, number, m)
    sizes = torch.zeros_like(m).scatter_add_(-1, number, torch.ones_like(m))
    return torch.empty_like(m).scatter_(-1, order, (sums / sizes.clamp(min=1)).gather(-1, number))
