"""One file a family: what its pipelines are sampled and trained with, each number with its source.

A file holds ``PRESETS``, a tuple of `flowrl.preset.Preset`, and is found by being here. Numbers are those of a
published recipe for reinforcement learning where there is one, else those with which the model's authors sample;
without a source there is no number. Imports neither torch nor diffusers.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ...preset import Preset


def presets() -> list[Preset]:
    """Every preset of this folder, file by file."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [preset for name in names for preset in import_module(f"{__name__}.{name}").PRESETS]
