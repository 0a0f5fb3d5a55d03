"""Samples that an ensemble of rewards disagrees about count less."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..group_statistics import check, columns_of, moments
from .group import group


def uncertainty(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    members: Sequence[str],
    ddof: int = 0,
    eps: float = 1e-4,
    clip: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Scale the advantage of `group` down where several opinions on a sample differ.

        A = exp(-u / mean(u)) A_group,    u = std over the members (unbiased)

    with the mean over the step; 1 where all members agree on everything. Members are rewards of the run: several heads,
    or one head under several names that looks at the picture in different ways. It acts after the normalisation, so the
    advantages of a group need not add up to 0.

    The weight ``exp(-u)`` is that of Ctrl-U, https://arxiv.org/abs/2410.11236, which has it on the pixels of a reward
    loss; on advantages, and over the mean of u, it is ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched, or a member.
        names: of the R rewards; the run gives them.
        members: two or more of them, on one scale.
        ddof: of `group`'s standard deviation.
        eps: as for `group`.
        clip: largest absolute advantage before the scaling, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package. A sample on which a member has no opinion
        is left out.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> scores = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])  # two heads that agree: nothing changes
    >>> uncertainty(scores, torch.ones(2), names=["a", "b"], members=["a", "b"], eps=0.0)[0].tolist()
    [[-1.0, 1.0]]
    """
    check(scores, weights, ddof, eps, clip)
    asked = columns_of(members, names, "advantage uncertainty: members", least=2)
    opinions = scores[..., asked].double()
    known = opinions.isfinite().all(dim=-1, keepdim=True)
    advantages, found = group(torch.where(known, scores, torch.nan), weights, ddof=ddof, eps=eps, clip=clip)
    valid = known[..., 0] & scores[..., weights != 0].isfinite().all(dim=-1)
    _, std, spread = moments(opinions.nan_to_num(), valid[..., None].expand_as(opinions), ddof=1)
    u = torch.where(spread, std, 0.0)[..., 0]
    mean, _, _ = moments(u.reshape(1, -1), valid.reshape(1, -1))
    return advantages * torch.exp(-u / torch.where(mean > 0, mean, 1.0)).float(), found
