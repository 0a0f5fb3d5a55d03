"""Only the winners of a group count."""

from __future__ import annotations

from torch import Tensor

from ..group_statistics import check, diagnostics, finish, moments, weighted_sum


def wapo(scores: Tensor, weights: Tensor, *, clip: float | None = None) -> tuple[Tensor, dict[str, float]]:
    """Learn from samples above their group's mean, and push none down.

        A = max(0, s - mean(s)),    s = sum_r w_r s_r

    The loss is still a mean over all samples, so a group with few winners counts less. The paper's ratio is clipped
    from above only, at 10: with ``A >= 0`` that is GRPO's clip with ``objective.clip_range: 9`` for log-probabilities
    that are sums. Nothing pushes samples apart, so watch diversity.

    See WAPO, https://arxiv.org/abs/2606.16154.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        clip: largest advantage, or None.

    Returns:
        Advantages `[P, G]` float32, >= 0, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> import torch
    >>> wapo(torch.tensor([[[0.0], [1.0], [5.0]]]), torch.ones(1))[0].tolist()
    [[0.0, 0.0, 3.0]]
    """
    check(scores, weights, clip=clip)
    total, valid = weighted_sum(scores, weights)
    mean, _, live = moments(total, valid)
    return finish((total - mean).clamp(min=0), valid & live, clip), diagnostics(total, valid, live)
