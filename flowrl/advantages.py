"""From the scores of groups to advantages: one pure function each.

Every function here has the contract

    f(scores [P, G, R], weights [R], **options) -> (advantages [P, G], diagnostics)

with P prompts (groups) a step, G samples a group and R rewards. Scores are raw but for their sign: larger is better.
NaN means "could not score": a sample with a NaN among the rewards of weight other than 0 is left out of all statistics
and its advantage is 0, so it moves nobody else's. A group without spread has advantages of exactly 0, never
``0 / eps``, and is counted. Statistics are float64, advantages float32.

Diagnostics, all floats: ``reward_mean`` and ``reward_std`` of the weighted sum over the valid samples of the step
(population), ``group_std``, its mean standard deviation inside groups of two or more valid samples, ``dead_groups``,
the number of groups without spread, and ``nan_samples``, the number of samples left out. A mean of nothing is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import UserError

_NO_SPREAD = 1e-8
"""A spread under this share of the scores' size is rounding: float32 resolves 6e-8."""


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
        Advantages `[P, G]` float32, and the diagnostics of the module's docstring.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> scores = torch.tensor([[[0.0], [1.0]], [[3.0], [3.0]]])
    >>> advantages, diagnostics = group(scores, torch.ones(1), eps=0.0)
    >>> advantages.tolist(), diagnostics["dead_groups"]
    ([[-1.0, 1.0], [0.0, 0.0]], 1.0)
    """
    _check(scores, weights, ddof, eps, clip)
    total, valid = _weighted_sum(scores, weights)
    mean, std, live = _moments(total, valid, ddof)
    if global_std:
        std = _moments(total.reshape(1, -1), valid.reshape(1, -1), ddof)[1]
    advantages = torch.where(valid & live, (total - mean) / (std + eps), 0.0)
    if clip is not None:
        advantages = advantages.clamp(-clip, clip)
    return advantages.float(), _diagnostics(total, valid, live)


def gdpo(
    scores: Tensor, weights: Tensor, *, ddof: int = 1, eps: float = 1e-4, clip: float | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Normalise each reward inside its group before they are summed, so that a wide reward does not drown a narrow one.

        a_r = (s_r - mean(s_r)) / (std(s_r) + eps),    a = sum_r w_r a_r
        A = (a - mean(a over the step)) / (std(a over the step) + eps)

    Without this, [(0, 0), (1, 0)] and [(0, 0), (1, 1)] get the same advantages, though the second winner is better in
    both rewards. A reward without spread in a group adds 0 there. With a single reward of weight other than 0 this is
    :func:`group`.

    See "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization", Liu et al.,
    https://arxiv.org/abs/2601.05242. The released code takes a NaN for a score of 0; here its sample is left out.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        ddof: 0 for the population's standard deviation, 1 for the unbiased estimate.
        eps: added to each standard deviation; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the module's docstring.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> scores = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])
    >>> advantages, _ = gdpo(scores, torch.ones(2), ddof=0, eps=0.0)
    >>> (advantages[1] / advantages[0]).tolist()
    [2.0, 2.0]
    """
    _check(scores, weights, ddof, eps, clip)
    used = weights != 0
    if int(used.sum()) == 1:
        return group(scores, weights, ddof=ddof, eps=eps, clip=clip)
    total, valid = _weighted_sum(scores, weights)
    columns = scores[..., used].double().nan_to_num().movedim(-1, 0)
    mean, std, spread = _moments(columns, valid, ddof)
    normalised = torch.where(valid & spread, (columns - mean) / (std + eps), 0.0)
    summed = torch.einsum("rpg,r->pg", normalised, weights[used].double())
    live = spread.any(dim=0)
    mean, std, _ = _moments(summed.reshape(1, -1), valid.reshape(1, -1), ddof)
    advantages = torch.where(valid & live, (summed - mean) / (std + eps), 0.0)
    if clip is not None:
        advantages = advantages.clamp(-clip, clip)
    return advantages.float(), _diagnostics(total, valid, live)


def _check(scores: Tensor, weights: Tensor, ddof: int, eps: float, clip: float | None) -> None:
    if scores.ndim != 3 or weights.shape != scores.shape[2:]:
        got = f"{list(scores.shape)} and {list(weights.shape)}"
        raise ValueError(f"wanted scores [P, G, R] and weights [R], got {got}")
    if ddof not in (0, 1):
        raise UserError(f"advantage: ddof: wanted 0 (population) or 1 (unbiased), got {ddof!r}.")
    if not isinstance(eps, int | float) or not eps >= 0:
        raise UserError(f"advantage: eps: wanted a number >= 0, got {eps!r}.")
    if clip is not None and (not isinstance(clip, int | float) or not clip > 0):
        raise UserError(f"advantage: clip: wanted a number > 0 or null, got {clip!r}.")


def _weighted_sum(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum `[P, G]` float64, 0 where invalid, and which samples are valid `[P, G]`."""
    used = weights != 0
    columns = scores[..., used].double()
    valid = columns.isfinite().all(dim=-1)
    total = torch.where(valid, columns @ weights[used].double(), 0.0)
    return total, valid


def _moments(values: Tensor, valid: Tensor, ddof: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and whether there is spread, of the last axis' valid entries, each `[..., 1]`."""
    count = valid.sum(dim=-1, keepdim=True)
    mean = torch.where(valid, values, 0.0).sum(dim=-1, keepdim=True) / count.clamp(min=1)
    deviation = torch.where(valid, values - mean, 0.0)
    std = (deviation.square().sum(dim=-1, keepdim=True) / (count - ddof).clamp(min=1)).sqrt()
    size = torch.where(valid, values.abs(), 0.0).amax(dim=-1, keepdim=True).clamp(min=1.0)
    spread = (count >= 2) & (std > _NO_SPREAD * size)
    # Where nothing is left to divide by, the caller writes 0; 1 keeps the quotient finite until then.
    return mean, torch.where(spread, std, 1.0), spread


def _diagnostics(total: Tensor, valid: Tensor, live: Tensor) -> dict[str, float]:
    scored = total[valid]
    enough = valid.sum(dim=-1) >= 2
    _, std, spread = _moments(total, valid, ddof=0)
    return {
        "reward_mean": scored.mean().item(),
        "reward_std": (scored - scored.mean()).square().mean().sqrt().item(),  # Tensor.std warns where nothing is valid
        "group_std": torch.where(spread, std, 0.0)[enough].mean().item(),
        "dead_groups": float((~live).sum()),
        "nan_samples": float((~valid).sum()),
    }
