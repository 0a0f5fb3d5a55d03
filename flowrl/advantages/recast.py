"""Each denoising step has its own mixture of the rewards: those that it decides about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..credit_matrix import credit_matrix
from ..errors import UserError
from ..group_statistics import check, columns_of, diagnostics, finish, is_number, moments, require, weighted_sum

_LABEL = "advantage recast"


def recast(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    gains: Mapping[str, Sequence[float]],
    temperature: float = 1.0,
    eps: float = 1e-6,
    clip: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Mix the rewards anew for each step, and normalise each step's mixture in its group.

        s_t = sum_r T W_rt sign(w_r) s_r,    A_t = (s_t - mean(s_t)) / (std(s_t) + eps)

    with the matrix W of `flowrl.credit_matrix`: as much for each step, and ``|w_r|`` in all for each reward. See
    "ReCAST", https://arxiv.org/abs/2609.13425, its aggregation before the loss. Rewards are mixed in their own units,
    so they should be of one scale.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`, any sign; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        gains: of every reward with a weight, T numbers >= 0, one for each step of the schedule from noise to data: how
            much more of the reward is decided after it (`flowrl.credit_matrix.gains`).
        temperature: the higher, the more alike the steps; > 0.
        eps: added to the standard deviation; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G, T]` float32, and the diagnostics of the package, of the weighted sum.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range, or a reward has no gains.

    >>> scores = torch.tensor([[[0.0, 3.0], [1.0, 0.0]]])  # the first reward is decided early, the second late
    >>> early_late = {"a": [1.0, 0.0], "b": [0.0, 1.0]}
    >>> recast(scores, torch.ones(2), names=["a", "b"], gains=early_late, temperature=0.1, eps=0.0)[0].tolist()
    [[[-1.0, 1.0], [1.0, -1.0]]]
    """
    check(scores, weights, eps=eps, clip=clip, who=_LABEL)
    require(is_number(temperature) and temperature > 0, f"{_LABEL}: temperature", "a number > 0", temperature)
    used = (weights != 0).nonzero().flatten().tolist()
    table = _table(gains, [names[column] for column in used], names)
    budgets = weights[used].abs()
    matrix = credit_matrix(table, budgets, temperature) * table.shape[1] * weights[used].sign().double()[:, None]
    total, valid = weighted_sum(scores, weights)
    mixed = torch.where(valid[..., None], scores[..., used].double(), 0.0) @ matrix.to(scores.device)
    rows, known = mixed.movedim(2, 1), valid[:, None, :].expand(-1, matrix.shape[1], -1)
    mean, std, live = moments(rows, known)
    advantages = finish((rows - mean) / (std + eps), known & live, clip).movedim(1, 2)
    return advantages, diagnostics(total, valid, live.any(dim=1))


def _table(gains: object, used: Sequence[str], names: Sequence[str]) -> Tensor:
    """The gains of the rewards with a weight `[R, T]`, checked."""
    if not isinstance(gains, Mapping) or not gains:
        raise UserError(f"{_LABEL}: gains: wanted a list of numbers for each reward, got {gains!r}.")
    columns_of(list(gains), names, f"{_LABEL}: gains")
    missing = [name for name in used if name not in gains]
    if missing:
        raise UserError(f"{_LABEL}: gains: reward {missing[0]!r} has a weight and no gains; wanted one number a step.")
    for name, row in gains.items():
        fits = isinstance(row, list | tuple) and len(row) > 0 and all(is_number(one) and one >= 0 for one in row)
        require(fits, f"{_LABEL}: gains: {name}", "a list of numbers >= 0, one a step", row)
    lengths = {name: len(gains[name]) for name in used}
    require(len(set(lengths.values())) == 1, f"{_LABEL}: gains", "as many numbers for each reward", lengths)
    return torch.tensor([list(gains[name]) for name in used], dtype=torch.float64)
