"""Which samples of a group make a pair of winner and loser, and how much a pair counts: pure functions."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

PairRule: TypeAlias = Literal["best_worst", "mu_2sigma", "all"]
"""The best against the worst; the best against the one nearest to two standard deviations below the mean; every
better against every worse one."""


def choose(rule: PairRule, scores: Tensor) -> Tensor:
    """The pairs of a rule, `[B, G, G]` booleans: at `[b, i, j]`, whether i wins against j. See `PairRule`.

    Args:
        rule: its name.
        scores: `[B, G]`, higher is better; only differences inside a group count.
    """
    return {"best_worst": best_against_worst, "mu_2sigma": best_against_mu_2sigma, "all": every_pair}[rule](scores)


def every_pair(scores: Tensor) -> Tensor:
    """Every better sample against every worse one, `[B, G, G]`; ties make no pair.

    >>> every_pair(torch.tensor([[1.0, 0.0, 0.0]])).int().tolist()
    [[[0, 1, 1], [0, 0, 0], [0, 0, 0]]]
    """
    return scores[:, :, None] > scores[:, None, :]


def best_against_worst(scores: Tensor) -> Tensor:
    """The best against the worst, `[B, G, G]`, the first of equals; a group without spread has no pair.

    >>> best_against_worst(torch.tensor([[0.5, 2.0, -1.0]])).nonzero().tolist()
    [[0, 1, 2]]
    """
    return _only(scores, scores.argmin(dim=1))


def best_against_mu_2sigma(scores: Tensor) -> Tensor:
    """The best against the sample nearest to ``mean - 2 std`` of its group, `[B, G, G]`.

    The standard deviation is that of the population, ``1/G``. In a large group it spares the freak at the very bottom;
    in one of five or fewer no sample can lie below ``mean - 2 std``, so the loser is the worst.

    See "Finding the Sweet Spot: Preference Data Construction for Scaling Preference Optimization", Xiao et al.,
    https://arxiv.org/abs/2502.16825.

    >>> scores = torch.tensor([[1.0, *[0.0] * 17, -3.0, -10.0]])  # mean -0.6, std 2.27: -5.1 is aimed at
    >>> best_against_worst(scores).nonzero().tolist(), best_against_mu_2sigma(scores).nonzero().tolist()
    ([[0, 0, 19]], [[0, 0, 18]])
    """
    aim = scores.mean(dim=1, keepdim=True) - 2 * scores.std(dim=1, keepdim=True, unbiased=False)
    return _only(scores, (scores - aim).abs().argmin(dim=1))


def gap_weights(gaps: Tensor, kappa: float, pairs: Tensor | None = None) -> Tensor:
    """PhyDPO's weights of pairs, which make wide gaps count more: ``(1 + kappa gap) / mean(1 + kappa gap)``.

    Their mean is 1, so that the learning rate means what it does without them; ``kappa = 0`` gives ones, exactly.
    See "PhysCorr: Dual-Reward DPO for Physics-Constrained Text-to-Video Generation with Automated Preference
    Selection", https://arxiv.org/abs/2511.03997.

    Args:
        gaps: `[..., P]` score of the winner less that of the loser, >= 0 where there is a pair; the mean is over P.
        kappa: >= 0.
        pairs: `[..., P]` booleans, where there is a pair; everywhere by default. Elsewhere the weight is 0.

    >>> gap_weights(torch.tensor([0.0, 2.0]), 1.0)  # 1 and 3, of mean 2
    tensor([0.5000, 1.5000])
    """
    there = torch.ones_like(gaps) if pairs is None else pairs.to(gaps.dtype)
    raw = (1 + kappa * gaps) * there
    mean = raw.sum(dim=-1, keepdim=True) / there.sum(dim=-1, keepdim=True).clamp(min=1)
    return raw / torch.where(mean > 0, mean, 1.0)


def gap_strength(gaps: Tensor) -> Tensor:
    """PNAPO's factor of beta, ``2 sigmoid(gap) - 1`` in [0, 1) for gaps >= 0: a tied pair teaches nothing.

    See PNAPO, https://arxiv.org/abs/2605.09433.

    >>> gap_strength(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.4621])
    """
    return 2 * gaps.sigmoid() - 1


def _only(scores: Tensor, loser: Tensor) -> Tensor:
    """The pair of the best and ``loser`` `[B]` of each group, where the latter is worse."""
    rows, found = torch.arange(len(scores), device=scores.device), torch.zeros_like(every_pair(scores))
    found[rows, scores.argmax(dim=1), loser] = True
    return found & every_pair(scores)
