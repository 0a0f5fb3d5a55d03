"""The probability that a sample is preferred to reference samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..group_statistics import by_column, check, columns_of, is_number, require, usable


def par(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    k: float = 1.0,
    references: Mapping[str, Sequence[float]] | None = None,
) -> Tensor:
    """Replace each score by how likely it is preferred to reference scores: bounded, and flat for high scores.

        r = 1/M sum_m sigma(k (s - s_m))

    The paper's references are scores of M samples of the frozen model for the same prompt. A step has none, so they
    are the other samples of the group (in the limit of large k that is ``win_rate``), or numbers that the config gives,
    such as the base model's mean in the first evaluation of a run. A sample alone in its group gets 1/2.

    See PAR, https://arxiv.org/abs/2502.18770.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        k: one over the scores' units, > 0.
        references: scores by reward; rewards that are not named keep their score. None is the group, for all rewards.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> par(torch.ones(1, 1, 1), torch.ones(1), names=["a"], references={"a": [0, 1]}).flatten().round(decimals=5)
    tensor([0.6155], dtype=torch.float64)
    """
    check(scores, weights)
    require(is_number(k) and k > 0, "shaping par: k", "a number > 0", k)
    if references is None:
        return by_column(scores, usable(scores, weights), lambda values, valid: _among(values, valid, k))
    label = "shaping par: references"
    require(isinstance(references, Mapping), label, "a list of numbers for each reward", references)
    found = by_column(scores, usable(scores, weights), lambda values, _: values)
    for column in columns_of(list(references), names, label):
        given = references[names[column]]
        listed = given if isinstance(given, list | tuple) else [given]
        require(bool(listed) and all(map(is_number, listed)), f"{label}: {names[column]}", "numbers", given)
        gaps = found[..., column, None] - torch.tensor(listed, dtype=torch.float64, device=found.device)
        found[..., column] = torch.sigmoid(k * gaps).mean(dim=-1)
    return found


def _among(values: Tensor, valid: Tensor, k: float) -> Tensor:
    preferred = torch.sigmoid(k * (values[..., :, None] - values[..., None, :])) * valid[..., None, :]
    others = valid.sum(dim=-1, keepdim=True) - 1
    return ((preferred.sum(dim=-1) - 0.5) / others.clamp(min=1)).where(others > 0, 0.5)  # less the one with itself
