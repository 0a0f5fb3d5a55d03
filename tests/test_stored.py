"""flowrl.stored: runs that learn from preference data, made by `flowrl.make_data` or given as pictures."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from flowrl import plugins
from flowrl.cli import app
from flowrl.errors import RunStopped, UserError
from flowrl.make_data import make
from flowrl.objectives import Seeds
from flowrl.objectives.dpo import DPO
from flowrl.preferences import load_groups
from flowrl.preflight import preflight
from flowrl.stored import StoredData

from . import runs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def data(model, tmp_path_factory):
    """Three groups of four pictures of that model, scored by their brightness."""
    folder = tmp_path_factory.mktemp("data")
    make(runs.recipe(model, folder / "unused"), folder, 3)
    return folder


def recipe(model, output, data, *overrides):
    """A run of three steps of two stored groups."""
    changes = ["objective.name=dpo", f"data={data}", "max_steps=3", *overrides]
    return runs.recipe(model, output, *changes)


def weights(folder):
    """The exported LoRA."""
    return load_file(folder / "adapter" / "pytorch_lora_weights.safetensors")


def same(one, other):
    """Whether two exports are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_made_data(model, data):
    """The stock sampler's pictures of the prompts in order, with scores, latents and the noise that they began as."""
    groups = load_groups(data)
    assert [group.prompt for group in groups] == list(runs.PROMPTS[:3])
    trainer = runs.watched(runs.recipe(model, data / "unused"))
    for group in groups:
        kept = load_file(group.latents)
        assert kept["latents"].shape == kept["noise"].shape
        batch = trainer.first_rollout()[0]
        assert kept["scores"].tolist() == pytest.approx(list(group.scores))
        assert len(group.images) == len(batch.rows) == 4
        assert float(kept["noise"].std()) == pytest.approx(1, abs=0.3)


def test_a_cut_is_gone_on_with(model, data, tmp_path):
    """What is there is not drawn again, and what is drawn is the same: a sample depends on its seed alone."""
    make(runs.recipe(model, tmp_path / "unused"), tmp_path, 1)
    first = (tmp_path / "latents" / "000000.safetensors").stat().st_mtime_ns
    make(runs.recipe(model, tmp_path / "unused"), tmp_path, 2)
    assert (tmp_path / "latents" / "000000.safetensors").stat().st_mtime_ns == first
    assert len(load_groups(tmp_path)) == 2
    with pytest.raises(UserError, match="holds data that was made with other seed, group_size; write another --out"):
        make(runs.recipe(model, tmp_path / "unused", "seed=1", "group_size=2"), tmp_path, 3)
    for number in range(2):
        name = f"latents/{number:06d}.safetensors"
        assert same(load_file(tmp_path / name), load_file(data / name))


LEARNERS = [
    name
    for name in runs.OBJECTIVES
    if not ((found := plugins.load("objectives", name)).transitions or found.differentiates or found.behaviour)
]
"""Every objective that says it needs final samples alone."""


@pytest.mark.parametrize("objective", LEARNERS)
def test_a_run_learns_from_data(model, data, tmp_path, objective):
    """Nothing is drawn but for evaluations: a denoiser call a sample for the conditions, and those of the update."""
    folder = runs.train(recipe(model, tmp_path / "run", data, f"objective.name={objective}", "max_steps=1"))
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    assert log["grad_norm"] > 0
    assert log["reward/mean"] == pytest.approx(sum(sum(g.scores) for g in load_groups(data)) / 12, abs=0.1)
    checked = preflight(recipe(model, tmp_path / "other", data, f"objective.name={objective}"))
    assert log["denoiser_calls"] <= 8 * (1 + checked.objective.model_calls(0))


def test_stop_and_resume_is_bit_equal(model, data, tmp_path):
    """A run in two parts equals one that was never stopped; so does one with other micro-batches, almost."""
    whole = runs.train(recipe(model, tmp_path / "whole", data))
    runs.train(recipe(model, tmp_path / "parts", data, "max_steps=1"))
    parts = runs.train(recipe(model, tmp_path / "parts", data), resume=True)
    assert same(weights(whole), weights(parts))
    cut = weights(runs.train(recipe(model, tmp_path / "cut", data, "micro_batch_size=3")))
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(cut[name], tensor, rtol=1e-2, atol=1e-5)


