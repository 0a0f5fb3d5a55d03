"""Brings what set rewards saw of a step together, has each group or step scored once, and hands the scores back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from . import parallel
from .errors import RunStopped, UserError
from .reward import RewardBatch, RewardSet, Scores, describe_error
from .set_reward import Members, Seen, SetReward, combine, observe, sets_of

SetRewards = Mapping[str, SetReward]
"""The set rewards of a `RewardSet`, by name."""


@dataclass(frozen=True)
class Settled:
    """What :func:`settle` found; ``numbers`` are the same on all processes."""

    scores: dict[int, Scores]
    """The scores of this process's micro-batches, a column for each set reward."""
    numbers: dict[str, float]
    """The one number of all samples, of the rewards that have one (:meth:`~flowrl.set_reward.SetReward.measure`)."""


@dataclass(frozen=True)
class _Result:
    """The scores of one set, its number, and what went wrong."""

    scores: Tensor
    number: float | None = None
    trouble: str | None = None
    stop: RunStopped | UserError | None = None


def split(rewards: RewardSet) -> tuple[RewardSet, dict[str, SetReward]]:
    """The rewards of a set that see one sample, and those that see more."""
    pairs = list(zip(rewards.names, rewards.rewards, strict=True))
    sets = {name: reward for name, reward in pairs if isinstance(reward, SetReward)}
    single = [(name, reward) for name, reward in pairs if name not in sets]
    kept = torch.tensor([name not in sets for name in rewards.names], dtype=torch.bool)
    names, kinds = tuple(name for name, _ in single), tuple(reward for _, reward in single)
    return RewardSet(names, kinds, rewards.weights[kept]), sets


def observe_all(sets: SetRewards, batch: RewardBatch) -> dict[str, Seen]:
    """What each set reward sees of a micro-batch."""
    return {name: observe(name, reward, batch) for name, reward in sets.items()}


def settle(sets: SetRewards, mine: Mapping[int, Mapping[str, Seen]], *, measure: bool = False) -> Settled:
    """Score whole groups and steps. Every process calls this together.

    Group by group the processes take turns; what sees a whole step is done by the first. What one of them raises for
    the run is raised by all, so none waits for the others for ever.

    Args:
        sets: the rewards.
        mine: what they saw of this process's micro-batches, by their numbers in the step.
        measure: whether the sets' own numbers are wanted too.

    Raises:
        RunStopped: as :meth:`~flowrl.set_reward.SetReward.combine` raised it.
        UserError: likewise.
    """
    everyone = parallel.gather(mine)
    columns: dict[str, dict[int, Tensor]] = {}
    troubles: dict[str, str | None] = {}
    numbers = {}
    for name, reward in sets.items():
        seen = {index: found[name] for index, found in everyone.items()}
        columns[name], troubles[name], number = _settle(name, reward, seen, measure)
        if number is not None:
            numbers[name] = number
    return Settled({index: _scores(index, mine[index], columns, troubles) for index in mine}, numbers)


def joined(names: tuple[str, ...], parts: list[Scores]) -> Scores:
    """The scores of parts of a set of rewards as those of the whole.

    Args:
        names: of the whole, in order.
        parts: scores of the same samples, by some of the rewards each.
    """
    failures = {name: count for part in parts for name, count in part.failures.items()}
    columns = torch.cat([part.raw for part in parts], dim=1)
    order = [list(failures).index(name) for name in names]
    errors = {name: reason for part in parts for name, reason in part.errors.items()}
    return Scores(columns[:, order], {name: failures[name] for name in names}, errors)


def _settle(
    name: str, reward: SetReward, seen: Mapping[int, Seen], measure: bool
) -> tuple[dict[int, Tensor], str | None, float | None]:
    """Scores by micro-batch, trouble that no sample's features had, and the number, of one reward."""
    parts = [part.members for part in seen.values() if part.members is not None]
    columns = {index: torch.full((len(part.usable),), math.nan) for index, part in seen.items()}
    if not parts:
        return columns, None, None
    members = Members.joined(parts)
    jobs = sets_of(reward, members)
    done = {
        number: _run(name, reward, members.select(rows), measure)
        for number, rows in enumerate(jobs)
        if number % parallel.world_size() == parallel.rank()
    }
    results = parallel.gather(done)
    for result in results.values():
        if result.stop is not None:
            raise result.stop
    found = torch.full((len(members),), math.nan)
    for number, rows in enumerate(jobs):
        found[rows] = results[number].scores
    start = 0
    for index, part in seen.items():
        count = int(part.usable.sum())
        columns[index][part.usable] = found[start : start + count]
        start += count
    measured = [result.number for result in results.values() if result.number is not None]
    trouble = next((result.trouble for result in results.values() if result.trouble), None)
    return columns, trouble, sum(measured) / len(measured) if measured else None


@torch.no_grad()
def _run(name: str, reward: SetReward, members: Members, measure: bool) -> _Result:
    try:
        scores, trouble = combine(name, reward, members)
        number = reward.measure(members) if measure and not scores.isnan().all() else None
    except (RunStopped, UserError) as error:
        return _Result(torch.full((len(members),), math.nan), stop=error)
    except Exception as error:  # noqa: BLE001 - whatever `measure` raises; raised here alone, others would wait for ever
        stop = RunStopped(f"reward {name!r}: measure raised {describe_error(error)}.")
        return _Result(torch.full((len(members),), math.nan), stop=stop)
    return _Result(scores, number, trouble)


def _scores(
    index: int,
    seen: Mapping[str, Seen],
    columns: Mapping[str, Mapping[int, Tensor]],
    troubles: Mapping[str, str | None],
) -> Scores:
    raw = torch.stack([columns[name][index] for name in seen], dim=1)
    failures = {name: int(raw[:, column].isnan().sum()) for column, name in enumerate(seen)}
    reasons = {name: part.trouble or (troubles[name] if failures[name] else None) for name, part in seen.items()}
    return Scores(raw, failures, {name: reason for name, reason in reasons.items() if reason})
