"""What advantages and shapings are made of: checks of what came, and statistics that leave out what has no score.

Scores are `[P, G, R]`: P prompts (groups), G samples a group, R rewards; weights are `[R]`. A reward of weight 0 is
only watched. A sample with a NaN (or an infinity) among the other rewards is not valid. Everything is float64 inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import UserError
from .plugins import nearest

_NO_SPREAD = 1e-8
"""A spread under this share of the scores' size is rounding: float32 resolves 6e-8."""

_LARGEST = torch.finfo(torch.float32).max


def check(
    scores: Tensor, weights: Tensor, ddof: int = 0, eps: float = 0.0, clip: float | None = None, who: str = "advantage"
) -> None:
    """Refuse shapes that do not fit, and common options out of range.

    Args:
        scores: `[P, G, R]`.
        weights: `[R]`.
        ddof: 0 or 1.
        eps: >= 0.
        clip: > 0, or None.
        who: opens the message.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option is out of range.
    """
    if scores.ndim != 3 or weights.shape != scores.shape[2:]:
        got = f"{list(scores.shape)} and {list(weights.shape)}"
        raise ValueError(f"wanted scores [P, G, R] and weights [R], got {got}")
    require(ddof in (0, 1), f"{who}: ddof", "0 (population) or 1 (unbiased)", ddof)
    require(is_number(eps) and eps >= 0, f"{who}: eps", "a number >= 0", eps)
    require(clip is None or (is_number(clip) and clip > 0), f"{who}: clip", "a number > 0 or null", clip)


def require(holds: bool, option: str, wanted: str, value: object) -> None:
    """Raise a UserError about the value of an option unless a condition holds.

    >>> require(False, "shaping par: k", "a number > 0", -1)
    Traceback (most recent call last):
    flowrl.errors.UserError: shaping par: k: wanted a number > 0, got -1.
    """
    if not holds:
        raise UserError(f"{option}: wanted {wanted}, got {value!r}.")


def is_number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def columns_of(members: object, names: Sequence[str], option: str, least: int = 1) -> list[int]:
    """The columns of some rewards.

    Args:
        members: their names, each once.
        names: the names of all rewards, in the order of the columns.
        option: opens the message.
        least: how many there must be.

    Raises:
        UserError: something is no reward of the run, or there are too few.

    >>> columns_of(["b", "a"], ["a", "b", "c"], "shaping pessimism: members")
    [1, 0]
    """
    listed = list(members) if isinstance(members, list | tuple) else [members]
    for name in listed:
        if name not in names:
            known = ", ".join(names) or "none"
            raise UserError(f"{option}: {name!r} is no reward of this run.{nearest(str(name), names)} Known: {known}.")
    require(len(set(listed)) == len(listed) >= least, option, f"at least {least} rewards, each once", members)
    return [list(names).index(str(name)) for name in listed]


def weighted_sum(scores: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted sum `[P, G]` float64, 0 where not valid, and which samples are valid `[P, G]`.

    >>> weighted_sum(torch.tensor([[[1.0, 2.0], [3.0, torch.nan]]]), torch.tensor([1.0, 0.5]))
    (tensor([[2., 0.]], dtype=torch.float64), tensor([[ True, False]]))
    """
    used = weights != 0
    columns = scores[..., used].double()
    valid = columns.isfinite().all(dim=-1)
    total = torch.where(valid, columns @ weights[used].double(), 0.0)
    return total, valid


def moments(values: Tensor, valid: Tensor, ddof: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and whether there is spread, of the last axis' valid entries, each `[..., 1]`.

    Where there is no spread the deviation is 1, so that the quotient stays finite until the caller writes 0.

    >>> mean, std, spread = moments(torch.tensor([[1.0, 3.0], [2.0, 2.0]]).double(), torch.ones(2, 2).bool())
    >>> mean[:, 0].tolist(), std[:, 0].tolist(), spread[:, 0].tolist()
    ([2.0, 2.0], [1.0, 1.0], [True, False])
    """
    count = valid.sum(dim=-1, keepdim=True)
    mean = torch.where(valid, values, 0.0).sum(dim=-1, keepdim=True) / count.clamp(min=1)
    deviation = torch.where(valid, values - mean, 0.0)
    std = (deviation.square().sum(dim=-1, keepdim=True) / (count - ddof).clamp(min=1)).sqrt()
    size = torch.where(valid, values.abs(), 0.0).amax(dim=-1, keepdim=True).clamp(min=1.0)
    spread = (count >= 2) & (std > _NO_SPREAD * size)
    return mean, torch.where(spread, std, 1.0), spread


def median(values: Tensor, valid: Tensor) -> Tensor:
    """Median of the last axis' valid entries `[..., 1]`, of an even number the mean of the middle two; 0 of none.

    >>> median(torch.tensor([[4.0, 1.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]))
    tensor([[2.]])
    """
    count = valid.sum(dim=-1, keepdim=True)
    ordered = torch.where(valid, values, torch.inf).sort(dim=-1).values
    middle = [ordered.gather(-1, ((count - 1 + odd).clamp(min=0) // 2)) for odd in (0, 1)]
    return torch.where(count > 0, middle[0] / 2 + middle[1] / 2, 0.0)


def finish(advantages: Tensor, live: Tensor, clip: float | None = None) -> Tensor:
    """Advantages as float32: 0 where not live, and within the clip (or what float32 can hold)."""
    limit = _LARGEST if clip is None else clip
    return torch.where(live, advantages, 0.0).clamp(-limit, limit).float()


def diagnostics(total: Tensor, valid: Tensor, live: Tensor) -> dict[str, float]:
    """The numbers that every advantage reports, see `flowrl.advantages`.

    Args:
        total: the weighted sum `[P, G]`.
        valid: which samples are valid `[P, G]`.
        live: which groups have spread `[P, 1]`.
    """
    scored = total[valid]
    enough = valid.sum(dim=-1) >= 2
    _, std, spread = moments(total, valid)
    return {
        "reward_mean": scored.mean().item(),
        "reward_std": (scored - scored.mean()).square().mean().sqrt().item(),  # Tensor.std warns where nothing is valid
        "group_std": torch.where(spread, std, 0.0)[enough].mean().item(),
        "dead_groups": float((~live).sum()),
        "nan_samples": float((~valid).sum()),
    }


def usable(scores: Tensor, weights: Tensor) -> Tensor:
    """Which scores `[P, G, R]` count: those of valid samples, and every finite one of a reward that is only watched."""
    finite, used = scores.isfinite(), weights != 0
    return finite & (finite[..., used].all(dim=-1, keepdim=True) | ~used)


def by_column(scores: Tensor, valid: Tensor, shape: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Shape every reward of every group: `[P, G, R]` float64, NaN where not valid.

    Args:
        scores: `[P, G, R]`.
        valid: `[P, G, R]`, which of them count.
        shape: ``shape(values [P, R, G], valid [P, R, G])`` gives `[P, R, G]`; values are 0 where not valid.
    """
    rows, known = scores.double().movedim(1, 2), valid.movedim(1, 2)
    shaped: Any = shape(torch.where(known, rows, 0.0), known)
    return torch.where(known, shaped, torch.nan).movedim(2, 1)
