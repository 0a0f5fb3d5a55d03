"""Tests of `flowrl.pipelines.loading`, on folders that diffusers wrote."""

import json

import pytest
import torch
from diffusers.loaders import single_file_model
from safetensors.torch import save_file

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
    """A pipeline that brings its own code is refused unless the recipe asks for it."""
    index = json.loads((sd3 / "model_index.json").read_text())
    (sd3 / "model_index.json").write_text(json.dumps({**index, "_class_name": ["pipeline", "Mine"]}))
    (sd3 / "pipeline.py").write_text("raise SystemExit('the code of the folder was run')")
    with pytest.raises(UserError, match="cannot be loaded"):
        loaded(sd3)


def test_code_in_the_folder_that_the_recipe_trusts(sd3):
    """With model.trust_remote_code the folder's own class is loaded."""
    index = json.loads((sd3 / "model_index.json").read_text())
    (sd3 / "model_index.json").write_text(json.dumps({**index, "_class_name": ["pipeline", "Mine"]}))
    (sd3 / "pipeline.py").write_text(
        "from diffusers import StableDiffusion3Pipeline\n\n\nclass Mine(StableDiffusion3Pipeline):\n    pass\n"
    )
    assert type(loaded(sd3, trust_remote_code=True)).__name__ == "Mine"


def test_another_class_on_the_same_weights(sd3):
    """model.pipeline overrides the class of the index: SD3's weights serve image to image too."""
    pipe = loaded(sd3, pipeline="StableDiffusion3Img2ImgPipeline")
    assert type(pipe).__name__ == "StableDiffusion3Img2ImgPipeline"


@pytest.mark.parametrize("name", ["StableDifusion3Pipeline", "UNet2DConditionModel", "os.system"])
def test_class_that_is_no_pipeline(name, sd3):
    """A class that diffusers does not have as a pipeline is refused; a near one is named."""
    with pytest.raises(UserError, match=f"has no pipeline '{name}'"):
        loaded(sd3, pipeline=name)


def test_precision_of_the_vae(sd3):
    """The VAE may have another precision than the rest."""
    pipe = loaded(sd3, dtype="bfloat16", vae_dtype="float32")
    assert (pipe.vae.dtype, pipe.transformer.dtype) == (torch.float32, torch.bfloat16)


@pytest.fixture
def single_file(sd3, tmp_path, monkeypatch):
    """A checkpoint in one file, and a folder that has all but its weights.

    Its names are those of diffusers already: to rename those of other tools is diffusers' business.
    """
    monkeypatch.setattr(single_file_model, "_should_convert_state_dict_to_diffusers", lambda *_: False)
    pipe = tiny.sd3()
    weights = {**pipe.transformer.state_dict(), **pipe.vae.state_dict()}
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / "all.safetensors")
    for part in ("transformer", "vae"):
        (sd3 / part / "diffusion_pytorch_model.safetensors").unlink()
    return tmp_path / "all.safetensors", sd3


def test_single_file(single_file):
    """Weights come from the file, configs and tokenizers from the folder that the recipe names, without a network."""
    path, configs = single_file
    pipe = loaded(path, pipeline="StableDiffusion3Pipeline", configs=str(configs), vae_dtype="float32")
    arguments = tiny.arguments("sd3")
    assert torch.equal(tiny.stock("sd3", pipe=pipe, **arguments), tiny.stock("sd3", **arguments))


def test_single_file_offline_without_configs(single_file):
    """The message says what a single file does not have, and where to take it from."""
    with pytest.raises(UserError, match=r"write model\.configs, the folder or hub id"):
        loaded(single_file[0], pipeline="StableDiffusion3Pipeline")


def test_single_file_of_a_class_that_has_none(single_file):
    """Classes whose checkpoints diffusers cannot convert are refused."""
    with pytest.raises(UserError, match="diffusers reads none of PixArtSigmaPipeline"):
        loaded(single_file[0], pipeline="PixArtSigmaPipeline", configs=str(single_file[1]))


def test_hub_id_offline():
    """A hub id that is not in the cache comes with the command that fetches it."""
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set: run `hf download no-such/model`"):
        loaded("no-such/model")
