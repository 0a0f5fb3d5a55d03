"""Tests of `flowrl.pipelines.loading`, on folders that diffusers wrote."""

import json

import pytest
import torch

from flowrl.config import ModelConfig
from flowrl.errors import UserError
from flowrl.pipelines.loading import load

from .. import tiny


@pytest.fixture(scope="module", params=list(tiny.PIPELINES))
def saved(request, tmp_path_factory):
    """The name of a tiny pipeline and the folder that ``save_pretrained`` made of it."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    tiny.PIPELINES[request.param]().save_pretrained(folder)
    return request.param, folder


@pytest.fixture
def sd3(tmp_path):
    """A folder with a tiny SD3 that a test may spoil."""
    tiny.sd3().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder, **fields):
    """What the loader makes of a folder."""
    return load(str(folder), ModelConfig(path=str(folder), **fields))


def modules(pipe):
    """The networks of a pipeline, by name."""
    return {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_component_in_the_dtype_of_the_config(saved, dtype):
    """The pipeline is of the saved class, complete, in one dtype, and nothing is warned of on the way."""
    name, folder = saved
    pipe = loaded(folder, dtype=dtype)
    base = tiny.PIPELINES[name]()
    assert type(pipe) is type(base)
    assert modules(pipe).keys() == modules(base).keys()
    for part in modules(pipe).values():
        # T5 keeps these projections in float32, where they would overflow.
        cast = [p for path, p in part.named_parameters() if not path.endswith("DenseReluDense.wo.weight")]
        assert {p.dtype for p in cast} == {getattr(torch, dtype)}


def test_same_latents_as_before_it_was_saved(saved):
    """What is loaded samples as what was saved, its schedule included."""
    name, folder = saved
    arguments = tiny.arguments(name)
    assert torch.equal(tiny.stock(name, pipe=loaded(folder), **arguments), tiny.stock(name, **arguments))


def test_components_that_are_null(sd3):
    """SD3 without its third text encoder, and SD1.5 without a safety checker, load as they were saved."""
    assert json.loads((sd3 / "model_index.json").read_text())["text_encoder_3"] == [None, None]
    pipe = loaded(sd3)
    assert (pipe.text_encoder_3, pipe.tokenizer_3) == (None, None)


@pytest.mark.parametrize("path", ["/no/such/folder", "no/such-model"])
def test_model_that_is_not_there(path):
    """The message names the field and the folder, or the hub id."""
    with pytest.raises(UserError, match=f"model\\.path: {path} cannot be loaded"):
        loaded(path)


def test_missing_weights(sd3):
    """A folder without one component's weights is refused, not filled with random numbers."""
    (sd3 / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot be loaded: .*safetensors"):
        loaded(sd3)


def test_pickled_weights_are_refused(tmp_path):
    """Weights as pickle could run code: only safetensors are read."""
    tiny.sd3().save_pretrained(tmp_path / "model", safe_serialization=False)
    assert list(tmp_path.rglob("*.bin"))
    with pytest.raises(UserError, match="cannot be loaded"):
        loaded(tmp_path / "model")


def test_code_in_the_folder_is_not_run(sd3):
    """A pipeline that brings its own code is refused unless the user asks for it, which a recipe cannot."""
    index = json.loads((sd3 / "model_index.json").read_text())
    (sd3 / "model_index.json").write_text(json.dumps({**index, "_class_name": ["pipeline", "Mine"]}))
    (sd3 / "pipeline.py").write_text("raise SystemExit('the code of the folder was run')")
    with pytest.raises(UserError, match="cannot be loaded"):
        loaded(sd3)
