"""flowrl.parallel: with one process everything is the identity; two gloo processes end with the same values."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from flowrl import parallel

from . import runs


def _use(rank):
    """What process ``rank`` hands in, and what it gets back."""
    gathered = parallel.gather({2 - rank: "c" if rank == 0 else "b", 4 * rank: "a" if rank == 0 else "e"})
    shapes = (2, 2), (3,), (1,)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[0].grad = torch.full((2, 2), 1.0 + rank)
    if rank == 1:
        parameters[1].grad = torch.tensor([1.0, 2.0, 3.0])
    parallel.sum_gradients(parameters)
    averages = parallel.Averages()
    if rank == 0:
        averages.add({"loss": torch.tensor([1.0, 2.0, 3.0]), "ratio/max_deviation": torch.tensor(0.5)}, 3)
    else:
        averages.add({"loss": torch.tensor(10.0), "ratio/max_deviation": torch.tensor(0.25)}, 1)
        averages.add({"only/here": torch.tensor([4.0, 6.0])}, 2)
    return {
        "world": [parallel.rank(), parallel.world_size()],
        "gathered": list(gathered.items()),
        "gradients": [parameter.grad.tolist() for parameter in parameters],
        "averages": averages.over_processes(),
    }


def _use_in_process(folder):
    """For a process of its own: `_use`, among others; the results go to a file."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    (folder / f"{rank}.json").write_text(json.dumps(_use(rank)))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes got."""
    folder = tmp_path_factory.mktemp("pair")
    runs.together(_use_in_process, folder, log=folder / "log")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_know_who_they_are(pair):
    """The ranks are 0 and 1 of 2."""
    assert [found["world"] for found in pair] == [[0, 2], [1, 2]]


def test_two_processes_gather_the_union_in_order(pair):
    """Whoever had it, everyone has it, by index."""
    wanted = [[0, "a"], [1, "b"], [2, "c"], [4, "e"]]
    assert [found["gathered"] for found in pair] == [wanted, wanted]


def test_two_processes_sum_gradients(pair):
    """Gradients add up, each in its own shape; one that a process does not have counts as 0."""
    # 1 + 2;  none + (1, 2, 3);  none + none.
    wanted = [[[3.0, 3.0], [3.0, 3.0]], [1.0, 2.0, 3.0], [0.0]]
    assert [found["gradients"] for found in pair] == [wanted, wanted]


def test_two_processes_average_over_all_samples(pair):
    """Every sample counts the same, whichever process had it; the largest deviation is the largest of all."""
    # loss: (3 * 2 + 1 * 10) / 4 = 4.   only/here: (4 + 6) / 2 = 5.   max_deviation: max(0.5, 0.25).
    wanted = {"loss": 4.0, "ratio/max_deviation": 0.5, "only/here": 5.0}
    assert [found["averages"] for found in pair] == [wanted, wanted]


def test_one_process_is_the_identity():
    """Without a process group there is one process, of rank 0, and nothing is exchanged."""
    found = _use(0)
    assert found["world"] == [0, 1]
    assert found["gathered"] == [(0, "a"), (2, "c")]
    assert found["gradients"] == [[[1.0, 1.0], [1.0, 1.0]], [0.0, 0.0, 0.0], [0.0]]
    assert found["averages"] == {"loss": 2.0, "ratio/max_deviation": 0.5}


def test_gather_hands_out_a_new_dictionary():
    """What the caller does with the result does not reach what it handed in."""
    mine = {1: "b", 0: "a"}
    gathered = parallel.gather(mine)
    assert list(gathered.items()) == [(0, "a"), (1, "b")]
    gathered.clear()
    assert mine == {1: "b", 0: "a"}


def test_averages_weigh_by_samples():
    """A mean over a micro-batch counts as often as it has samples, whether it comes as `[B]` or as one number."""
    averages = parallel.Averages()
    averages.add({"loss": torch.tensor([1.0, 3.0])}, 2)
    averages.add({"loss": torch.tensor(5.0)}, 6)
    # (2 * 2 + 6 * 5) / 8.
    assert averages.over_processes() == {"loss": 4.25}


def test_averages_do_not_lose_small_addends():
    """Sums are double: ten thousand float32 values of 1 + 1e-7 do not add up to rounding errors."""
    averages = parallel.Averages()
    value = torch.tensor(1 + 2**-23)  # the float32 after 1
    for _ in range(10_000):
        averages.add({"ratio/mean": value}, 1)
    assert averages.over_processes()["ratio/mean"] == pytest.approx(1 + 2**-23, rel=0, abs=1e-12)


@pytest.mark.parametrize(("values", "largest"), [((0.1, 0.7, 0.3), 0.7), ((-0.5, -0.2), -0.2), ((0.0,), 0.0)])
def test_max_deviation_keeps_its_maximum(values, largest):
    """However many samples the values stand for, and also below 0."""
    averages = parallel.Averages()
    for number, value in enumerate(values):
        averages.add({"ratio/max_deviation": torch.tensor(value, dtype=torch.float64)}, 1 + 7 * number)
    assert averages.over_processes() == {"ratio/max_deviation": largest}


def test_averages_of_nothing_are_empty():
    """A name that nobody added is not there."""
    assert parallel.Averages().over_processes() == {}


def test_gradients_are_zero_where_none_came():
    """An optimizer that skips a parameter on one process and moves it on another would part their weights."""
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float64))
    parallel.sum_gradients([parameter])
    assert torch.equal(parameter.grad, torch.zeros(2, dtype=torch.float64))
