"""Tests of `flowrl.launch`: `accelerate launch --num_processes 2` is two processes, without an accelerator too."""

import json
import os
import subprocess
import sys

import pytest

from flowrl.config import to_yaml
from flowrl.errors import UserError
from flowrl.launch import processes_for_cores, processes_missing, run_together

from . import runs

ALONE = {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}


@pytest.mark.parametrize(
    ("environment", "command", "wanted"),
    [
        ({}, ["accelerate", "launch", "--num_processes", "2"], 0),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, ["accelerate", "launch", "--num_processes", "1"], 0),
        ({**ALONE, "RANK": "0", "WORLD_SIZE": "2"}, ["torchrun"], 0),
        (ALONE, ["python", "accelerate", "launch", "--num_processes", "4", "-m", "flowrl"], 4),
        (ALONE, ["accelerate", "launch", "--num-processes=3", "-m", "flowrl"], 3),
    ],
)
def test_processes_missing(environment, command, wanted):
    """Several were asked for and one was started: the address of a process group is there, and no rank in it."""
    assert processes_missing(environment, command) == wanted


def test_a_number_that_nobody_can_read():
    """A configuration file may ask for several processes: that is not ignored in silence."""
    with pytest.raises(UserError, match="--num_processes 2"):
        processes_missing(ALONE, ["accelerate", "launch", "-m", "flowrl"])


def test_the_exit_code_is_that_of_the_processes(tmp_path, monkeypatch, capfd):
    """A process that fails is no success of the command, and each says what it found."""
    monkeypatch.setattr(sys, "argv", ["flowrl", "train", str(tmp_path / "missing.yaml")])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit) as stopped:
        run_together(2)
    assert stopped.value.code == 2
    said = capfd.readouterr().err
    assert "no recipe at" in said
    assert "Traceback" not in said


def test_one_process_a_core(monkeypatch):
    """As many as there is work for, and one where a launcher or an accelerator decides."""
    monkeypatch.setattr("flowrl.launch._cores", lambda: 4)
    assert [processes_for_cores(limit) for limit in (0, 3, 9)] == [1, 3, 4]
    monkeypatch.setenv("RANK", "0")
    assert processes_for_cores(9) == 1


def test_accelerate_launch_with_two_processes(tmp_path):
    """The command of the README, word for word, on whatever this machine has."""
    model = runs.save_model(tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(to_yaml(runs.recipe(model, tmp_path / "run", "max_steps=1")), encoding="utf-8")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "-m", "flowrl"]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    command = [*launch, "train", str(config), "trackers=[]"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
