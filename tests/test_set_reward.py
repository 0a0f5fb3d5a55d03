"""Set rewards: features by sample, scores by group or step, and what goes wrong costs as little as it can."""

import math

import pytest
import torch

from flowrl.errors import RunStopped, UserError
from flowrl.reward import RewardBatch, RewardSet, Unscored
from flowrl.set_reward import Members, SetReward, combine, observe, sets_of

from .test_scoring import batch_of


class Centred(SetReward):
    """Brightness less its mean over the set."""

    def __init__(self, scope="group"):
        self.scope = scope

    def features(self, batch):
        return batch.images.mean(dim=(1, 2, 3))[:, None]

    def combine(self, members):
        return (members.features - members.features.mean())[:, 0]


class Picky(Centred):
    """Raises at a picture that is quite white."""

    def features(self, batch):
        if bool((batch.images.flatten(1).mean(dim=1) > 0.99).any()):
            raise ZeroDivisionError("too white")
        return super().features(batch)


def members_of(*values, groups=None) -> Members:
    """One feature for each value."""
    groups = torch.zeros(len(values), dtype=torch.int64) if groups is None else torch.tensor(groups)
    return Members(torch.tensor(values)[:, None], groups, ["a"] * len(values), [{} for _ in values])


def test_groups_are_found_wherever_their_samples_lie():
    """A group's samples need not stand side by side; a step is one set."""
    members = members_of(0.0, 1.0, 2.0, 3.0, groups=[7, 3, 7, 3])
    assert sets_of(Centred(), members) == [[0, 2], [1, 3]]
    assert sets_of(Centred("step"), members) == [[0, 1, 2, 3]]


def test_called_with_a_batch_it_takes_that_for_all():
    """Groups (0, 0.5) and (1): means 0.25 and 1. As one step: mean 0.5."""
    batch = batch_of(0.0, 0.5, 1.0)
    batch = RewardBatch(batch.images, batch.prompts, batch.metadata, groups=torch.tensor([0, 0, 1]))
    assert Centred()(batch).tolist() == [-0.25, 0.25, 0.0]
    assert Centred("step")(batch).tolist() == [-0.5, 0.0, 0.5]
    found = RewardSet(("c",), (Centred("step"),), torch.ones(1)).score(batch)
    assert found.raw[:, 0].tolist() == [-0.5, 0.0, 0.5]


def test_a_picture_that_is_not_finite_is_left_out_of_the_set():
    """The mean is that of the other two: 0.5."""
    batch = batch_of(0.25, math.nan, 0.75)
    seen = observe("c", Centred(), batch)
    assert seen.usable.tolist() == [True, False, True]
    assert seen.trouble == "the picture is not finite"
    with pytest.raises(Unscored, match="not finite") as stopped:
        Centred()(batch)
    assert torch.equal(stopped.value.scores.isnan(), torch.tensor([False, True, False]))
    assert stopped.value.scores[::2].tolist() == [-0.25, 0.25]


def test_features_that_are_not_finite_cost_one_sample():
    """As a picture would."""

    class Holes(Centred):
        def features(self, batch):
            found = super().features(batch)
            return torch.where(found == 0.5, math.inf, found)

    seen = observe("h", Holes(), batch_of(0.25, 0.5, 0.75))
    assert seen.usable.tolist() == [True, False, True]
    assert seen.members.features.tolist() == [[0.25], [0.75]]
    assert seen.trouble == "its features are not finite"


def test_a_sample_that_raises_is_left_out_alone():
    """The others are asked one by one; where all raise, the run stops, but for one sample alone."""
    seen = observe("p", Picky(), batch_of(0.25, 1.0, 0.75))
    assert seen.usable.tolist() == [True, False, True]
    assert "ZeroDivisionError: too white" in seen.trouble
    with pytest.raises(RunStopped, match=r"'p' raised on each of 2 samples: ZeroDivisionError"):
        observe("p", Picky(), batch_of(1.0, 1.0))
    assert observe("p", Picky(), batch_of(1.0)).members is None


@pytest.mark.parametrize("wrong", [None, torch.zeros(3), torch.zeros(2, 1)])
def test_features_of_another_shape_stop_the_run(wrong):
    """Wanted `[3, ...]`, with something after the first axis."""

    class Wrong(Centred):
        def features(self, batch):
            return wrong

    with pytest.raises(RunStopped, match=r"wanted a tensor \[3, \.\.\.\], one row a sample"):
        observe("w", Wrong(), batch_of(0.0, 0.5, 1.0))


def test_what_combine_raises_is_held_against_its_set():
    """NaN with the place that raised; a wrong length or a message for the run goes through."""

    class Broken(Centred):
        def combine(self, members):
            return {1: torch.zeros(9), 2: 1 / 0}[len(members)] if len(members) == 2 else torch.zeros(9)

    scores, trouble = combine("b", Broken(), members_of(0.0, 1.0))
    assert scores.isnan().all()
    assert trouble.startswith("ZeroDivisionError: division by zero (")
    with pytest.raises(RunStopped, match="wanted 3 numbers"):
        combine("b", Broken(), members_of(0.0, 0.5, 1.0))


def test_frames_of_a_video_are_no_group():
    """A reward that compares pictures refuses videos, both alone and in a set."""
    videos = RewardBatch(torch.zeros(2, 3, 3, 8, 8), ["a", "b"], [{}, {}])
    with pytest.raises(UserError, match="compares pictures of a group with each other, and the pipeline draws videos"):
        observe("c", Centred(), videos)
    with pytest.raises(UserError, match="the pipeline draws videos"):
        RewardSet(("c",), (Centred(),), torch.ones(1)).score(videos)
