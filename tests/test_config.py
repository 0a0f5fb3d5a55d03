"""Tests of `flowrl.config`."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import ValidationError

from flowrl import kernels
from flowrl.config import KernelName, PolicyConfig, RunConfig, Section, load_config, to_yaml
from flowrl.errors import UserError

SMALL = "model: {path: shapes-sd3}\nrewards: {shapes: 1.0}\n"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The shortest recipe."""
    path = tmp_path / "mine.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def complaint(path: Path, *overrides: str) -> str:
    """The message about a recipe with overrides."""
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_defaults(small):
    """Two lines make a run; its folder takes the recipe's name."""
    config = load_config(small)
    assert config.output == Path("runs/mine")
    assert (config.groups_per_step, config.group_size, config.micro_batch_size) == (8, 8, 8)
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (16, 32, None)
    assert (config.objective.name, config.advantage.name) == ("nft", "group")
    assert (config.prompts, config.eval.prompts) == ("shapes_train", "shapes_heldout")


def test_yaml_round_trip(small):
    """The resolved recipe reads back as the same config, and says every field."""
    overrides = [
        "objective={name: grpo, clip_range: 1e-4}",
        "rewards.jpeg={weight: 0.2, quality: 80}",
        "output=runs/a b",
    ]
    config = load_config(small, overrides)
    resolved = small.with_name("resolved.yaml")
    resolved.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(resolved) == config
    assert set(yaml.safe_load(to_yaml(config))) == set(RunConfig.model_fields)


def test_plug_ins_by_name_or_with_options(small):
    """``objective=grpo`` on the command line replaces the objective with its options."""
    small.write_text(SMALL + "objective: {name: nft, beta: 0.1}\nadvantage: {name: group, ddof: 1}\n", encoding="utf-8")
    config = load_config(small, ["objective=grpo"])
    assert (config.objective.name, config.objective.options) == ("grpo", {})
    assert config.advantage.options == {"ddof": 1}
    assert load_config(small).objective.options == {"beta": 0.1}


def test_options_of_the_default_plug_ins(small):
    """An option alone is one of the default plug-in, also where the recipe names it in short."""
    config = load_config(small, ["objective.beta=0.5", "advantage.ddof=1"])
    assert (config.objective.name, config.objective.options) == ("nft", {"beta": 0.5})
    assert (config.advantage.name, config.advantage.options) == ("group", {"ddof": 1})


def test_rewards_by_weight_or_with_options(small):
    """A number is a weight; a mapping has a weight, 1 by default, and options."""
    config = load_config(small, ["rewards={jpeg: {quality: 80}, 'mine.py:f': {weight: -2}}"])
    assert {name: reward.weight for name, reward in config.rewards.items()} == {
        "shapes": 1.0,
        "jpeg": 1.0,
        "mine.py:f": -2.0,
    }
    assert config.rewards["jpeg"].model_extra == {"quality": 80}


def test_frozen(small):
    """A config does not change under a run."""
    with pytest.raises(ValidationError, match="frozen"):
        load_config(small).seed = 3


@pytest.mark.parametrize("value", ["all", 1, 9, [0], [0, 9], [3, 1]])
def test_train_steps_inside_the_schedule(value):
    """All steps, a window that leaves out the last step, or indices of the schedule."""
    assert PolicyConfig(steps=10, train_steps=value).train_steps == value


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("group_size=1", "group_size is 1: wanted at least 2, because an advantage compares"),
        (
            "policy.train_steps=[0,10]",
            "wanted indices from 0 to 9, because the schedule has 10 steps; [10] is not inside",
        ),
        ("policy.train_steps=[-1]", "wanted indices from 0 to 9"),
        ("policy.train_steps=[]", "wanted at least one index from 0 to 9"),
        ("policy.train_steps=[1,1]", "wanted each index once"),
        ("policy.train_steps=10", "wanted a window of 1 to 9 steps, because the schedule has 10, or 'all'"),
        ("policy.train_steps=0", "wanted a window of 1 to 9 steps"),
        ("policy.steps=0", "policy.steps is 0: wanted at least 1"),
        ("policy.kernel=flow_sd", "Did you mean 'flow_sde'?"),
        ("policy.noise_level=-1", "wanted at least 0"),
        ("model.dtype=fp16", "wanted 'float32', 'bfloat16' or 'float16'"),
        ("rewards={shapes: 0}", "wanted at least one reward with a weight"),
        ("rewards={shapes: abc}", "rewards.shapes is 'abc': wanted a number."),
        ("eval.rewards={}", "wanted at least one reward, or null for the run's own"),
        ("eval.every=-1", "wanted at least 0"),
        ("learning_rate=.nan", "learning_rate is nan: wanted a finite number"),
        ("ema_decay=1", "ema_decay is 1: wanted less than 1"),
        ("prompts=mine.txt", "eval.prompts: missing, and its default asks for shapes"),
        ("lora.rnk=4", "Did you mean 'rank'? Known: rank, alpha, targets."),
        ("objective.name=3", "objective.name is 3: wanted a string"),
        ("steps=4", "Did you mean 'policy.steps'?"),
    ],
)
def test_wrong_values(override, wanted, small):
    """A value that cannot work is refused when the recipe is read, with what to write instead."""
    assert wanted in complaint(small, override)


def test_own_prompts_with_own_evaluation(small):
    """A prompt file goes with a held-out one."""
    config = load_config(small, ["prompts=mine.txt", "eval.prompts=heldout.txt"])
    assert (config.prompts, config.eval.prompts) == ("mine.txt", "heldout.txt")


def test_kernel_names_are_those_of_the_kernels():
    """The schema, which imports no torch, lists exactly the kernels that there are."""
    assert set(get_args(KernelName)) == set(kernels.KERNELS)


def sections(schema: type[Section]) -> list[type[Section]]:
    """A schema and all its sections."""
    inner = [field.annotation for field in schema.model_fields.values()]
    return [
        schema,
        *(found for part in inner if isinstance(part, type) and issubclass(part, Section) for found in sections(part)),
    ]


@pytest.mark.parametrize("section", sections(RunConfig), ids=lambda section: section.__name__)
def test_every_field_is_described(section):
    """Each field has its sentence, which `flowrl` shows when it is missing and the JSON schema carries."""
    assert [name for name, field in section.model_fields.items() if not (field.description or "").endswith(".")] == []
