"""How many of its group a sample beats."""

from __future__ import annotations

from torch import Tensor

from ..group_statistics import by_column, check, is_number, require, usable


def win_rate(scores: Tensor, weights: Tensor, *, margin: float = 0.0) -> Tensor:
    """Replace each score by the share of the group's other samples that it beats, a tie counting half.

        w_i = 1 / (G - 1) sum_{j != i} (1 if s_i - s_j > margin, 1/2 if |s_i - s_j| <= margin, else 0)

    Any increasing map of the scores gives the same, so a small gap does not become a large advantage by its group's
    small spread alone; yet a judge that tosses coins gets real-looking ones. A sample alone in its group gets 1/2.

    See Pref-GRPO, https://arxiv.org/abs/2508.20751, where a judge of pairs says who wins; here the scores say it.

    Args:
        scores: `[P, G, R]`, larger is better, NaN where a reward could not score.
        weights: `[R]`; a reward of weight 0 is only watched.
        margin: a smaller gap is a tie; in the scores' units, >= 0.

    Raises:
        ValueError: the shapes do not fit.
        UserError: an option, which comes from a config, is out of range.

    >>> import torch
    >>> win_rate(torch.tensor([[[0.1], [7.0], [7.0]]]), torch.ones(1)).flatten().tolist()
    [0.0, 0.75, 0.75]
    """
    check(scores, weights)
    require(is_number(margin) and margin >= 0, "shaping win_rate: margin", "a number >= 0", margin)

    def shape(values: Tensor, valid: Tensor) -> Tensor:
        gaps = values[..., :, None] - values[..., None, :]
        wins = ((gaps > margin).double() + 0.5 * (gaps.abs() <= margin)) * valid[..., None, :]
        others = valid.sum(dim=-1, keepdim=True) - 1
        return ((wins.sum(dim=-1) - 0.5) / others.clamp(min=1)).where(others > 0, 0.5)  # less the tie with itself

    return by_column(scores, usable(scores, weights), shape)
