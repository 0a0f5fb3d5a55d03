"""The weighted sum of the rewards, divided by how much they say the same."""

from __future__ import annotations

import torch
from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def corr_grpo(
    scores: Tensor, weights: Tensor, *, eps: float = 1e-4, clip: float | None = 5.0
) -> tuple[Tensor, dict[str, float]]:
    """Divide the centred weighted sum by the correlations of the rewards, so that doubles of a reward count less.

        A = (s - mean(s)) / sqrt(max(0, sum_qr rho_qr) + eps),    s = sum_r w_r s_r

    ``rho`` is the correlation matrix of ``w_r s_r`` in the group, 0 for a reward without spread. R independent rewards
    are divided by ``sqrt(R)``, R doubles of one by R, a single one by 1: the advantage keeps the scale of the scores,
    so a wide reward still leads. Rewards that contradict each other make the denominator small, hence the clip.

    See CorrGRPO, https://arxiv.org/abs/2609.36820. The clip and the eps are ours.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        eps: added to the sum of the correlations; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> corr_grpo(torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]), torch.ones(2), eps=0.0)[0].tolist()
    [[-0.5, 0.5]]
    """
    check(scores, weights, eps=eps, clip=clip)
    used = weights != 0
    total, valid = weighted_sum(scores, weights)
    columns = (scores[..., used].double().nan_to_num() * weights[used].double()).movedim(-1, 0)
    mean, std, spread = moments(columns, valid)
    standard = torch.where(valid & spread, (columns - mean) / std, 0.0)
    rho = torch.einsum("qpg,rpg->pqr", standard, standard) / valid.sum(dim=-1).clamp(min=1)[:, None, None]
    agreement = rho.sum(dim=(1, 2))[:, None].clamp(min=0) + eps
    centre, _, live = moments(total, valid)
    # Without eps, rewards that cancel but for a little leave nothing to divide by: the clip takes over.
    found = (total - centre) / agreement.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
    return finish(found, valid & live, clip), diagnostics(total, valid, live)
