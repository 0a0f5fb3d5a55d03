"""Tests of `flowrl.sample`: diffusers alone draws what the policy drew."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from flowrl import adapters, kernels
from flowrl.adapters import LoRA
from flowrl.config import RunConfig, to_yaml
from flowrl.errors import UserError
from flowrl.policy import Policy
from flowrl.sample import WEIGHTS_FILE, SampleConfig, draw, find_source, read_prompts

from . import tiny

PROMPTS = ["a red circle", "two blue squares"]
STEPS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """A tiny model's folder, a LoRA that changes its pictures (alpha is not rank), and the pictures of the policy."""
    folder = tmp_path_factory.mktemp("trained")
    tiny.sd3().save_pretrained(folder / "model")
    policy = Policy(tiny.sd3(), kernel=kernels.ode(), lora=LoRA(rank=4, alpha=8.0))
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters.values():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    policy.save_lora(folder / "lora")
    drawn = {"folder": folder, "after": pixels(policy)}
    with policy.reference():
        drawn["base"] = pixels(policy)
    return drawn


def pixels(policy: Policy) -> np.ndarray:
    """The policy's pictures of the prompts with seeds 5 and 6, uint8 `[4, H, W, 3]`."""
    images = policy.sample([prompt for prompt in PROMPTS for _ in range(2)], seeds=[5, 6, 5, 6], steps=STEPS)
    return (images.detach() * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def source(trained: dict, *overrides: str) -> object:
    """The LoRA's folder as a source."""
    settings = [f"model.path={trained['folder'] / 'model'}", f"steps={STEPS}", "seed=5", "samples_per_prompt=2"]
    return find_source(trained["folder"] / "lora", [*settings, *overrides])


@pytest.mark.parametrize("micro_batch_size", [3, 8])
def test_stock_pipeline_draws_what_the_policy_drew(micro_batch_size, trained, tmp_path):
    """Before and after, picture for picture, whatever the batch: within one level of 255."""
    paths = draw(source(trained, f"micro_batch_size={micro_batch_size}"), PROMPTS, tmp_path / "out", base=True)
    stems = ["000_seed_5", "000_seed_6", "001_seed_5", "001_seed_6"]
    assert [path.name for path in paths] == [f"{stem}_base.png" for stem in stems] + [f"{stem}.png" for stem in stems]
    drawn = np.stack([np.asarray(Image.open(path)) for path in paths]).astype(int)
    assert np.abs(drawn[:4] - trained["base"]).max() <= 1
    assert np.abs(drawn[4:] - trained["after"]).max() <= 1
    assert np.abs(drawn[:4] - drawn[4:]).max() > 10


def test_without_base(trained, tmp_path):
    """Only the LoRA's pictures are drawn unless the base model's are asked for."""
    paths = draw(source(trained, "samples_per_prompt=1"), PROMPTS[:1], tmp_path)
    assert [path.name for path in paths] == ["000_seed_5.png"]
    assert list(tmp_path.iterdir()) == paths


def test_files_are_not_overwritten(trained, tmp_path):
    """A picture that is there already stays, and the model is not loaded for nothing."""
    (tmp_path / "001_seed_6.png").write_text("mine")
    with pytest.raises(UserError, match=r"001_seed_6\.png is there already"):
        draw(source(trained), PROMPTS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["001_seed_6.png"]


@pytest.mark.parametrize("damage", ["prefix", "missing module", "empty"])
def test_a_lora_that_does_not_arrive_is_an_error(damage, trained, tmp_path):
    """Where diffusers warns, or says nothing, and draws the base model's pictures, we stop."""
    weights = load_file(trained["folder"] / "lora" / WEIGHTS_FILE)
    if damage == "prefix":
        weights = {"unet" + name.removeprefix("transformer"): tensor for name, tensor in weights.items()}
    elif damage == "missing module":
        weights |= {
            name.replace("transformer_blocks.0.", "transformer_blocks.9."): tensor.clone()
            for name, tensor in weights.items()
        }
    else:
        weights = {}
    save_file(weights, tmp_path / WEIGHTS_FILE)
    found = find_source(tmp_path, [f"model.path={trained['folder'] / 'model'}", f"steps={STEPS}"])
    with pytest.raises(UserError, match="the LoRA in"):
        draw(found, PROMPTS, tmp_path / "out")


def run_folder(folder: Path, **fields: object) -> Path:
    """The folder of a run with a LoRA and its moving average."""
    config = RunConfig(model={"path": "shapes-sd3"}, rewards={"shapes": 1.0}, **fields)
    for place in (folder / "adapter", folder / "adapter" / "ema"):
        place.mkdir(parents=True)
        (place / WEIGHTS_FILE).touch()
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


def test_a_run_draws_as_it_evaluates(tmp_path):
    """The model, steps, guidance and size of a run's evaluations are the defaults, and overrides win."""
    evaluation = {"steps": 40, "guidance_scale": 2.0}
    run = run_folder(tmp_path / "run", policy={"steps": 10, "height": 64}, eval=evaluation, seed=3)
    found = find_source(run, ["samples_per_prompt=4"])
    assert found.adapter == run / "adapter"
    assert found.config == SampleConfig(
        model={"path": "shapes-sd3"}, steps=40, guidance_scale=2.0, height=64, seed=3, samples_per_prompt=4
    )
    assert find_source(run, ema=True).adapter == run / "adapter" / "ema"


def test_a_run_without_evaluation_settings(tmp_path):
    """Where evaluation follows the policy, so do we."""
    config = find_source(run_folder(tmp_path / "run", policy={"steps": 7, "guidance_scale": 0.0})).config
    assert (config.steps, config.guidance_scale) == (7, 0.0)


def test_no_lora_yet(tmp_path):
    """A run that has not saved, and a folder that is neither, are told apart."""
    run = run_folder(tmp_path / "run")
    (run / "adapter" / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match="the run has not saved one yet"):
        find_source(run)
    with pytest.raises(UserError, match="wanted the folder of a run or of a LoRA"):
        find_source(tmp_path)


def test_a_lora_alone_needs_a_model(trained):
    """A LoRA's file does not say which model it is for."""
    with pytest.raises(UserError, match="model is missing"):
        find_source(trained["folder"] / "lora")


def test_prompts(tmp_path):
    """A prompt is a text, the lines of a file, or a bundled list."""
    (tmp_path / "mine.txt").write_text("one\ntwo\n")
    assert read_prompts(["zero", str(tmp_path / "mine.txt")]) == ["zero", "one", "two"]
    assert len(read_prompts(["shapes_heldout"])) == 96
    with pytest.raises(UserError, match="no prompt; write --prompt"):
        read_prompts([])


def test_file_name_is_that_of_the_export():
    """The name is written twice, so that the command line need not import PEFT to look for it."""
    assert WEIGHTS_FILE == adapters.WEIGHTS_FILE
