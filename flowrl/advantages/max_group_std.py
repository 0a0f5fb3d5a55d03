"""The weighted sum of the rewards, over the widest group's spread."""

from __future__ import annotations

from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def max_group_std(
    scores: Tensor, weights: Tensor, *, ddof: int = 0, eps: float = 1e-4, clip: float | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Divide by the largest standard deviation of the step's groups, so that nearly equal scores are not blown up.

        s = sum_r w_r s_r,    A = (s - mean(s)) / (max over groups of std(s) + eps)

    As in GenRL, https://github.com/ModelTC/GenRL, whose ddof and eps are not known here: these are `group`'s.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        ddof: 0 for the population's standard deviation, 1 for the unbiased estimate.
        eps: added to the standard deviation, in units of the weighted sum; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> import torch
    >>> max_group_std(torch.tensor([[[0.0], [1.0]], [[0.0], [4.0]]]), torch.ones(1), eps=0.0)[0].tolist()
    [[-0.25, 0.25], [-1.0, 1.0]]
    """
    check(scores, weights, ddof, eps, clip)
    total, valid = weighted_sum(scores, weights)
    mean, std, live = moments(total, valid, ddof)
    # A group without spread reports a deviation of 1, which must not count.
    widest = std.where(live, 0.0).amax() if live.any() else std.amax()
    return finish((total - mean) / (widest + eps), valid & live, clip), diagnostics(total, valid, live)
