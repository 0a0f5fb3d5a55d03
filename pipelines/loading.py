"""The default loader: whatever ``DiffusionPipeline.from_pretrained`` reads, from a folder or from the hub."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DiffusionPipeline

from ..config import ModelConfig
from ..errors import UserError


def load(path: str, model: ModelConfig) -> Any:
    """Load a pipeline in one dtype, safetensors only and without remote code.

    Args:
        path: a folder in diffusers' format, or a hub id, which downloads with a progress bar unless
            ``HF_HUB_OFFLINE`` is set.
        model: the run's model; its ``revision`` and ``dtype`` are used.

    Raises:
        UserError: the pipeline cannot be loaded; the message is that of diffusers.

    >>> from flowrl.config import ModelConfig
    >>> load("no/such-folder", ModelConfig(path="no/such-folder"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    flowrl.errors.UserError: model.path: no/such-folder cannot be loaded: ...
    """
    try:
        index = DiffusionPipeline.load_config(path, revision=model.revision)
        # diffusers writes a component that is None as null, but loads the folder again only if it is told so.
        absent = {name: None for name, value in index.items() if value == [None, None]}
        return DiffusionPipeline.from_pretrained(
            path, revision=model.revision, dtype=getattr(torch, model.dtype), use_safetensors=True, **absent
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model.path: {path} cannot be loaded: {error}") from error
