"""The default loader: a folder, a hub id, or a checkpoint in one file, as diffusers reads them.

Only safetensors are read, and no code that a model brings along is run unless ``model.trust_remote_code`` says so.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.loaders.single_file_utils import SingleFileComponentError
from huggingface_hub import constants, hf_hub_download

from ..config import ModelConfig
from ..errors import UserError
from ..plugins import nearest

INDEX = "model_index.json"


def load(path: str, model: ModelConfig) -> Any:
    """Load a pipeline, safetensors only and without remote code.

    Args:
        path: a folder in diffusers' format; a ``.safetensors`` file; or a hub id, which downloads with a progress bar
            unless ``HF_HUB_OFFLINE`` is set.
        model: the run's model; its class, revision and precision are used.

    Raises:
        UserError: the pipeline cannot be loaded; the message is that of diffusers.

    >>> from flowrl.config import ModelConfig
    >>> load("no/such-folder", ModelConfig(path="no/such-folder"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    flowrl.errors.UserError: model.path: no/such-folder cannot be loaded: ...
    """
    kind = _class(model)
    try:
        return _single_file(kind, Path(path), model) if Path(path).is_file() else _pretrained(kind, path, model)
    except (
        OSError,
        ValueError,
        LookupError,
        RuntimeError,
        TypeError,
    ) as error:  # of diffusers, on files of another class
        raise UserError(f"model.path: {path} cannot be loaded: {error}{_advice(path, model)}") from error


def _class(model: ModelConfig) -> Any:
    """The pipeline's class that the recipe names, else the one that reads every folder."""
    if model.pipeline is None:
        return DiffusionPipeline
    found = getattr(diffusers, model.pipeline, None) if model.pipeline.isidentifier() else None
    if not (isinstance(found, type) and issubclass(found, DiffusionPipeline)):
        known = [name for name in dir(diffusers) if name.endswith("Pipeline")]
        raise UserError(
            f"model.pipeline: diffusers {diffusers.__version__} has no pipeline {model.pipeline!r}."
            f"{nearest(model.pipeline, known)}"
        )
    return found


def _pretrained(kind: Any, path: str, model: ModelConfig) -> Any:
    dtype = getattr(torch, model.dtype)
    if model.vae_dtype is not None:
        dtype = {"default": dtype, "vae": getattr(torch, model.vae_dtype)}
    return kind.from_pretrained(
        path,
        revision=model.revision,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=model.trust_remote_code,
        **_absent(path, model.revision),
    )


def _single_file(kind: Any, path: Path, model: ModelConfig) -> Any:
    if kind is DiffusionPipeline or not hasattr(kind, "from_single_file"):
        raise UserError(
            f"model.path: {path} is a checkpoint in one file, and diffusers reads none of "
            f"{model.pipeline or 'an unknown class; write model.pipeline'}."
        )
    dtype = getattr(torch, model.dtype)
    elsewhere: dict[str, Any] = {} if model.configs is None else _absent(model.configs, None)
    while True:
        try:
            pipe = kind.from_single_file(
                str(path), config=model.configs, dtype=dtype, local_files_only=constants.HF_HUB_OFFLINE, **elsewhere
            )
            break
        except SingleFileComponentError as error:
            # Many files leave out a text encoder; diffusers stops there, and names what to pass to it.
            missing = re.search(r"^(\w+) = \w+\.from_pretrained", str(error), flags=re.MULTILINE)
            if model.configs is None or missing is None or elsewhere.get(missing[1]) is not None:
                raise ValueError(str(error).partition("Please load")[0].strip()) from error
            elsewhere[missing[1]] = _component(model.configs, missing[1]).to(dtype)
    if model.vae_dtype is not None:
        pipe.vae.to(getattr(torch, model.vae_dtype))
    return pipe


def _absent(place: str, revision: str | None) -> dict[str, None]:
    """The components that a model does without: diffusers writes them as null, and must be told so to load it again."""
    return {name: None for name, value in _index(place, revision).items() if value == [None, None]}


def _component(place: str, name: str) -> Any:
    """A component of a model in diffusers' format, a folder or a hub id."""
    library, kind = _index(place, None)[name]
    found = getattr(import_module(library), kind)
    return found.from_pretrained(place, subfolder=name, use_safetensors=True)


def _advice(path: str, model: ModelConfig) -> str:
    """The end of a message about a model, where the network is switched off or would have been needed."""
    if Path(path).is_file() and model.configs is None:
        return (
            " One file holds weights, not configs and tokenizers: write model.configs, the folder or hub id of a model "
            "of this class in diffusers' format."
        )
    if constants.HF_HUB_OFFLINE and not Path(path).exists():
        return f" HF_HUB_OFFLINE is set: run `hf download {path}` once where there is a network."
    return ""


def _index(path: str, revision: str | None) -> dict[str, Any]:
    folder = Path(path)
    file = folder / INDEX if folder.is_dir() else Path(hf_hub_download(path, INDEX, revision=revision))
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf8"))
    return found
