"""Tests of `flowrl.models`, on folders that hold no weights, or three."""

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from flowrl.config import ModelConfig
from flowrl.errors import UserError
from flowrl.models import ModelFiles, bundled_models, find_model, matrices


def pipeline_folder(folder: Path, **index: object) -> Path:
    """What ``save_pretrained`` leaves, without weights."""
    (folder / "scheduler").mkdir(parents=True)
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    entries = {"_class_name": "StableDiffusion3Pipeline", "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}
    (folder / "model_index.json").write_text(json.dumps({**entries, **index}))
    return folder


def complaint(path: object, **fields: object) -> str:
    """The message about a model."""
    with pytest.raises(UserError) as caught:
        find_model(ModelConfig(path=str(path), **fields))
    return str(caught.value)


def test_local_folder(tmp_path):
    """A folder that is a pipeline is taken as it is."""
    folder = pipeline_folder(tmp_path / "model")
    assert find_model(ModelConfig(path=str(folder))) == str(folder)


def test_bundled_models_are_found_by_name():
    """Every bundled model is a pipeline with a scheduler."""
    for name in bundled_models():
        assert (Path(find_model(ModelConfig(path=name))) / "model_index.json").is_file()


def test_folder_without_an_index(tmp_path):
    """The message lists what the folder holds instead."""
    (tmp_path / "weights.ckpt").touch()
    assert "has no model_index.json (it has: weights.ckpt)" in complaint(tmp_path)


@pytest.mark.parametrize("scheduler", [None, [], [None, None], ["diffusers", None]])
def test_index_without_a_scheduler(scheduler, tmp_path):
    """A pipeline without a scheduler has no policy."""
    assert "names no scheduler" in complaint(pipeline_folder(tmp_path / "model", scheduler=scheduler))


def test_index_that_is_broken(tmp_path):
    """A half-copied index is named."""
    folder = pipeline_folder(tmp_path / "model")
    (folder / "model_index.json").write_text('{"scheduler": [')
    assert "model_index.json is not JSON" in complaint(folder)


def test_folder_without_the_scheduler_config(tmp_path):
    """The index alone is not enough."""
    folder = pipeline_folder(tmp_path / "model")
    (folder / "scheduler" / "scheduler_config.json").unlink()
    assert "has no scheduler/scheduler_config.json" in complaint(folder)


def test_a_loader_of_ones_own_may_read_anything(tmp_path):
    """Only what the default loader reads must be a pipeline's folder."""
    assert find_model(ModelConfig(path=str(tmp_path), loader="mine.py:load")) == str(tmp_path)


@pytest.mark.parametrize("path", ["./nowhere", "a/b/c", "nowhere", "~/nowhere", "/nowhere/at/all"])
def test_neither_folder_nor_hub_id(path):
    """What cannot be a hub id must be a folder."""
    assert f"{path!r} is no folder" in complaint(path)


def test_hub_id_offline():
    """With the hub switched off and nothing in its cache, the message has the command that fetches the model."""
    text = complaint("no-such-org/no-such-model")
    assert "HF_HUB_OFFLINE" in text
    assert "hf download no-such-org/no-such-model" in text


def test_hub_id_online(monkeypatch):
    """With a network, a hub id is left to diffusers."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert find_model(ModelConfig(path="org/name")) == "org/name"


def test_hub_id_in_the_cache(tmp_path, monkeypatch):
    """A cached model is checked like a folder."""
    folder = pipeline_folder(tmp_path / "model")
    cached = str(folder / "model_index.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
    assert find_model(ModelConfig(path="org/name")) == "org/name"
    pipeline_folder(tmp_path / "other", scheduler=None)
    cached = str(tmp_path / "other" / "model_index.json")
    assert "names no scheduler" in complaint("org/name")


def test_matrices(tmp_path):
    """Names and shapes come from the headers; vectors and other components do not count."""
    for component in ("transformer", "transformer_2", "vae"):
        (tmp_path / component).mkdir()
        tensors = {"to_q.weight": torch.zeros(3, 5), "to_q.bias": torch.zeros(3)}
        save_file(tensors, tmp_path / component / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    found = dict(matrices(tmp_path, ("transformer", "unet")))
    assert found == {"transformer.to_q.weight": [3, 5], "transformer_2.to_q.weight": [3, 5]}
    assert matrices(tmp_path / "nowhere", ("transformer",)) == []


def test_single_file(tmp_path):
    """A checkpoint in one file is taken if the recipe says its class."""
    path = tmp_path / "all.safetensors"
    assert f"there is no file {path}" in complaint(path, pipeline="StableDiffusionPipeline")
    path.touch()
    assert "does not say its class; write model.pipeline" in complaint(path)
    assert find_model(ModelConfig(path=str(path), pipeline="StableDiffusionPipeline")) == str(path)
    files = ModelFiles(str(path), ModelConfig(path=str(path), pipeline="StableDiffusionPipeline"))
    assert (files.pipeline, files.commit, files.json("model_index.json")) == ("StableDiffusionPipeline", None, {})


@pytest.mark.parametrize("name", ["all.ckpt", "all.pt", "all.bin"])
def test_pickled_single_file(name, tmp_path):
    """Pickled checkpoints are refused before anything reads them."""
    (tmp_path / name).touch()
    assert "can run code when they are loaded" in complaint(tmp_path / name, pipeline="StableDiffusionPipeline")


def test_files_of_a_folder(tmp_path):
    """The class is that of the index unless the recipe names another; files that are not there are empty."""
    folder = pipeline_folder(tmp_path / "model")
    files = ModelFiles(str(folder), ModelConfig(path=str(folder)))
    assert (files.pipeline, files.commit) == ("StableDiffusion3Pipeline", None)
    assert files.json("transformer/config.json") == {}
    named = ModelFiles(str(folder), ModelConfig(path=str(folder), pipeline="StableDiffusion3Img2ImgPipeline"))
    assert named.pipeline == "StableDiffusion3Img2ImgPipeline"
    (folder / "transformer").mkdir()
    (folder / "transformer" / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is not JSON"):
        ModelFiles(str(folder), ModelConfig(path=str(folder))).json("transformer/config.json")


def test_files_of_a_hub_id_offline():
    """Without a network, and with nothing in the cache, the index cannot be read; further files are optional."""
    files = ModelFiles("no-such-org/no-such-model", ModelConfig(path="no-such-org/no-such-model"))
    with pytest.raises(UserError, match="no-such-org/no-such-model cannot be read"):
        files.json("model_index.json")
    assert files.json("transformer/config.json") == {}


def test_hub_id_for_a_loader_of_ones_own():
    """What a user's own loader makes of a hub id is not ours to ask."""
    model = ModelConfig(path="no-such-org/no-such-model", loader="mine.py:load")
    assert ModelFiles(model.path, model).pipeline is None
