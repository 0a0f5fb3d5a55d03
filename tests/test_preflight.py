"""Tests of `flowrl.preflight`: no weights are loaded, and nothing is written."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from flowrl.config import ModelConfig, Plugin, PolicyConfig, RunConfig, to_yaml
from flowrl.errors import UserError
from flowrl.objectives import GRPO, NFT
from flowrl.preflight import (
    RESUMABLE,
    Preflight,
    check_disk,
    check_launcher,
    check_output,
    make_advantage,
    make_kernel,
    make_objective,
    preflight,
    run_bytes,
)

NEEDY = """
from flowrl.reward import Reward

class Needy(Reward):
    needs = frozenset({"target"})

    def __call__(self, batch):
        return batch.images.mean(dim=(1, 2, 3))
"""


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """A run that passes: two prompt files and a model folder without weights."""
    (tmp_path / "train.txt").write_text("a red circle\ntwo blue squares\n")
    (tmp_path / "heldout.txt").write_text("a green star\n")
    (tmp_path / "model" / "scheduler").mkdir(parents=True)
    (tmp_path / "model" / "scheduler" / "scheduler_config.json").write_text("{}")
    (tmp_path / "model" / "model_index.json").write_text(
        '{"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}'
    )
    return RunConfig(
        output=tmp_path / "run",
        model={"path": str(tmp_path / "model")},
        prompts=str(tmp_path / "train.txt"),
        eval={"prompts": str(tmp_path / "heldout.txt")},
        rewards={"jpeg": 1.0},
    )


def changed(config: RunConfig, **fields: object) -> RunConfig:
    """The config with other fields, validated."""
    return RunConfig.model_validate({**config.model_dump(), **fields})


def complaint(config: RunConfig, resume: bool = False) -> str:
    """The message about a run."""
    with pytest.raises(UserError) as caught:
        preflight(config, resume)
    return str(caught.value)


def test_a_good_run_passes_and_writes_nothing(run, tmp_path):
    """The parts of the run come back, and the output folder is not created."""
    before = sorted(tmp_path.rglob("*"))
    checked = preflight(run)
    assert isinstance(checked, Preflight)
    assert checked.model == run.model.path
    assert callable(checked.loader)
    assert [row.prompt for row in checked.rows] == ["a red circle", "two blue squares"]
    assert [row.prompt for row in checked.eval_rows] == ["a green star"]
    assert checked.rewards.names == ("jpeg",)
    assert checked.eval_rewards is checked.rewards
    assert isinstance(checked.objective, NFT)
    assert checked.kernel.name == "flow_sde"
    # Two samples of one group, scores 0 and 2: mean 1, std 1, so the advantages are -1 and 1 (but for eps = 1e-4).
    advantages, _ = checked.advantage(torch.tensor([[[0.0], [2.0]]]), torch.ones(1))
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, 1.0]]), atol=2e-4, rtol=0)
    assert sorted(tmp_path.rglob("*")) == before


def test_evaluation_rewards_of_its_own(run):
    """Evaluations may measure what is not trained on."""
    config = changed(run, eval={**run.eval.model_dump(), "rewards": {"jpeg_incompressibility": 1.0}})
    checked = preflight(config)
    assert (checked.rewards.names, checked.eval_rewards.names) == (("jpeg",), ("jpeg_incompressibility",))


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"rewards": {"jpg": 1.0}}, ["unknown reward 'jpg'", "Did you mean 'jpeg'?", "Known: "]),
        ({"rewards": {"jpeg": {"qualty": 3}}}, ["unknown option 'qualty'", "Did you mean 'quality'?"]),
        ({"objective": "grpoo"}, ["unknown objective 'grpoo'", "Did you mean 'grpo'?"]),
        ({"objective": {"name": "nft", "betta": 1}}, ["objective nft: unknown key 'betta'", "Did you mean 'beta'?"]),
        ({"objective": {"name": "nft", "beta": -1}}, ["objective nft: beta is -1: wanted greater than 0."]),
        ({"objective": "math:sqrt"}, ["wanted a subclass of flowrl.objectives.Objective"]),
        ({"advantage": "grup"}, ["unknown advantage 'grup'", "Did you mean 'group'?"]),
        ({"advantage": {"name": "group", "dof": 1}}, ["unknown option 'dof'", "Did you mean 'ddof'?"]),
        ({"prompts": "nowhere.txt"}, ["no file 'nowhere.txt'", "shapes_train"]),
        ({"objective": "grpo", "policy": {"kernel": "ode"}}, ["objective grpo trains on stochastic transitions"]),
        ({"objective": "grpo", "policy": {"noise_level": 0}}, ["kernel flow_sde with noise_level 0 has none"]),
        ({"policy": {"kernel": "flow_cps", "noise_level": 1.5}}, ["noise_level of flow_cps is 1.5"]),
    ],
)
def test_parts_that_do_not_exist_or_fit(fields, wanted, run):
    """Unknown names list the known ones and suggest the nearest; options are checked against their owner."""
    text = complaint(changed(run, **fields))
    assert [part for part in wanted if part not in text] == []


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"objective": "grpo", "policy": {"steps": 3}}, "numbers for 2 steps, but policy.steps is 3"),
        ({"objective": {"name": "rwr", "times": 2}}, "objective rwr takes one a sample"),
        ({"objective": "stepwise_grpo"}, "objective stepwise_grpo takes one a sample"),
        ({"objective": "grpo", "policy": {"steps": 2, "branch": {}, "train_steps": [0]}}, "leave policy.branch out"),
    ],
)
def test_advantages_by_step_need_a_place(fields, wanted, run):
    """An advantage for each step is refused where nothing takes it."""
    recast = {"name": "recast", "gains": {"jpeg": [1.0, 0.0]}}
    fields = {"policy": {"steps": 2}, "micro_batch_size": 8, "group_size": 8, **fields}
    assert wanted in complaint(changed(run, advantage=recast, **fields))


def test_unknown_loader(run):
    """A loader is a plug-in too."""
    config = changed(run, model={"path": run.model.path, "loader": "autoo"})
    assert "Did you mean 'auto'?" in complaint(config)


@pytest.mark.parametrize("which", ["prompts", "eval.prompts"])
def test_malformed_prompts(which, run, tmp_path):
    """A broken line is named with its file, line and field."""
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a red circle"}\n{"prompt": 3}\n')
    bad = str(tmp_path / "bad.jsonl")
    eval_prompts = bad if which == "eval.prompts" else run.eval.prompts
    config = changed(run, prompts=bad if which == "prompts" else run.prompts, eval={"prompts": eval_prompts})
    assert "bad.jsonl:2: prompt: wanted a text" in complaint(config)


def test_metadata_that_a_reward_needs(run, tmp_path):
    """A reward says what it needs, and the first prompt without it is named."""
    (tmp_path / "needy.py").write_text(NEEDY)
    text = complaint(changed(run, rewards={f"{tmp_path / 'needy.py'}:Needy": 1.0}))
    assert "train.txt:1: metadata.target: missing" in text


def test_prompts_that_a_reward_cannot_judge(run, tmp_path):
    """The shapes reward reads captions of its own grammar only."""
    (tmp_path / "train.txt").write_text("a photo of a dog\n")
    assert "train.txt:1" in complaint(changed(run, rewards={"shapes": 1.0}))


def test_reward_for_videos_with_a_pipeline_for_pictures(run, tmp_path):
    """Where the class is known to draw pictures, the mistake is found before any weights load."""
    (tmp_path / "mine.py").write_text("def smooth(videos, prompts, metadata):\n    return [0.0] * len(prompts)\n")
    run = changed(run, rewards={f"{tmp_path / 'mine.py'}:smooth": 1.0})
    preflight(run)  # nothing is known of a pipeline without a class
    index = tmp_path / "model" / "model_index.json"
    index.write_text(index.read_text().replace("{", '{"_class_name": "StableDiffusion3Pipeline", ', 1))
    assert "scores videos, and StableDiffusion3Pipeline draws single pictures (text to image)" in complaint(run)
    index.write_text(index.read_text().replace("StableDiffusion3Pipeline", "WanPipeline"))
    preflight(run)


def test_launcher_and_config_disagree(monkeypatch, run):
    """Precision that only the launcher knows is an error, not a surprise."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert "write model.dtype: bfloat16" in complaint(run)
    preflight(changed(run, model={"path": run.model.path, "dtype": "bfloat16"}))


