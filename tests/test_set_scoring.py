"""Set rewards over micro-batches and processes: however a step is cut, its groups get the scores of the whole."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from flowrl.errors import RunStopped
from flowrl.reward import RewardBatch, RewardSet, Unscored
from flowrl.scoring import Scoring, scores_of_step
from flowrl.set_scoring import observe_all, settle, split

from . import runs
from .test_scoring import batch_of, brightness, set_of
from .test_set_reward import Centred, Picky

VALUES, GROUPS = [0.0, 0.5, 0.25, 0.75, 1.0, 0.75], [0, 0, 0, 1, 1, 1]


class Measured(Centred):
    """Has the largest brightness as its number."""

    def measure(self, members):
        return float(members.features.max())


def cut(*sizes) -> dict[int, RewardBatch]:
    """The step of `VALUES` in micro-batches of these sizes."""
    whole = replace(batch_of(*VALUES), groups=torch.tensor(GROUPS))
    parts = torch.arange(len(VALUES)).split(list(sizes))
    return {index: whole.select(rows.tolist()) for index, rows in enumerate(parts)}


def scored(rewards, batches):
    """Raw scores and failures of a step, as the trainer takes them."""
    with Scoring(rewards) as scoring:
        for index, batch in batches.items():
            scoring.begin(index, batch)
        return scores_of_step(rewards, scoring.finish())


@pytest.mark.parametrize("sizes", [(6,), (2, 2, 2), (4, 2), (1, 5)])
def test_micro_batches_change_nothing(sizes):
    """Group means .25 and 2.5/3, step mean 3.25/6; the columns keep the order of the names."""
    rewards = set_of(group=Centred(), plain=brightness, step=Centred("step"))
    raw = scored(rewards, cut(*sizes)).raw
    assert raw[:, 0].tolist() == pytest.approx([-0.25, 0.25, 0.0, -0.25 / 3, 0.5 / 3, -0.25 / 3], abs=1e-6)
    assert raw[:, 1].tolist() == VALUES
    assert raw[:, 2].tolist() == pytest.approx([value - 3.25 / 6 for value in VALUES], abs=1e-6)


def test_features_of_a_reward_that_wants_the_main_thread_are_taken_after_the_rollout():
    """`thread_safe = False` holds for them too."""
    reward = Centred()
    reward.thread_safe = False
    assert scored(set_of(c=reward), cut(3, 3)).raw[:3, 0].tolist() == [-0.25, 0.25, 0.0]


def test_one_that_cannot_be_scored_costs_nobody_else():
    """The white picture of the second group raises: its mean is that of the two others, .75."""
    found = scored(set_of(p=Picky()), cut(2, 4))
    assert found.failures == {"p": 1}
    assert "too white" in found.errors["p"]
    assert found.raw[3:, 0].tolist() == pytest.approx([0.0, math.nan, 0.0], nan_ok=True)


def test_a_set_that_raises_is_nan_and_no_other():
    """The first group raises; what it raised is the reason."""

    class Half(Centred):
        def combine(self, members):
            if members.groups[0] == 0:
                raise Unscored("not this group")
            return super().combine(members)

    found = scored(set_of(h=Half()), cut(6))
    assert found.failures == {"h": 3}
    assert found.errors == {"h": "not this group"}
    assert found.raw[:, 0].isnan().tolist() == [True] * 3 + [False] * 3


def test_a_reward_that_scores_nothing_stops_the_run():
    """As any reward of weight other than 0."""
    rewards = set_of(c=Centred())
    nothing = {0: replace(batch_of(math.nan, math.nan), groups=torch.zeros(2, dtype=torch.int64))}
    with pytest.raises(RunStopped, match="'c' could score none of 2 samples: the picture is not finite"):
        scored(rewards, nothing)


def test_the_number_of_a_set():
    """With the scope group the mean over groups, (0.5 + 1) / 2; of a step the one number; none where none is asked."""
    sets = {"group": Measured(), "step": Measured("step"), "plain": Centred()}
    seen = {index: observe_all(sets, batch) for index, batch in cut(2, 4).items()}
    assert settle(sets, seen, measure=True).numbers == {"group": 0.75, "step": 1.0}
    assert settle(sets, seen).numbers == {}


def test_measure_that_raises_stops_all_processes():
    """It is caught where it happens, or the others would wait."""

    class Wrong(Centred):
        def measure(self, members):
            raise KeyError("no")

    seen = {0: observe_all({"w": Wrong()}, cut(6)[0])}
    with pytest.raises(RunStopped, match="'w': measure raised KeyError"):
        settle({"w": Wrong()}, seen, measure=True)


def test_split_keeps_the_order_and_the_weights():
    """Also where nothing is left."""
    rewards = RewardSet(("a", "b"), (Centred(), *set_of(b=brightness).rewards), torch.tensor([1.0, 2.0]))
    single, sets = split(rewards)
    assert (single.names, single.weights.tolist(), list(sets)) == (("b",), [2.0], ["a"])
    assert split(set_of(c=Centred()))[0].names == ()


def _use_in_process(folder):
    """For a process of its own: scores of its micro-batches, and the error that one process alone meets."""
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    mine = {index: batch for index, batch in cut(2, 2, 1, 1).items() if index % 2 == rank}
    raw = scored(set_of(group=Centred(), step=Centred("step")), mine).raw

    class Stops(Centred):
        def combine(self, members):
            if members.groups[0] == 1:  # the second group, which the second process has
                raise RunStopped("enough")
            return super().combine(members)

    try:
        scored(set_of(s=Stops()), mine)
        stopped = None
    except RunStopped as error:
        stopped = str(error)
    (folder / f"{rank}.json").write_text(json.dumps({"raw": raw.tolist(), "stopped": stopped}))
    dist.destroy_process_group()


def test_two_processes_get_the_scores_of_one(tmp_path):
    """Groups lie across both; what one process raises for the run, both raise."""
    runs.together(_use_in_process, tmp_path, log=tmp_path / "log")
    alone = scored(set_of(group=Centred(), step=Centred("step")), cut(6)).raw.tolist()
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {"raw": alone, "stopped": "enough"}
