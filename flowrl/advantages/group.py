"""The weighted sum of the rewards, normalised in each group: the advantage of GRPO."""

from __future__ import annotations

from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def group(
    scores: Tensor,
    weights: Tensor,
    *,
    ddof: int = 0,
    eps: float = 1e-4,
    global_std: bool = False,
    clip: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Normalise the weighted sum of the rewards by the mean and the spread of each group.

        s = sum_r w_r s_r,    A = (s - mean(s)) / (std(s) + eps)

    See "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", Shao et al.,
    https://arxiv.org/abs/2402.03300, and "Flow-GRPO: Training Flow Matching Models via Online RL", Liu et al.,
    https://arxiv.org/abs/2505.05470. The defaults are those of Flow-GRPO's released code but for ``global_std``, which
    its newer configs switch on; DanceGRPO's are ``ddof=1, eps=1e-8, clip=5``.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        ddof: 0 for the population's standard deviation, 1 for the unbiased estimate.
        eps: added to the standard deviation, in units of the weighted sum; >= 0.
        global_std: divide by the standard deviation of all samples of the step instead of the group's own, which
            keeps a group of nearly equal scores from being blown up.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> import torch
    >>> scores = torch.tensor([[[0.0], [1.0]], [[3.0], [3.0]]])
    >>> advantages, diagnostics = group(scores, torch.ones(1), eps=0.0)
    >>> advantages.tolist(), diagnostics["dead_groups"]
    ([[-1.0, 1.0], [0.0, 0.0]], 1.0)
    """
    check(scores, weights, ddof, eps, clip)
    total, valid = weighted_sum(scores, weights)
    mean, std, live = moments(total, valid, ddof)
    if global_std:
        std = moments(total.reshape(1, -1), valid.reshape(1, -1), ddof)[1]
    return finish((total - mean) / (std + eps), valid & live, clip), diagnostics(total, valid, live)