@pytest.mark.parametrize(
    ("asked", "dtype"), [("no", "bfloat16"), ("no", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")]
)
def test_launcher_and_config_agree(asked, dtype):
    """``no``, which ``accelerate launch`` sets by itself, contradicts nothing."""
    check_launcher(ModelConfig(path="a", dtype=dtype), {"ACCELERATE_MIXED_PRECISION": asked})


def test_fp8_is_refused():
    """A precision that flowrl does not know is refused for every dtype."""
    with pytest.raises(UserError, match=r"asks for fp8 .*; launch with --mixed_precision no"):
        check_launcher(ModelConfig(path="a"), {"ACCELERATE_MIXED_PRECISION": "fp8"})


def test_more_processes_than_gpus(monkeypatch):
    """Two processes on one GPU are refused; on a machine without a GPU they share the CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="2 processes for 1 GPUs; launch with --num_processes 1"):
        check_launcher(ModelConfig(path="a"), {"LOCAL_WORLD_SIZE": "2"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check_launcher(ModelConfig(path="a"), {"LOCAL_WORLD_SIZE": "2"})


def started(config: RunConfig) -> RunConfig:
    """The config, after its run has written its first file."""
    config.output.mkdir(parents=True)
    (config.output / "config.yaml").write_text(to_yaml(config))
    return config


def test_output_of_another_run(run):
    """A folder that holds a run is never overwritten."""
    text = complaint(started(run))
    assert "holds a run already (config.yaml)" in text
    assert "--resume" in text


def test_output_with_foreign_files(run):
    """A folder with somebody else's files is refused, also when resuming."""
    run.output.mkdir()
    (run.output / "thesis.tex").touch()
    for resume in (False, True):
        assert "is not empty (thesis.tex) and holds no run" in complaint(run, resume)


def test_output_that_is_a_file(run, tmp_path):
    """A path through a file cannot become a folder."""
    assert "train.txt is a file" in complaint(changed(run, output=tmp_path / "train.txt" / "run"))


def test_empty_output(run):
    """An empty folder is free, and so is one with nothing but what a killed process left unfinished."""
    run.output.mkdir()
    check_output(run, resume=False)
    (run.output / ".config.yaml.x1").touch()
    check_output(run, resume=False)


def test_resume(run):
    """The same run goes on; without a folder it starts, and if it was killed before its config it starts again."""
    check_output(run, resume=True)
    run.output.mkdir()
    (run.output / "samples").mkdir()
    check_output(run, resume=True)
    (run.output / "config.yaml").write_text(to_yaml(run))
    check_output(run, resume=True)


def test_resume_with_changes(run):
    """What does not alter the steps may change; what does is listed with its old and its new value."""
    started(run)
    check_output(changed(run, max_steps=500, micro_batch_size=2, keep_checkpoints=1), resume=True)
    text = complaint(changed(run, learning_rate=0.5, seed=3), resume=True)
    assert "seed was 0, is 3" in text
    assert "learning_rate was 0.0003, is 0.5" in text
    assert set(RESUMABLE) <= set(RunConfig.model_fields)


def test_disk_space(monkeypatch, run):
    """A disk that cannot hold the checkpoints is refused, in numbers."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * 2**20))
    assert "has 10 MB free, and this run needs about 64 MB" in complaint(run)
    assert not run.output.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=65 * 2**20))
    check_disk(run, run.model.path)


def test_run_bytes(run):
    """The size of the LoRA is counted from the shapes of the targeted matrices."""
    folder = Path(run.model.path) / "transformer"
    folder.mkdir()
    weights = {"block.attn.to_q.weight": torch.zeros(3, 5), "block.ff.weight": torch.zeros(7, 7)}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    # Rank 16 on a 3 x 5 matrix: 16 * (3 + 5) = 128 numbers of 4 bytes; 5 tensors in 2 + 1 checkpoints, and 2 exports.
    assert run_bytes(run, run.model.path) - 64 * 2**20 == 128 * 4 * (5 * 3 + 2)
    wider = changed(run, lora={"targets": ["to_q", "ff"], "rank": 16}, keep_checkpoints=1)
    # With the 7 x 7 matrix: 16 * (8 + 14) = 352 numbers; 1 + 1 checkpoints.
    assert run_bytes(wider, run.model.path) - 64 * 2**20 == 352 * 4 * (5 * 2 + 2)


def test_parts_carry_their_options():
    """Options reach the advantage, the objective and the kernel."""
    objective = make_objective(Plugin(name="grpo", clip_range=0.2))
    assert isinstance(objective, GRPO)
    assert objective.options.clip_range == 0.2
    assert make_kernel(PolicyConfig(kernel="dance_sde", noise_level=0.25)).noise_level == 0.25
    assert make_kernel(PolicyConfig(kernel="ode", noise_level=0.7)).noise_level == 0
    clipped, _ = make_advantage(Plugin(name="group", clip=0.5))(torch.tensor([[[0.0], [2.0]]]), torch.ones(1))
    assert clipped.tolist() == [[-0.5, 0.5]]
