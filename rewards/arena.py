"""The win rate of a picture in its group, by any judge of pairs.

A judge tells better which of two is better than how good each is; and a small gap in marks, stretched by a group's
small spread, becomes a large advantage, where a win does not. See Pref-GRPO, https://arxiv.org/abs/2508.20751, and
ArenaRL, https://arxiv.org/abs/2601.06487, for the tournament.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from .. import plugins
from ..data import PromptRow
from ..errors import UserError
from ..reward import Reward, RewardBatch, Unscored, read_scores
from ..set_reward import Members, SetReward
from ._tournament import all_pairs, knock_out

Pairing = Literal["all", "tournament"]
_AT_ONCE = 64
"""Pairs that a judge is shown in one call: a large group has thousands, which would fill the memory."""
_METHODS = {"all": all_pairs, "tournament": knock_out}


class Judge(Protocol):
    """What is wanted of a judge."""

    def compare(self, first: RewardBatch, second: RewardBatch) -> Tensor:
        """How far each picture of ``first`` beats the one of ``second``, `[B]` in [0, 1]: 1, 0, or 0.5 for a tie.

        NaN for no verdict; :class:`~flowrl.reward.Unscored` gives the reason, too.
        """


class ArenaReward(SetReward):
    """The share of its comparisons that a picture wins, a tie counting half; or its rank in a tournament.

    >>> class Brighter:
    ...     def compare(self, first, second):
    ...         gap = (first.images - second.images).mean(dim=(1, 2, 3))
    ...         return (gap.sign() + 1) / 2
    >>> pictures = torch.tensor([0.0, 1.0, 0.5]).view(3, 1, 1, 1).expand(3, 3, 8, 8)
    >>> ArenaReward(Brighter())(RewardBatch(pictures, ["a"] * 3, [{}] * 3)).tolist()
    [0.0, 1.0, 0.5]
    """

    name = "arena"
    range = (0.0, 1.0)

    def __init__(
        self,
        judge: str | Judge,
        options: Mapping[str, Any] | None = None,
        *,
        pairing: Pairing = "all",
        both_orders: bool | None = None,
    ) -> None:
        """Make the judge.

        Args:
            judge: a plug-in's name, such as ``vlm_judge`` or ``my_judges.py:Sharper``: a class with
                :meth:`Judge.compare`; or a function ``f(first, second)``. From Python also the judge itself.
            options: of the class.
            pairing: ``all`` asks for N (N - 1) / 2 pairs of a group of N; ``tournament`` for at most 2N - 2.
            both_orders: whether each pair is shown in both orders, and the mean taken, since judges favour a place;
                None for yes, unless the judge does so itself, as ``vlm_judge``.

        Raises:
            UserError: an option is wrong, or the judge compares nothing.
        """
        label = f"reward {self.name!r}"
        if pairing not in get_args(Pairing):
            raise UserError(f"{label}: pairing: wanted one of {', '.join(get_args(Pairing))}, got {pairing!r}.")
        named = judge if isinstance(judge, str) else type(judge).__name__
        self._judge = _made(judge, dict(options or {}), label)
        function = None if isinstance(self._judge, Reward) else self._judge  # those are called with a batch to mark
        self._compare: Callable[[RewardBatch, RewardBatch], Tensor] = getattr(self._judge, "compare", function)
        if not callable(self._compare):
            raise UserError(f"{label}: judge: {named!r} has no compare(first, second), and is no function.")
        self._method = _METHODS[pairing]
        own = getattr(self._judge, "compares_both_orders", False)
        self._both = not own if both_orders is None else both_orders
        self.source = f"{pairing} pairs by {named}"
        if isinstance(self._judge, Reward):
            self.license, self.needs = self._judge.license, self._judge.needs

    def check(self, rows: Sequence[PromptRow]) -> None:
        """The judge's own check, if it has one."""
        super().check(rows)
        if isinstance(self._judge, Reward):
            self._judge.check(rows)

    def features(self, batch: RewardBatch) -> Tensor:
        """The pictures themselves, in 8 bits `[B, 3, H, W]`."""
        return (batch.images * 255).round().to(torch.uint8)

    def combine(self, members: Members) -> Tensor:
        """The win rates or ranks of a group, `[N]`.

        Raises:
            Unscored: there is nobody to compare with, or some pairs got no verdict; who has none at all is NaN.
        """
        if len(members) < 2:
            raise Unscored(f"wanted two samples or more of a group to compare, got {len(members)}")
        images = members.features.float() / 255
        batch = RewardBatch(images, members.prompts, members.metadata, members.groups)
        reasons: list[str] = []

        def compare(pairs: Sequence[tuple[int, int]]) -> list[float]:
            if not pairs:
                return []
            asked = [*pairs, *((second, first) for first, second in pairs)] if self._both else list(pairs)
            parts = [asked[start : start + _AT_ONCE] for start in range(0, len(asked), _AT_ONCE)]
            found = torch.cat([self._ask(batch, part, reasons) for part in parts])
            if self._both:
                found = (found[: len(pairs)] + 1 - found[len(pairs) :]) / 2
            return [float(value) for value in found]

        scores = self._method(len(members), compare)
        if scores.isnan().any():
            raise Unscored(reasons[0] if reasons else "the judge gave no verdict on any of its pairs", scores)
        return scores

    def _ask(self, batch: RewardBatch, pairs: Sequence[tuple[int, int]], reasons: list[str]) -> Tensor:
        first, second = (batch.select([pair[side] for pair in pairs]) for side in (0, 1))
        try:
            found: Any = self._compare(first, second)
        except Unscored as error:
            reasons.append(error.reason)
            found = [None] * len(pairs) if error.scores is None else error.scores
        verdicts = read_scores(found, len(pairs), self.name)
        if ((verdicts < 0) | (verdicts > 1)).any():
            raise ValueError(f"the judge's verdicts: wanted numbers from 0 to 1, got {verdicts.tolist()}")
        return verdicts


def _made(judge: str | Judge, options: dict[str, Any], label: str) -> Any:
    if not isinstance(judge, str):
        return judge
    found = plugins.load("rewards", judge)
    if isinstance(found, type):
        plugins.check_options(found, options, f"{label}: judge {judge!r}")
        return found(**options)
    if options:
        raise UserError(f"{label}: options: {judge!r} is no class and takes none, got {options}.")
    return found
