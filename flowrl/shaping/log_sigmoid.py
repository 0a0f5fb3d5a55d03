"""The log-probability of being good in every reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..group_statistics import by_column, check, columns_of, is_number, moments, require, usable


def log_sigmoid(
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    k: float = 1.0,
    references: Mapping[str, float] | None = None,
    deviations: float = 1.0364,
) -> Tensor:
    """Replace each score by the log of its sigmoid, so that the weighted sum asks for every reward at once.

        u = log sigma(k (s - reference))

    What is good already gains little; one bad reward outweighs all others. The paper's reference is the 85th percentile
    of the frozen model's scores for the prompt, as ``mean + 1.0364 std``. A step has none, so it is that of the group's
    own scores, or a number that the config gives, such as the base model's in the first evaluation of a run.

    See "Transforming and Combining Rewards for Aligning Large Language Models", https://arxiv.org/abs/2402.00742.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        names: of the R rewards; the run gives them.
        k: one over the scores' units, > 0.
        references: by reward; rewards that are not named keep their score. None is the group's, for all rewards.
        deviations: of the group's scores, above their mean (population).

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward.

    >>> scores = torch.tensor([[[-2.0], [0.0], [2.0]]])
    >>> log_sigmoid(scores, torch.ones(1), names=["a"], references={"a": 0}).flatten().round(decimals=3).tolist()
    [-2.127, -0.693, -0.127]
    """
    check(scores, weights)
    require(is_number(k) and k > 0, "shaping log_sigmoid: k", "a number > 0", k)
    require(is_number(deviations), "shaping log_sigmoid: deviations", "a number", deviations)

    def shape(values: Tensor, valid: Tensor) -> Tensor:
        mean, std, spread = moments(values, valid)
        return logsigmoid(k * (values - mean - deviations * torch.where(spread, std, 0.0)))

    if references is None:
        return by_column(scores, usable(scores, weights), shape)
    label = "shaping log_sigmoid: references"
    require(isinstance(references, Mapping), label, "a number for each reward", references)
    found = by_column(scores, usable(scores, weights), lambda values, _: values)
    for column in columns_of(list(references), names, label):
        given = references[names[column]]
        require(is_number(given), f"{label}: {names[column]}", "a number", given)
        found[..., column] = logsigmoid(k * (found[..., column] - given))
    return found
