"""From the names in a config to one function: shapings in their order, then the advantage."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import plugins
from .config import Plugin
from .errors import UserError
from .group_statistics import diagnostics, weighted_sum


def compose(advantage: Plugin, shapings: Sequence[Plugin], rewards: Mapping[str, float]) -> Callable[..., Any]:
    """``f(scores [P, G, R], weights [R])``: advantages `[P, G]` of shaped scores, and diagnostics.

    ``reward_mean`` and ``reward_std`` stay those of the scores as they came: after a shaping such as ``win_rate`` the
    mean is the same in every step, and no curve would rise.

    Args:
        advantage: a plug-in of the group ``advantages``.
        shapings: plug-ins of the group ``shapings``.
        rewards: the weights of the run's rewards by name. Given some, the function is tried out on made-up scores, so
            that an option out of range shows now.

    Raises:
        UserError: a name or an option is wrong.

    >>> f = compose(Plugin(name="group", eps=0.0), [Plugin(name="win_rate")], {"a": 1.0})
    >>> f(torch.tensor([[[1.0], [1000.0]]]), torch.ones(1))[0].tolist()
    [[-1.0, 1.0]]
    """
    last = _bound("advantages", advantage, list(rewards))
    first = [_bound("shapings", shaping, list(rewards)) for shaping in shapings]
    composed = partial(_shaped, first, last) if first else last
    if rewards:
        scores = torch.tensor([0.0, 1.0]).reshape(1, 2, 1).expand(1, 2, len(rewards))
        composed(scores, torch.tensor(list(rewards.values()), dtype=torch.float32))
    return composed


def _bound(group: str, plugin: Plugin, names: Sequence[str]) -> Callable[..., Any]:
    """A plug-in with its options, and the rewards' names if it asks for them."""
    function: Callable[..., Any] = plugins.load(group, plugin.name)
    label, options = f"{group.removesuffix('s')} {plugin.name}", plugin.options
    if "names" in inspect.signature(function).parameters:
        if "names" in options:
            raise UserError(f"{label}: names: the run fills them in with the names of its rewards; leave it out.")
        options["names"] = tuple(names)
    plugins.check_options(function, options, label, given=2)
    return partial(function, **options)


def _shaped(
    shapings: Sequence[Callable[..., Tensor]], advantage: Callable[..., Any], scores: Tensor, weights: Tensor
) -> tuple[Tensor, dict[str, float]]:
    shaped = scores
    for shape in shapings:
        shaped = shape(shaped, weights)
    advantages, found = advantage(shaped, weights)
    total, valid = weighted_sum(scores, weights)
    raw = diagnostics(total, valid, valid)
    return advantages, {**found, "reward_mean": raw["reward_mean"], "reward_std": raw["reward_std"]}
