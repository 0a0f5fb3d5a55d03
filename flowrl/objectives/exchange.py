"""What the samples of a group know of each other: measured in each micro-batch, exchanged, and handed to every sample.

A group's samples stand side by side in the step's one order (`flowrl.data.plan_step`), but micro-batches cut that
order anywhere, and processes take them in turns. A loss over all pairs of a group still splits into one loss a sample.
With a symmetric loss ``l(a_i, a_j)`` of two samples' numbers,

    sum_{i<j} l(a_i, a_j)    and    sum_i sum_{j != i} l(a_i, sg[a_j])

have the same gradient, ``sg`` being a number without gradient: in the second, the pair (i, j) gives its derivative by
``a_i`` in the loss of i, and that by ``a_j`` in the loss of j. So the numbers ``a`` of the whole group, computed
without gradients before the update, are all that a micro-batch needs to know of the others, and gradients are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import parallel
from ..policy import Policy
from ..trajectory import Rollout
from .base import Group, Objective, Work


def with_groups(
    objective: Objective,
    policy: Policy,
    batches: Mapping[int, tuple[Rollout, Sequence[Any], Work]],
    group_size: int,
) -> dict[int, Work]:
    """The surroundings of micro-batches, with what their groups know if the objective measures anything.

    Args:
        objective: decides.
        policy: the policy.
        batches: rollout, pieces and surroundings of this process's micro-batches, by index.
        group_size: G; every G samples in the order of all processes' micro-batches are a group.
    """
    works = {index: work for index, (_, _, work) in batches.items()}
    if not objective.measures:
        return works
    with torch.no_grad():
        mine = {
            index: (work.advantages.cpu(), objective.measure(policy, rollout, pieces, work).float().cpu())
            for index, (rollout, pieces, work) in batches.items()
        }
    everyone = parallel.gather(mine)
    advantages, measured = (torch.cat(parts) for parts in zip(*everyone.values(), strict=True))
    groups = groups_of(advantages, measured, group_size)
    start, found = 0, {}
    for index, (own, _) in everyone.items():
        rows = slice(start, start := start + len(own))
        if index in works:
            found[index] = replace(works[index], group=_rows(groups, rows, works[index].advantages.device))
    return found


def groups_of(advantages: Tensor, measured: Tensor, group_size: int) -> Group:
    """The group of every sample of a step.

    Args:
        advantages: `[N]`, N a multiple of G.
        measured: `[N, K]`.
        group_size: G.

    >>> groups_of(torch.tensor([1.0, -1.0, 2.0, -2.0]), torch.zeros(4, 1), 2).advantages
    tensor([[ 1., -1.],
            [ 1., -1.],
            [ 2., -2.],
            [ 2., -2.]])
    """
    number = torch.arange(len(advantages))
    mates = (number // group_size)[:, None] * group_size + torch.arange(group_size)
    return Group(advantages[mates], measured[mates], number % group_size)


def _rows(groups: Group, rows: slice, device: torch.device) -> Group:
    return Group(*(part[rows].to(device) for part in (groups.advantages, groups.measured, groups.own)))
