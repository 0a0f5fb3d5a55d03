"""Tiny random pipelines of the real classes, one file a family: `CASES` has every one of them, by class name."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A pipeline class, and how to call a tiny random one of it.

    Attributes:
        name: the class, as diffusers exports it.
        task: one of `TASKS`.
        build: makes the pipeline: the same weights each time, float32, on the CPU.
        call: arguments for a number of samples, beside prompts, seeds and steps: pictures, embeddings, sizes.
        guidance: settings of the guidance by name, to be added to ``call``. ``off`` and ``on`` where the class has
            both; others beside them, such as ``rescaled``.
        kernel: a stochastic kernel for it.
        steps: length of the schedule.
        samples: of a micro-batch. Two are enough for what mixes samples up to show; one for a class that takes no more.
        trainable: the trained components; None for those that the policy finds.
        targets: LoRA targets; None for those that the policy finds.
        fast: in ``make test`` too, not in ``make test-all`` alone.
        skip: checks that do not apply, each with the reason.
    """

    name: str
    task: str
    build: Callable[[], Any]
    call: Callable[[int], Arguments] = lambda count: {}
    guidance: Mapping[str, Arguments] = field(default_factory=lambda: {"on": {}})
    kernel: str = "flow_sde"
    steps: int = 4
    samples: int = 2
    trainable: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    fast: bool = False
    skip: Mapping[str, str] = field(default_factory=dict)


TASKS = (
    "text to image",
    "image to image",
    "inpainting",
    "control",
    "image editing",
    "text to video",
    "image to video",
    "video to video",
    "class to image",
)


def _collect() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of diffusers' own modules, which pytest would make errors
            cases = import_module(module.name).CASES
        for case in cases:
            assert case.name not in found, f"{case.name} stands in two files"
            assert case.task in TASKS, f"{case.name}: task {case.task!r} is not one of {TASKS}"
            found[case.name] = case
    return found


CASES: dict[str, Case] = _collect()
"""Every case by class name."""
