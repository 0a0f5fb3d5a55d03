"""The weighted sum of the rewards, only centred."""

from __future__ import annotations

from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def opo(scores: Tensor, weights: Tensor, *, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """Subtract the baseline of least variance and divide by nothing, so that hard and easy prompts count by their gap.

        A = s - b,    b = sum_i l_i s_i / sum_i l_i,    s = sum_r w_r s_r

    with ``l`` the length of a sample. Trajectories of one schedule are equally long, so ``b`` is the group's mean. Made
    for one update a step (``updates_per_step: 1``) and no KL. Advantages keep the scale of the scores: choose the
    learning rate for it.

    See OPO, https://github.com/microsoft/LMOps/tree/main/opo.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> import torch
    >>> opo(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.ones(1))[0].tolist()
    [[-2.0, -1.0, 3.0]]
    """
    check(scores, weights, clip=clip)
    total, valid = weighted_sum(scores, weights)
    mean, _, live = moments(total, valid)
    return finish(total - mean, valid & live, clip), diagnostics(total, valid, live)
