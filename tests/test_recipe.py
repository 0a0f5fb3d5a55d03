"""Tests of `flowrl.recipe`, on a schema of their own."""

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from flowrl import recipe
from flowrl.errors import UserError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: int = Field(10, ge=1, le=1000)
    kind: Literal["ode", "sde"] = "ode"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner = Inner()
    rate: float = 0.1
    names: dict[str, float] = {}
    needed: int = Field(7, description="What it is for.")


class Needy(BaseModel):
    model_config = ConfigDict(extra="forbid")
    needed: int = Field(description="What it is for.")


def write(folder: Path, text: str) -> Path:
    """A recipe file."""
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(folder: Path, text: str, *overrides: str, schema: type[BaseModel] = Outer) -> str:
    """The complaint about a recipe, the folder cut off."""
    with pytest.raises(UserError) as caught:
        recipe.load(schema, write(folder, text), overrides)
    return str(caught.value).replace(f"{folder}/", "")


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path):
    """An override replaces one field of a section, and defaults fill only what nobody wrote."""
    path = write(tmp_path, "inner: {steps: 3, kind: sde}\nrate: 1e-3")
    found = recipe.load(Outer, path, ["inner.steps=5"], defaults={"rate": 9.0, "needed": 1})
    assert found == Outer(inner=Inner(steps=5, kind="sde"), rate=0.001, needed=1)


def test_a_list_and_a_mapping_give_way_to_one_another(tmp_path):
    """An override of another kind replaces what the file says; one of the same kind is merged into a mapping."""

    class Free(BaseModel):
        value: dict[str, Any] | list[int] | int | str

    found = [
        recipe.load(Free, write(tmp_path, text), [override]).value
        for text in ("value: [1, 2]", "value: {a: 1}", "value: 3")
        for override in ("value={b: 2}", "value=[3]", "value=4", "value=all")
    ]
    assert found == [{"b": 2}, [3], 4, "all", {"a": 1, "b": 2}, [3], 4, "all", {"b": 2}, [3], 4, "all"]


def test_exponents_without_a_dot_are_numbers(tmp_path):
    """``3e-4``, a text in YAML 1.1, is a number in the file and in an override."""
    assert recipe.load(Outer, write(tmp_path, "rate: 3e-4")).rate == 3e-4
    assert recipe.load(Outer, write(tmp_path, ""), ["rate=3e-4"]).rate == 3e-4


def test_keys_with_dots_and_colons(tmp_path):
    """A plug-in's path is a key in the file, and is reached by an override in brackets."""
    path = write(tmp_path, '"names": {"my_rewards.py:bright": 0.5, "pkg.mod:f": 1}')
    found = recipe.load(Outer, path, ["names[my_rewards.py:bright]=2"])
    assert found.names == {"my_rewards.py:bright": 2.0, "pkg.mod:f": 1.0}


def test_interpolation(tmp_path):
    """``${...}`` repeats another field."""
    assert recipe.load(Outer, write(tmp_path, "needed: 4\ninner: {steps: '${needed}'}")).inner.steps == 4


@pytest.mark.parametrize(
    ("text", "overrides", "wanted"),
    [
        pytest.param(
            "rate: 1\ninner:\n  step: 3",
            [],
            "a.yaml:3: unknown key 'inner.step'. Did you mean 'steps'? Known: steps, kind.",
            id="nearest in the section",
        ),
        pytest.param(
            "kind: ode",
            [],
            "a.yaml:1: unknown key 'kind'. Did you mean 'inner.kind'? Known: inner, rate, names, needed.",
            id="belongs into a section",
        ),
        pytest.param(
            "inner: {rate: 1}",
            [],
            "a.yaml:1: unknown key 'inner.rate'. Did you mean 'rate' at the top level? Known: steps, kind.",
            id="belongs to the top",
        ),
        pytest.param(
            "", ["zzz=1"], "override 'zzz=1': unknown key 'zzz'. Known: inner, rate, names, needed.", id="nothing near"
        ),
        pytest.param("inner:\n  steps: 0", [], "a.yaml:2: inner.steps is 0: wanted at least 1.", id="too small"),
        pytest.param("inner: {steps: 1001}", [], "a.yaml:1: inner.steps is 1001: wanted at most 1000.", id="too large"),
        pytest.param(
            "", ["inner.steps=x"], "override 'inner.steps=x': inner.steps is 'x': wanted an integer.", id="type"
        ),
        pytest.param(
            "inner: {kind: sd}",
            [],
            "a.yaml:1: inner.kind is 'sd': wanted 'ode' or 'sde'. Did you mean 'sde'?",
            id="choice",
        ),
        pytest.param("inner: 3", [], "a.yaml:1: inner is 3: wanted a mapping of keys to values.", id="not a section"),
        pytest.param("names: {a: b}", [], "a.yaml:1: names.a is 'b': wanted a number.", id="inside a mapping"),
        pytest.param(
            "rate: [1, 2", [], "a.yaml:1: not valid YAML: expected ',' or ']', but got '<stream end>'.", id="yaml"
        ),
        pytest.param("rate: 1\nrate: 2", [], "a.yaml:2: not valid YAML: found duplicate key rate.", id="duplicate"),
        pytest.param("- 1", [], "a.yaml: wanted keys and values such as 'max_steps: 100', got '- 1'.", id="list"),
        pytest.param("hello", [], "a.yaml: wanted keys and values such as 'max_steps: 100', got 'hello'.", id="text"),
        pytest.param("rate: ${x}", [], "a.yaml: Interpolation key 'x' not found.", id="interpolation"),
        pytest.param(
            "", ["rate"], "override 'rate': wanted key=value, such as max_steps=20 or policy.steps=12.", id="no value"
        ),
        pytest.param(
            "",
            ["rate=[1"],
            "override 'rate=[1': the value is not valid YAML; quote it for the shell and YAML.",
            id="override yaml",
        ),
    ],
)
def test_mistakes(text, overrides, wanted, tmp_path):
    """Each mistake is one line: where, which field, what was wanted, what came, what was meant."""
    assert message(tmp_path, text, *overrides) == wanted


def test_missing_fields_are_explained(tmp_path):
    """A field that must be written is named with its description."""
    assert message(tmp_path, "", schema=Needy) == "a.yaml: needed is missing. What it is for."


def test_all_mistakes_at_once(tmp_path):
    """Two mistakes are two lines, so that nobody has to run three times."""
    text = message(tmp_path, "rate: high\ninner: {steps: 0}")
    assert text.splitlines() == [
        "a.yaml:2: inner.steps is 0: wanted at least 1.",
        "a.yaml:1: rate is 'high': wanted a number.",
    ]


def test_long_values_are_cut(tmp_path):
    """A message stays readable when the value is a page long."""
    assert len(message(tmp_path, f"rate: {'x' * 5000}")) < 200


@pytest.mark.parametrize("target", ["missing.yaml", "."])
def test_unreadable_files(target, tmp_path):
    """A path that is no file is named."""
    with pytest.raises(UserError, match=r"wanted .* YAML file"):
        recipe.load(Outer, tmp_path / target)


def test_binary_file(tmp_path):
    """A picture is no recipe."""
    (tmp_path / "a.yaml").write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(UserError, match="not a text file"):
        recipe.load(Outer, tmp_path / "a.yaml")
