"""Tests of `flowrl.doctor`: sick installations, recipes and rewards are found."""

from importlib import metadata
from pathlib import Path

import pytest
import torch

from flowrl import doctor
from flowrl.config import RewardOptions, RunConfig
from flowrl.doctor import diagnose
from flowrl.findings import Finding
from flowrl.reward_checks import check_reward

REWARDS = """
import torch
from flowrl.reward import Reward, RewardBatch


def pictures(level):
    return RewardBatch(torch.full((2, 3, 8, 8), level), ["a", "b"], [{}, {}])


class Bright(Reward):
    def __call__(self, batch):
        return batch.images.mean(dim=(1, 2, 3))

    def examples(self):
        return pictures(1.0), pictures(0.0)


class Dark(Bright):
    higher_is_better = False

    def examples(self):
        return pictures(0.0), pictures(1.0)


class Blind(Bright):
    def __call__(self, batch):
        return torch.zeros(len(batch))


class Silent(Bright):
    def __call__(self, batch):
        return torch.full((len(batch),), float("nan"))


class Backwards(Bright):
    higher_is_better = False


class Raising(Bright):
    def __call__(self, batch):
        raise OSError("no detector")


class Unloadable(Bright):
    def __init__(self):
        raise OSError("weights.bin is damaged")


class Picky(Bright):
    needs = frozenset({"target"})


def plain(images, prompts, metadata):
    return images.mean(dim=(1, 2, 3))
"""


@pytest.fixture
def rewards(tmp_path: Path) -> str:
    """A file of healthy and sick rewards; append ``:Name``."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    return str(tmp_path / "rewards.py")


def config_with(folder: Path, **fields: object) -> RunConfig:
    """A recipe whose model folder is a pipeline without weights."""
    (folder / "model" / "scheduler").mkdir(parents=True)
    (folder / "model" / "scheduler" / "scheduler_config.json").write_text("{}")
    (folder / "model" / "model_index.json").write_text(
        '{"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}'
    )
    fields = {"model": {"path": str(folder / "model")}, "rewards": {"jpeg": 1.0}, "output": folder / "run", **fields}
    return RunConfig.model_validate(fields)


def failures(config: RunConfig | None = None) -> dict[str, str]:
    """Name and detail of everything that fails."""
    return {finding.name: finding.detail for finding in diagnose(config) if finding.state == "FAIL"}


@pytest.mark.parametrize("name", ["shapes", "shapes_partial", "jpeg", "jpeg_incompressibility"])
def test_built_in_rewards_separate(name):
    """Each reward of ours tells its own good pictures from its bad ones."""
    finding = check_reward(name, RewardOptions())
    assert (finding.state, finding.topic) == ("ok", "rewards")
    assert "positive" in finding.detail


@pytest.mark.parametrize(
    ("reward", "state", "detail"),
    [
        ("Bright", "ok", "positive 1, negative 0"),
        ("Dark", "ok", "positive 0, negative 1"),  # raw scores, in which lower is better
        ("Blind", "FAIL", "positive 0, negative 0: no separation"),
        ("Silent", "FAIL", "positive nan, negative nan: no separation"),
        ("Backwards", "FAIL", "positive 1, negative 0: no separation"),
        ("Raising", "FAIL", "OSError: no detector"),
        ("Unloadable", "FAIL", "OSError: weights.bin is damaged"),
        ("Missing", "FAIL", "there is no 'Missing'"),
        ("plain", "note", "brings no example pictures"),
    ],
)
def test_sick_rewards_are_found(reward, state, detail, rewards):
    """A reward that is blind, silent, turned round, broken or missing fails; one without pictures is a note."""
    finding = check_reward(f"{rewards}:{reward}", RewardOptions())
    assert finding.state == state
    assert detail in finding.detail


def test_prompts_that_a_reward_cannot_score(rewards):
    """A reward is asked whether it can score the recipe's prompts."""
    finding = check_reward(f"{rewards}:Picky", RewardOptions(), prompts=["shapes_train"])
    assert finding.state == "FAIL"
    assert "metadata.target: missing" in finding.detail


def test_a_healthy_installation():
    """Here, nothing fails, and every topic has something to say."""
    findings = list(diagnose())
    assert [finding for finding in findings if finding.state == "FAIL"] == []
    assert {finding.topic for finding in findings} == {"versions", "devices", "plug-ins", "rewards"}
    assert Finding("versions", "torch", "ok", metadata.version("torch")) in findings
    assert "rewards: shapes" in {finding.name for finding in findings if finding.topic == "plug-ins"}


def test_a_healthy_recipe(tmp_path):
    """With a recipe its own parts are looked at, and only its own rewards; nothing is written."""
    config = config_with(tmp_path, eval={"rewards": {"shapes": 1.0}})
    before = sorted(tmp_path.rglob("*"))
    findings = list(diagnose(config))
    assert [finding for finding in findings if finding.state == "FAIL"] == []
    assert [finding.name for finding in findings if finding.topic == "rewards"] == ["shapes", "jpeg"]
    assert {"launcher", "model", "disk", "objective", "advantage", "prompts", "eval.prompts"} == {
        finding.name for finding in findings if finding.topic == "recipe"
    }
    assert sorted(tmp_path.rglob("*")) == before


def test_a_sick_recipe_shows_all_its_faults(tmp_path, monkeypatch):
    """Unlike a run, which stops at the first mistake, the doctor lists all."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    config = config_with(
        tmp_path,
        rewards={"jpg": 1.0},
        objective="grpoo",
        advantage="grup",
        prompts="nowhere.txt",
        eval={"prompts": "nowhere.jsonl"},
    )
    found = failures(config)
    assert {"launcher", "objective", "advantage", "prompts", "eval.prompts", "jpg"} == set(found)
    assert "write model.dtype: float16" in found["launcher"]
    assert "Did you mean 'grpo'?" in found["objective"]


def test_old_and_missing_packages(monkeypatch):
    """A package under its lower bound, or not there, fails with what to install; an extra's does not count."""
    needs = ["numpy>=9999", "no-such-package>=1", "torch>=2", "wandb>=9999; extra == 'wandb'"]
    monkeypatch.setattr(metadata, "requires", lambda _: needs)
    found = {finding.name: (finding.state, finding.detail) for finding in doctor.versions()}
    assert found["numpy"][0] == "FAIL"
    assert "pip install --upgrade 'numpy>=9999'" in found["numpy"][1]
    assert found["no-such-package"] == ("FAIL", "not installed; wanted no-such-package>=1")
    assert found["torch"][0] == "ok"
    assert "wandb" not in found


def test_devices_are_listed(monkeypatch):
    """A GPU shows its name, memory and whether it computes in bfloat16."""
    properties = type("Properties", (), {"name": "Card", "total_memory": 24 * 2**30, "major": 7})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    first, *_ = doctor.devices()
    assert first == Finding("devices", "cuda:0", "ok", "Card, 24 GiB, no bfloat16")


def test_a_plug_in_that_does_not_load_is_a_note(monkeypatch):
    """An optional package that is missing is worth knowing, and no failure."""
    monkeypatch.setattr(doctor.plugins, "known", lambda group: ["nothing_of_the_kind"] if group == "rewards" else [])
    (finding,) = doctor.plug_ins()
    assert (finding.name, finding.state) == ("rewards: nothing_of_the_kind", "note")
