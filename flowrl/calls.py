"""What a pipeline's call takes and gives, and what it must leave as it was: the ways in which classes differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import UserError

DENOISERS = ("transformer", "unet", "prior")
"""Component names that hold a policy where none is named."""


def for_each_prompt(call: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Arguments of a pipeline's call with one negative prompt a prompt; not every pipeline repeats a single one.

    >>> for_each_prompt({"negative_prompt": "blurry", "height": 512}, 2)
    {'negative_prompt': ['blurry', 'blurry'], 'height': 512}
    """
    texts = {name for name, value in call.items() if name.startswith("negative_prompt") and isinstance(value, str)}
    return {name: [value] * count if name in texts else value for name, value in call.items()}


def as_pictures(output: Any, samples: int | None = None) -> Tensor:
    """A pipeline's first output as float32 `[B, 3, H, W]`, or of a video `[B, F, 3, H, W]`.

    Some pipelines draw one video at a time, and leave its batch axis out: where ``samples`` is 1, it is put back.

    >>> as_pictures(np.zeros((2, 8, 8, 3))).shape
    torch.Size([2, 3, 8, 8])
    """
    if isinstance(output, (list, tuple)):
        return torch.stack([as_pictures(item[None])[0] for item in output])
    if isinstance(output, np.ndarray):  # some pipelines know no tensors; they have no gradients either
        return torch.from_numpy(output).movedim(-1, -3).float()
    pictures: Tensor = output.float()
    if pictures.shape[-1] == 3 and pictures.shape[-3] != 3:
        pictures = pictures.movedim(-1, -3)
    return pictures[None] if samples == 1 and len(pictures) != 1 else pictures


def attention_processors(modules: Mapping[str, nn.Module]) -> list[tuple[Any, Any]]:
    """Every attention layer with its processor."""
    parts = (part for module in modules.values() for part in module.modules())
    return [(part, part.processor) for part in parts if hasattr(part, "set_processor") and hasattr(part, "processor")]


def single(value: Any, kind: type) -> Any:
    """What a list of one item of a kind holds; anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], kind) else value


def check_no_momentum(pipe: Any) -> None:
    """Refuse guidance that adds up what the model said in earlier steps: a step must be a function of its latents.

    Raises:
        UserError: a component that guides has a momentum other than 0.
    """
    for name, part in pipe.components.items():
        if isinstance(part, nn.Module) or not hasattr(part, "__dict__"):
            continue
        momenta = {key: value for key, value in vars(part).items() if key.endswith("momentum") and value}
        for key, value in momenta.items():
            raise UserError(
                f"{name}.{key} is {value}: a step of the pipeline would depend on the model's outputs in earlier "
                f"steps, which a replay does not run. Set pipe.{name}.{key} = None first."
            )


def check_one_each(call: Mapping[str, Any]) -> None:
    """Refuse arguments that draw several samples for a prompt: each sample has a prompt and a seed of its own.

    Raises:
        UserError: names the argument, and what to write instead.
    """
    for name, value in call.items():
        if name.startswith("num_") and name.endswith("_per_prompt") and value not in (None, 1):
            raise UserError(
                f"{name} is {value}, but each sample has a prompt and a seed of its own: repeat the prompt, or write "
                "group_size in a recipe."
            )


def denoisers_of(pipe: Any, names: Sequence[str] | None) -> dict[str, nn.Module]:
    """The components of a pipeline that are trained: those that are named, else its denoisers.

    Raises:
        UserError: there is none of that name, or none that is known as a denoiser.
    """
    modules = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    if names is None:
        names = [name for name in modules if name.rstrip("_0123456789") in DENOISERS]
    missing = [name for name in names if name not in modules]
    if missing or not names:
        raise UserError(
            f"{type(pipe).__name__} has no component {', '.join(missing) or 'that is known as a denoiser'}; "
            f"its modules: {', '.join(modules)}."
        )
    return {name: modules[name] for name in names}


@contextmanager
def quiet(pipe: Any) -> Iterator[None]:
    """No progress bar of the pipeline's inside the block: the trainer has its own."""
    before = getattr(pipe, "_progress_bar_config", None)
    pipe.set_progress_bar_config(disable=True)
    try:
        yield
    finally:
        if before is None:
            vars(pipe).pop("_progress_bar_config", None)  # a pipeline of pipelines passes it on to those
        else:
            pipe._progress_bar_config = before
