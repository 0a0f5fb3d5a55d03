"""Where a model lies, and what its files say without loading a weight."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from .config import ModelConfig
from .errors import UserError
from .plugins import nearest

INDEX = "model_index.json"
SINGLE_FILE = ".safetensors"
_PICKLED = (".ckpt", ".pt", ".pth", ".bin")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class ModelFiles:
    """The small JSON files of a model, which say what it is before a weight is loaded.

    Attributes:
        place: a folder, a hub id or a checkpoint in one file, as `find_model` gives it.
        model: the run's model.
    """

    place: str
    model: ModelConfig
    _read: dict[str, Mapping[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def json(self, name: str) -> Mapping[str, Any]:
        """The content of a file such as ``transformer/config.json``; nothing if the model has no such file.

        Raises:
            UserError: the hub cannot be asked.
        """
        if name not in self._read:
            path = self._path(name)
            content = _json(path) if path is not None else {}
            self._read[name] = content if isinstance(content, dict) else {}
        return self._read[name]

    @property
    def pipeline(self) -> str | None:
        """The name of the pipeline's class; None if only a loader of the user's own can say."""
        named = self.model.pipeline or self.json(INDEX).get("_class_name")
        return named if isinstance(named, str) else None

    @cached_property
    def commit(self) -> str | None:
        """The hub's commit that the files are of; None for files that are no download."""
        path = self._path(INDEX) if self._on_hub else None
        return path.parent.name if path is not None and path.parent.parent.name == "snapshots" else None

    @property
    def _on_hub(self) -> bool:
        return not Path(self.place).exists()

    def _path(self, name: str) -> Path | None:
        if not self._on_hub:
            path = Path(self.place) / name
            return path if path.is_file() else None
        if self.model.loader != "auto":  # a loader of the user's own may read a hub id in its own way
            return None
        return _hub_file(self.place, name, self.model.revision)


def _hub_file(hub_id: str, name: str, revision: str | None) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(hub_id, name, revision=revision))
    except LocalEntryNotFoundError as error:
        if name == INDEX:
            raise UserError(f"model.path: {hub_id} cannot be read: {error}") from error
        return None  # offline, and the model in the cache has no such file
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(f"model.path: {hub_id} cannot be read: {error}") from error


def bundled_models() -> list[str]:
    """Names of the models that are installed with flowrl."""
    assets = files("flowrl.assets")
    return sorted(item.name for item in assets.iterdir() if (item / INDEX).is_file())


def find_model(model: ModelConfig) -> str:
    """The folder of a bundled or local model, a checkpoint in one file, or a hub id.

    Raises:
        UserError: there is no such model, the folder is not a pipeline with a scheduler, the file does not say its
            class, or the hub is switched off and the model is not in its cache.
    """
    folder = Path(model.path).expanduser()
    if model.path in bundled_models():
        folder = Path(str(files("flowrl.assets") / model.path))
    elif model.path.endswith((SINGLE_FILE, *_PICKLED)) and model.loader == "auto":
        _check_single_file(model, folder)
    elif not folder.is_dir() and not folder.is_file():
        return _hub_model(model)
    if model.loader == "auto" and folder.is_dir():
        _check_pipeline(folder)
    return str(folder)


def _check_single_file(model: ModelConfig, path: Path) -> None:
    """Refuse a checkpoint in one file that could run code, is not there, or whose class nobody says."""
    if path.suffix != SINGLE_FILE:
        raise UserError(
            f"model.path: {path} holds pickled Python objects, which can run code when they are loaded; wanted "
            "*.safetensors (most models have both, and diffusers converts the others)."
        )
    if not path.is_file():
        raise UserError(f"model.path: there is no file {path} (the current folder is {Path.cwd()}).")
    if model.pipeline is None:
        raise UserError(
            f"model.path: {path} is a checkpoint in one file, which does not say its class; write model.pipeline, "
            "such as StableDiffusionXLPipeline."
        )


def _hub_model(model: ModelConfig) -> str:
    if not _HUB_ID.fullmatch(model.path):
        names = bundled_models()
        raise UserError(
            f"model.path: {model.path!r} is no folder (the current one is {Path.cwd()}), no hub id such as "
            f"'org/name', and not bundled.{nearest(model.path, names)} Bundled: {', '.join(names) or 'none'}."
        )
    from huggingface_hub import constants, try_to_load_from_cache

    cached = try_to_load_from_cache(model.path, INDEX, revision=model.revision)
    if isinstance(cached, str) and model.loader == "auto":
        _check_pipeline(Path(cached).parent)
    elif not isinstance(cached, str) and constants.HF_HUB_OFFLINE:
        raise UserError(
            f"model.path: there is no folder {model.path!r}; as a hub id it is not in the cache, and HF_HUB_OFFLINE "
            f"forbids to ask the hub. Run `hf download {model.path}` once where there is a network, or write a folder."
        )
    return model.path


def _check_pipeline(folder: Path) -> None:
    """Refuse a folder that ``DiffusionPipeline.from_pretrained`` would not read, or that has no scheduler."""
    index_file = folder / INDEX
    wanted = "wanted a folder that DiffusionPipeline.save_pretrained wrote"
    if not index_file.is_file():
        listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
        raise UserError(f"model.path: {folder} has no model_index.json (it has: {listed or 'nothing'}); {wanted}.")
    index = _json(index_file)
    if not isinstance(index, dict) or not all(index.get("scheduler") or [None]):
        raise UserError(
            f"model.path: {index_file} names no scheduler, and a policy is a pipeline's scheduler; {wanted}."
        )
    if not (folder / "scheduler" / "scheduler_config.json").is_file():
        raise UserError(f"model.path: {folder} has no scheduler/scheduler_config.json; {wanted}.")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"model.path: {path} is not JSON ({error}); wanted what diffusers wrote.") from error


def matrices(folder: Path, components: tuple[str, ...]) -> list[tuple[str, list[int]]]:
    """Name and shape of each matrix in a model's weight files, without reading the weights.

    Args:
        folder: of the pipeline; one that does not exist has no matrix.
        components: beginnings of the subfolders' names, such as ``("transformer", "unet")``.
    """
    found: dict[str, list[int]] = {}
    for file in folder.glob("*/*.safetensors"):
        if not file.parent.name.startswith(components):
            continue
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if len(entry.get("shape", ())) == 2:
                found[f"{file.parent.name}.{name}"] = entry["shape"]
    return list(found.items())
