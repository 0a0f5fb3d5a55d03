"""A hard check and a dense score in one: the dense score only orders samples that the check judges alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..group_statistics import (
    check,
    columns_of,
    diagnostics,
    finish,
    is_number,
    moments,
    require,
    weighted_sum,
)


def hero(  # noqa: PLR0913 (the constants of the paper)
    scores: Tensor,
    weights: Tensor,
    *,
    names: Sequence[str],
    verifier: str,
    dense: str,
    threshold: float = 0.5,
    width: float = 0.05,
    low: float = 0.4,
    high: float = 3.0,
    steepness: float = 6.0,
    eps: float = 1e-4,
    clip: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Order by a verifier first and by a dense score within its verdict; prompts with a wide dense score count more.

        n = (d - min d) / (max d - min d) over the group's samples of one verdict, or 0 where these are equal
        h = -width + 2 width n where the verifier says no,    1 - width + 2 width n where it says yes
        A = (low + (high - low) / (1 + exp(-steepness (std(d) - mean over the step of std(d))))) (h - mean(h)) / std(h)

    Even a group that the verifier judges all alike keeps an order. The factor acts after the normalisation, which would
    undo it. The paper compares a group's ``std(d)`` with a running mean; here it is the mean of the step's groups.

    See HERO, https://arxiv.org/abs/2510.07242; its width is .05, or .1 for hard prompts.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; the two rewards' are > 0 and change nothing else, all others are 0.
        names: of the R rewards; the run gives them.
        verifier: the reward that says yes or no.
        dense: the reward that orders.
        threshold: the verifier says yes from here on.
        width: of the bands around 0 and 1; in (0, 0.5).
        low: the factor of groups with little spread in ``dense``; >= 0.
        high: the factor of groups with much of it; >= ``low``.
        steepness: of the factor, in one over the dense reward's units; >= 0.
        eps: added to the standard deviation; >= 0.
        clip: largest absolute advantage, or None.

    Returns:
        Advantages `[P, G]` float32, and the diagnostics of the package.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range or names no reward; or a third reward has a
            weight.

    >>> scores = torch.tensor([[[0.0, 2.0], [0.0, 4.0], [1.0, 1.0], [1.0, 5.0]]])
    >>> hero(scores, torch.ones(2), names=["ocr", "taste"], verifier="ocr", dense="taste")[0].round(decimals=2)
    tensor([[-1.8600, -1.5200,  1.5200,  1.8600]])
    """
    check(scores, weights, eps=eps, clip=clip)
    pair = columns_of([verifier, dense], names, "advantage hero: verifier, dense", least=2)
    _check(weights, names, pair)
    require(is_number(threshold), "advantage hero: threshold", "a number", threshold)
    require(is_number(width) and 0 < width < 0.5, "advantage hero: width", "a number between 0 and 0.5", width)
    require(is_number(low) and low >= 0, "advantage hero: low", "a number >= 0", low)
    require(is_number(high) and high >= low, "advantage hero: high", f"a number >= low ({low})", high)
    require(is_number(steepness) and steepness >= 0, "advantage hero: steepness", "a number >= 0", steepness)
    total, valid = weighted_sum(scores, weights)
    verdict, d = scores[..., pair[0]] >= threshold, scores[..., pair[1]].double()
    place = torch.where(verdict, _place(d, valid & verdict), _place(d, valid & ~verdict))
    h = torch.where(valid, verdict.double() - width + 2 * width * place, 0.0)
    mean, std, live = moments(h, valid)
    factor = low + (high - low) * torch.sigmoid(steepness * _spread_over_mean(d, valid))
    return finish(factor * (h - mean) / (std + eps), valid & live, clip), diagnostics(total, valid, live)


def _check(weights: Tensor, names: Sequence[str], pair: Sequence[int]) -> None:
    for column, (name, weight) in enumerate(zip(names, weights.tolist(), strict=True)):
        if column in pair and weight <= 0:
            raise UserError(f"advantage hero: reward {name!r} has the weight {weight:g}; wanted one > 0.")
        if column not in pair and weight != 0:
            raise UserError(
                f"advantage hero combines a verifier and a dense score and nothing else; give {name!r} the weight 0."
            )


def _place(d: Tensor, among: Tensor) -> Tensor:
    """Where a score lies between the lowest and the highest of some samples of its group, 0 to 1."""
    low = torch.where(among, d, torch.inf).amin(dim=-1, keepdim=True)
    high = torch.where(among, d, -torch.inf).amax(dim=-1, keepdim=True)
    _, _, spread = moments(d.nan_to_num(), among)
    return torch.where(among & spread, (d - low) / torch.where(spread, high - low, 1.0), 0.0)


def _spread_over_mean(d: Tensor, valid: Tensor) -> Tensor:
    """Each group's standard deviation less the mean of those of all groups with two or more valid samples, `[P, 1]`."""
    _, std, spread = moments(d.nan_to_num(), valid)
    std = torch.where(spread, std, 0.0)
    counted = valid.sum(dim=-1, keepdim=True) >= 2
    return std - torch.where(counted, std, 0.0).sum() / counted.sum().clamp(min=1)
