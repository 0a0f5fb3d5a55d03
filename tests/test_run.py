"""flowrl.run: the files of a run's folder, and what the environment file does not tell."""

from __future__ import annotations

import json
import math
import os
import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flowrl.config import RunConfig, load_config
from flowrl.run import PACKAGES, RunFolder, environment

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    """A run's folder with nothing in it."""
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def metrics(folder):
    """The path of ``metrics.jsonl``, with the rows of steps 0 to 3 in it."""
    for step in range(4):
        folder.log({"step": float(step), "loss": step / 10})
    return folder.path / "metrics.jsonl"


def names(path):
    """Every file and folder below a path."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def steps(path):
    """The steps in a ``metrics.jsonl``; every line is whole."""
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_start_writes_the_config_and_the_environment(tmp_path):
    """The config reads back as it was, defaults and all; an old diagnosis goes."""
    config = RunConfig(model={"path": "shapes-sd3"}, rewards={"shapes": 0.5}, output=tmp_path / "a" / "run", seed=7)
    folder = RunFolder(config.output)
    config.output.mkdir(parents=True)
    folder.note_stop(3, "no learning signal")
    folder.start(config, {"python": "3.12", "rewards": []})
    assert names(config.output) == ["config.yaml", "environment.json"]
    assert load_config(config.output / "config.yaml") == config
    assert "group_size: 8" in (config.output / "config.yaml").read_text()
    assert json.loads((config.output / "environment.json").read_text()) == {"python": "3.12", "rewards": []}


def test_log_appends_a_line_of_json(folder):
    """A line a row, in order; a number that is not finite is null."""
    folder.log({"step": 1.0, "loss": math.nan, "grad_norm": math.inf})
    folder.log({"step": 2.0, "loss": 0.25})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1.0, "loss": None, "grad_norm": None},
        {"step": 2.0, "loss": 0.25},
    ]


@pytest.mark.parametrize(("step", "kept"), [(-1, []), (0, [0]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_rewind_drops_later_steps(step, kept, folder, metrics):
    """Steps up to the last checkpoint stay as they were written, and the file takes more lines afterwards."""
    before = metrics.read_text().splitlines(keepends=True)
    folder.rewind(step)
    assert metrics.read_text() == "".join(before[: len(kept)])
    folder.log({"step": 10.0})
    assert steps(metrics) == [*kept, 10]
    assert names(folder.path) == ["metrics.jsonl"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_rewind_drops_an_unfinished_line(cut, folder, metrics):
    """A killed process may leave half of its last line; the step that it belongs to is done again."""
    whole = metrics.read_text()
    metrics.write_text(whole + json.dumps({"step": 4.0, "loss": 0.4})[:cut])
    folder.rewind(4)
    assert metrics.read_text() == whole


def test_rewind_closes_a_line_without_an_end(folder, metrics):
    """A whole last row stays, and what is logged next gets a line of its own."""
    metrics.write_text(metrics.read_text().rstrip("\n"))
    folder.rewind(3)
    folder.log({"step": 4.0})
    assert steps(metrics) == [0, 1, 2, 3, 4]


def test_rewind_is_all_or_nothing(folder, metrics, monkeypatch):
    """A process that dies before the new file is in place leaves the old one."""
    before = metrics.read_text()

    def die(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        folder.rewind(1)
    assert metrics.read_text() == before
    assert names(folder.path) == ["metrics.jsonl"]


def test_rewind_of_nothing_is_nothing(folder):
    """A run that was killed before its first row has no file to mend."""
    folder.rewind(5)
    assert names(folder.path) == []


def test_note_stop_writes_step_and_reason(folder):
    """Words of any language stay legible, and the newest diagnosis stays."""
    folder.note_stop(1, "first")
    folder.note_stop(2, "der Gradient ist größer als ∞")
    text = (folder.path / "stopped.json").read_text(encoding="utf8")
    assert json.loads(text) == {"step": 2, "reason": "der Gradient ist größer als ∞"}
    assert "größer als ∞" in text


def test_samples_are_lossless(folder):
    """The pictures come back pixel for pixel, each beside its record."""
    images = [torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8) for _ in range(2)]
    folder.save_samples(10, images, [{"prompt": "a"}, {"prompt": "b", "scores": {"x": None}}])
    samples = folder.path / "samples" / "step_000010"
    assert names(folder.path / "samples") == [
        "step_000010",
        "step_000010/000.png",
        "step_000010/001.png",
        "step_000010/prompts.json",
    ]
    assert json.loads((samples / "prompts.json").read_text()) == [
        {"file": "000.png", "prompt": "a"},
        {"file": "001.png", "prompt": "b", "scores": {"x": None}},
    ]
    for number, image in enumerate(images):
        with Image.open(samples / f"{number:03d}.png") as picture:
            assert np.array_equal(np.asarray(picture), image.permute(1, 2, 0).numpy())


def test_samples_are_written_once_and_whole(folder):
    """A resumed run leaves the pictures that are there; a failure on the way leaves none."""
    black, white = torch.zeros(3, 2, 2, dtype=torch.uint8), torch.full((3, 2, 2), 255, dtype=torch.uint8)
    folder.save_samples(0, [black], [{}])
    first = (folder.path / "samples" / "step_000000" / "000.png").read_bytes()
    folder.save_samples(0, [white], [{}])
    assert (folder.path / "samples" / "step_000000" / "000.png").read_bytes() == first
    with pytest.raises(ValueError, match="shorter"):
        folder.save_samples(1, [white, white], [{}])
    assert [path.name for path in (folder.path / "samples").iterdir()] == ["step_000000"]


def test_environment_says_what_the_numbers_depend_on():
    """Versions, device, processes, threads and rewards; all of it is JSON."""
    found = environment([{"name": "shapes", "weight": 1.0}], 2, CPU)
    assert json.loads(json.dumps(found)) == found
    assert found["device"] == "cpu"
    assert (found["processes"], found["threads"]) == (2, torch.get_num_threads())
    assert found["versions"].keys() == set(PACKAGES)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["rewards"] == [{"name": "shapes", "weight": 1.0}]


def test_a_package_that_is_missing_has_no_version(monkeypatch):
    """A run is not stopped by what it does not use."""
    monkeypatch.setattr("flowrl.run.PACKAGES", ("torch", "a-package-that-nobody-has"))
    wanted = {"torch": metadata.version("torch"), "a-package-that-nobody-has": None}
    assert environment([], 1, CPU)["versions"] == wanted


def test_environment_tells_no_secret(tmp_path, monkeypatch):
    """A folder that is shared holds no environment variable, no name of a user or a machine, and no path."""
    for variable in ("HF_TOKEN", "WANDB_API_KEY", "USER", "LOGNAME", "HOME", "HOSTNAME"):
        monkeypatch.setenv(variable, f"mark-of-{variable}")
    monkeypatch.setattr(platform, "_uname_cache", None)  # what platform remembers of this machine
    monkeypatch.setattr(platform, "_platform_cache", {})
    monkeypatch.setattr(socket, "gethostname", lambda: "mark-of-the-machine")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "mark-of-the-machine", "6.1", "#1", "x86_64")))
    monkeypatch.chdir(tmp_path)
    text = json.dumps(environment([], 1, CPU))
    assert "mark-of" not in text
    assert str(tmp_path) not in text


def _git(*arguments):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, *arguments], check=True, capture_output=True)


def test_commit_is_that_of_the_current_folder(tmp_path, monkeypatch):
    """The whole hash, marked when a file differs from it; None where there is no checkout, no commit, or no git."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment([], 1, CPU)["commit"] is None
    _git("init")
    assert environment([], 1, CPU)["commit"] is None
    file = tmp_path / "recipe.yaml"
    file.write_text("seed: 0\n")
    _git("add", "recipe.yaml")
    _git("commit", "--message", "a recipe")
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert len(head) == 40
    assert environment([], 1, CPU)["commit"] == head
    file.write_text("seed: 1\n")
    assert environment([], 1, CPU)["commit"] == f"{head}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment([], 1, CPU)["commit"] is None


def test_a_git_that_hangs_does_not_stop_a_run(monkeypatch):
    """The commit is a remark; no run waits for it."""

    def hang(command, *, timeout, **settings):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert environment([], 1, CPU)["commit"] is None