def test_pictures_are_encoded_as_the_pipeline_decodes(model, data, tmp_path):
    """Data of pictures alone gives the latents that the VAE's encoder gives, in the pipeline's scale and shift."""
    groups = [replace(group, latents=None) for group in load_groups(data)]
    trainer = runs.watched(recipe(model, tmp_path / "run", data))
    trainer._stored._data = StoredData(groups)
    batch = trainer._plan(0)[0]
    found = trainer._stored(batch).latents
    vae, image = trainer.policy.pipe.vae, groups[batch.rows[0].row].images[batch.samples[0]]
    pixels = trainer.policy.pipe.image_processor.preprocess(Image.open(image).convert("RGB"))
    with torch.no_grad():
        z = vae.encode(pixels).latent_dist.mode()
    wanted = (z - vae.config.shift_factor) * vae.config.scaling_factor
    torch.testing.assert_close(found[:1], wanted, rtol=1e-3, atol=1e-3)


def test_stored_noise_is_the_forward_process_noise(model, data, tmp_path):
    """PNAPO: x_t lies on the straight line from each sample to the noise that it was drawn from."""
    trainer = runs.watched(recipe(model, tmp_path / "run", data, "objective.noise=stored"))
    batch, rollout = trainer.first_rollout()
    kept = [load_file(trainer._checked.stored.groups[row.row].latents) for row in batch.rows]
    wanted = torch.stack([tensors["noise"][sample] for tensors, sample in zip(kept, batch.samples, strict=True)])
    for piece in trainer._pieces(0, batch, rollout):
        assert torch.equal(piece.eps, wanted)
    assert not torch.equal(trainer._pieces(0, batch, rollout)[0].sigma, trainer._pieces(0, batch, rollout)[1].sigma)
    drawn = DPO(times=2).pieces(trainer.policy, rollout, Seeds(0, batch.seeds))
    assert not torch.equal(drawn[0].eps, wanted)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective.name=grpo"], "objective grpo learns from rollouts of its own"),
        (["objective.name=nft"], "objective nft learns from rollouts of its own"),
        (["group_size=2"], "its groups have 4 pictures, and group_size is 2; write group_size: 4"),
        (["data=none.jsonl"], "wanted a .jsonl file or a folder"),
        (["data=null", "objective.noise=stored"], "wants the noise that each sample was drawn from"),
    ],
)
def test_what_does_not_fit_is_refused(model, data, tmp_path, overrides, message):
    """Before weights load."""
    with pytest.raises(UserError, match=message):
        preflight(recipe(model, tmp_path / "run", data, *overrides))


def test_latents_of_another_model(model, data, tmp_path):
    """The line and both shapes are named; data without noise is refused where noise is needed."""
    (tmp_path / "preferences.jsonl").write_text(
        json.dumps({"prompt": "a", "latents": "a.safetensors", "scores": [0, 1, 2, 3]}) + "\n"
    )
    save_file({"latents": torch.zeros(4, 3, 2, 2)}, tmp_path / "a.safetensors")
    with pytest.raises(RunStopped, match=r"preferences.jsonl:1: it has latents of the shape \[3, 2, 2\]"):
        runs.watched(recipe(model, tmp_path / "run", tmp_path)).step()
    with pytest.raises(UserError, match="not every group has it"):
        preflight(recipe(model, tmp_path / "run", tmp_path, "objective.noise=stored"))


def test_command_line(data, tmp_path):
    """``check`` says what is there; with mistakes it lists them, and its exit status is 2."""
    good = CliRunner().invoke(app, ["data", "check", str(data)])
    assert good.exit_code == 0
    assert "3 groups of 4 pictures, with the noise they were drawn from; 0 mistakes." in good.stdout
    (tmp_path / "preferences.jsonl").write_text("{\n")
    bad = CliRunner().invoke(app, ["data", "check", str(tmp_path)])
    assert bad.exit_code == 2
    assert "preferences.jsonl:1: not JSON" in bad.stdout
