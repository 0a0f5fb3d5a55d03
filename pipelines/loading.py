"""The default loader: whatever ``DiffusionPipeline.from_pretrained`` reads, from a folder or from the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from huggingface_hub import hf_hub_download

from ..config import ModelConfig
from ..errors import UserError

INDEX = "model_index.json"


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
        index = json.loads(_index_file(path, model.revision).read_text(encoding="utf8"))
        # diffusers writes a component that is None as null, but loads the folder again only if it is told so.
        absent = {name: None for name, value in index.items() if value == [None, None]}
        return DiffusionPipeline.from_pretrained(
            path, revision=model.revision, dtype=getattr(torch, model.dtype), use_safetensors=True, **absent
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model.path: {path} cannot be loaded: {error}") from error


def _index_file(path: str, revision: str | None) -> Path:
    folder = Path(path)
    return folder / INDEX if folder.is_dir() else Path(hf_hub_download(path, INDEX, revision=revision))
