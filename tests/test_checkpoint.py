"""flowrl.checkpoint: whole checkpoints, and none that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowrl.adapters import WeightCopy
from flowrl.checkpoint import Checkpoints, Counters
from flowrl.errors import UserError


def _state(width: int = 2):
    parameters = {"net.weight": nn.Parameter(torch.randn(width, 3)), "net.bias": nn.Parameter(torch.randn(width))}
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.1)
    sum(parameter.square().sum() for parameter in parameters.values()).backward()
    optimizer.step()
    return parameters, {"old": WeightCopy(parameters)}, optimizer


def test_everything_comes_back(tmp_path):
    """Weights, copies, moments and counters are as they were, bit for bit."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    parameters, copies, optimizer = _state()
    checkpoints.save(Counters(step=3, denoiser_calls=70, seconds=1.5, idle=1), parameters, copies, optimizer)
    other, other_copies, other_optimizer = _state()
    counters = checkpoints.load(3, other, other_copies, other_optimizer)
    assert counters == Counters(step=3, denoiser_calls=70, seconds=1.5, idle=1)
    for name, parameter in parameters.items():
        assert torch.equal(other[name], parameter)
        assert torch.equal(other_copies["old"].tensors[name], copies["old"].tensors[name])
        for moment, value in optimizer.state[parameter].items():
            assert torch.equal(other_optimizer.state[other[name]][moment], value)


def test_only_the_newest_stay(tmp_path):
    """Older checkpoints go when a new one is whole; what is unfinished does not count."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    (tmp_path / ".unfinished-step_000009.x").mkdir()
    for step in (1, 2, 3):
        checkpoints.save(Counters(step=step), *_state())
    assert checkpoints.steps() == [2, 3]
    files = {file.name for file in (tmp_path / "step_000003").iterdir()}
    assert files == {"weights.safetensors", "optimizer.safetensors", "state.json"}


def test_another_runs_checkpoint_is_refused(tmp_path):
    """A tensor of another shape is named, and the run's weights stay."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(Counters(step=1), *_state(width=2))
    parameters, copies, optimizer = _state(width=4)
    before = parameters["net.weight"].detach().clone()
    with pytest.raises(UserError, match=r"of another run.*net.bias"):
        checkpoints.load(1, parameters, copies, optimizer)
    assert torch.equal(parameters["net.weight"], before)


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_checkpoint_is_refused(file, damage, tmp_path):
    """A file that is cut off or missing is an error that says what to do."""
    checkpoints = Checkpoints(tmp_path, keep=1)
    state = _state()
    path = checkpoints.save(Counters(step=1), *state) / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"cannot be read.*Remove it to resume from an older one"):
        checkpoints.load(1, *state)
