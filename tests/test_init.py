"""Tests of the package itself: its names, and what importing it costs."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import diffusers
import pytest
import torch

import flowrl

from . import tiny


def test_names_are_sorted():
    """``__all__`` is in order: constants, classes, then functions and modules, each by the alphabet."""
    assert flowrl.__all__ == sorted(flowrl.__all__)


def test_dir_lists_every_name():
    """Completion in a shell finds the names before they are imported."""
    assert set(flowrl.__all__) <= set(dir(flowrl))


@pytest.mark.parametrize("name", flowrl.__all__)
def test_name_resolves(name: str):
    """Every public name leads to something of flowrl's that is documented."""
    value = getattr(flowrl, name)
    assert getattr(value, "__module__", value.__name__).startswith("flowrl.")
    assert value.__doc__


def test_unknown_name():
    """A name that is not there is an AttributeError, as for any module."""
    with pytest.raises(AttributeError, match="module 'flowrl' has no attribute 'Polizy'"):
        _ = flowrl.Polizy


def test_import_is_light():
    """``import flowrl`` imports neither torch nor anything else that is slow, so it costs next to nothing."""
    code = "import sys, flowrl; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"accelerate", "diffusers", "numpy", "peft", "pydantic", "scipy", "torch", "transformers", "typer"}
    assert "flowrl" in done.stdout.split()
    assert slow & set(done.stdout.split()) == set()


def test_example_runs(tmp_path, monkeypatch):
    """The example in the docstring runs: ratio 1 before an update, and a LoRA in the folder."""
    _, _, rest = flowrl.__doc__.partition("::\n")
    example = textwrap.dedent(rest[: rest.index("A whole training")])
    load = SimpleNamespace(from_pretrained=lambda _: tiny.sd3())
    monkeypatch.setattr(diffusers, "StableDiffusion3Pipeline", load)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(example, "flowrl.__doc__", "exec"), names)  # noqa: S102 (our own docstring)
    assert names["ratio"].tolist() == [1.0] * 4
    assert names["velocity"].requires_grad
    assert torch.equal(names["base"].mean, names["replay"].mean)
    assert [path.name for path in (tmp_path / "adapter").iterdir()] == ["pytorch_lora_weights.safetensors"]
