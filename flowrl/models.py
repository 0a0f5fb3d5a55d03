"""Where a model lies, and what its files say without loading a weight."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from .config import ModelConfig
from .errors import UserError
from .plugins import nearest

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def bundled_models() -> list[str]:
    """Names of the models that are installed with flowrl."""
    assets = files("flowrl.assets")
    return sorted(item.name for item in assets.iterdir() if (item / "model_index.json").is_file())


def find_model(model: ModelConfig) -> str:
    """The folder of a bundled or local model, or a hub id.

    Raises:
        UserError: there is no such model, the folder is not a pipeline with a scheduler, or the hub is switched off and
            the model is not in its cache.
    """
    folder = Path(model.path).expanduser()
    if model.path in bundled_models():
        folder = Path(str(files("flowrl.assets") / model.path))
    elif not folder.is_dir():
        return _hub_model(model)
    if model.loader == "auto":
        _check_pipeline(folder)
    return str(folder)


def _hub_model(model: ModelConfig) -> str:
    if not _HUB_ID.fullmatch(model.path):
        names = bundled_models()
        raise UserError(
            f"model.path: {model.path!r} is no folder (the current one is {Path.cwd()}), no hub id such as "
            f"'org/name', and not bundled.{nearest(model.path, names)} Bundled: {', '.join(names) or 'none'}."
        )
    from huggingface_hub import constants, try_to_load_from_cache

    cached = try_to_load_from_cache(model.path, "model_index.json", revision=model.revision)
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
    index_file = folder / "model_index.json"
    wanted = "wanted a folder that DiffusionPipeline.save_pretrained wrote"
    if not index_file.is_file():
        listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8])
        raise UserError(f"model.path: {folder} has no model_index.json (it has: {listed or 'nothing'}); {wanted}.")
    try:
        index = json.loads(index_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"model.path: {index_file} is not JSON ({error}); {wanted}.") from error
    if not isinstance(index, dict) or not all(index.get("scheduler") or [None]):
        raise UserError(
            f"model.path: {index_file} names no scheduler, and a policy is a pipeline's scheduler; {wanted}."
        )
    if not (folder / "scheduler" / "scheduler_config.json").is_file():
        raise UserError(f"model.path: {folder} has no scheduler/scheduler_config.json; {wanted}.")


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
