"""The reward contract, and what becomes of the failures of rewards."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from flowrl import advantages
from flowrl.data import PromptRow
from flowrl.errors import RunStopped, UserError
from flowrl.reward import FunctionReward, Reward, RewardBatch, RewardSet, Unscored, read_scores


def batch_of(values) -> RewardBatch:
    """One 4 x 4 picture of a plain grey for each value; its prompt is its number."""
    images = torch.tensor(values, dtype=torch.float32)[:, None, None, None].expand(-1, 3, 4, 4).clone()
    return RewardBatch(images, [str(index) for index in range(len(values))], [{"index": i} for i in range(len(values))])


def brightness(images, prompts, metadata):
    """The plain function of the issue: one number a picture."""
    return images.mean(dim=(1, 2, 3))


def set_of(**functions) -> RewardSet:
    """A set of plain functions, each of weight 1."""
    rewards = tuple(FunctionReward(function, name=name) for name, function in functions.items())
    return RewardSet(tuple(functions), rewards, torch.ones(len(rewards)))


def answers(*values):
    """A reward that gives sample ``i`` the answer ``values[i]``; an exception class is raised instead."""

    def reward(images, prompts, metadata):
        given = [values[row["index"]] for row in metadata]
        for value in given:
            if isinstance(value, type):
                raise value("cannot read it")
        return given

    return reward


class Distance(Reward):
    """A reward class with options, of which less is better."""

    higher_is_better = False
    range = (0.0, math.inf)
    needs = frozenset({"target"})
    license = "MIT"
    source = "procedural"

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def __call__(self, batch: RewardBatch) -> torch.Tensor:
        targets = torch.tensor([row["target"] for row in batch.metadata])
        return (batch.images.mean(dim=(1, 2, 3)) - targets).abs() ** self.power


def test_batch_selects_everything_alike():
    """A selection takes the same rows of every field."""
    batch = RewardBatch(
        batch_of([0.1, 0.2, 0.3]).images,
        ["a", "b", "c"],
        [{"n": 0}, {"n": 1}, {"n": 2}],
        groups=torch.tensor([0, 0, 1]),
        latents=torch.tensor([[1.0], [2.0], [3.0]]),
    )
    part = batch.select([2, 0])
    assert len(part) == 2
    assert (part.prompts, part.metadata) == (["c", "a"], [{"n": 2}, {"n": 0}])
    assert part.groups.tolist() == [1, 0]
    assert part.latents.tolist() == [[3.0], [1.0]]
    assert torch.equal(part.images, batch.images[[2, 0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"images": torch.zeros(2, 4, 4, 3)},
            r"wanted float32 \[B, 3, H, W\] or \[B, F, 3, H, W\], got torch.float32 \[2, 4, 4, 3\]",
        ),
        ({"images": torch.zeros(2, 5, 4, 4, 3)}, r"got torch.float32 \[2, 5, 4, 4, 3\]"),
        ({"images": torch.zeros(2, 3, 4, 4).half()}, r"got torch.float16 \[2, 3, 4, 4\]"),
        ({"images": torch.full((2, 3, 4, 4), -1.0)}, r"wanted values in \[0, 1\], got -1 to -1"),
        ({"prompts": ["a"]}, "prompts: wanted 2, one a picture, got 1"),
        ({"groups": torch.zeros(3)}, "groups: wanted 2, one a picture, got 3"),
    ],
)
def test_batch_refuses_what_no_reward_expects(change, message):
    """Layout, dtype, range and lengths are checked where a batch is made."""
    fields = {"images": torch.zeros(2, 3, 4, 4), "prompts": ["a", "b"], "metadata": [{}, {}]}
    with pytest.raises(ValueError, match=message):
        RewardBatch(**{**fields, **change})


@pytest.mark.parametrize(
    "values",
    [
        [0.5, None, 2],
        (0.5, float("nan"), 2.0),
        [0.5, float("inf"), 2],
        [np.float64(0.5), "high", np.int64(2)],
        [torch.tensor(0.5), torch.zeros(2), torch.tensor([2])],
        np.array([0.5, np.nan, 2.0]),
        np.array([0.5, None, 2.0], dtype=object),
        torch.tensor([0.5, -math.inf, 2.0], dtype=torch.float64, requires_grad=True),
        torch.tensor([0.5, 1e300, 2.0], dtype=torch.float64),
    ],
)
def test_scores_of_any_sequence(values):
    """Tensors, arrays, lists and tuples are read; the middle sample, which is no finite number, is NaN."""
    scores = read_scores(values, 3, "mine")
    assert scores.dtype == torch.float32
    assert not scores.requires_grad
    assert scores[[0, 2]].tolist() == [0.5, 2.0]
    assert scores[1].isnan()


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (0.5, "a float"),
        (None, "a NoneType"),
        ({"score": 1, "a": 2, "b": 3}, "a dict"),
        ([1, 2], r"shape \[2\]"),
        ([], r"shape \[0\]"),
        (torch.zeros(3, 1), r"shape \[3, 1\]"),
        (torch.tensor(1.0), r"shape \[\]"),
    ],
)
def test_wrong_length_stops_with_the_name(values, got):
    """What is not one number a sample cannot be matched to the samples: the run stops, and names the reward."""
    with pytest.raises(RunStopped, match=f"reward 'mine': wanted 3 numbers, one a picture, got {got}"):
        read_scores(values, 3, "mine")


def test_function_gets_its_own_copies():
    """A function that writes into its arguments changes nothing for the next reward."""

    def vandal(images, prompts, metadata):
        images.zero_()
        prompts.clear()
        metadata[0]["index"] = 7
        return [1.0, 1.0]

    batch = batch_of([0.25, 0.75])
    scores = set_of(vandal=vandal, brightness=brightness).score(batch)
    assert scores.raw.tolist() == [[1.0, 0.25], [1.0, 0.75]]
    assert batch.metadata == [{"index": 0}, {"index": 1}]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (None, "it returned None or a number that is not finite"),
        (math.nan, "it returned None or a number that is not finite"),
        (math.inf, "it returned None or a number that is not finite"),
        (ValueError, "ValueError: cannot read it"),
        (MemoryError, "MemoryError: cannot read it"),
    ],
)
def test_a_failure_hits_its_sample_only(bad, error):
    """None, NaN, infinity and an exception make one score NaN, are counted, and leave all others as they were."""
    rewards = set_of(mine=answers(0.0, bad, 2.0, 3.0), brightness=brightness)
    scores = rewards.score(batch_of([0.0, 0.25, 0.5, 1.0]))
    assert scores.raw[[0, 2, 3]].tolist() == [[0.0, 0.0], [2.0, 0.5], [3.0, 1.0]]
    assert scores.raw[1, 0].isnan()
    assert scores.raw[1, 1] == 0.25
    assert scores.failures == {"mine": 1, "brightness": 0}
    assert list(scores.errors) == ["mine"]
    assert scores.errors["mine"].startswith(error)


def test_an_error_says_where_it_was_raised():
    """The recorded error has file and line of the user's code."""
    scores = set_of(mine=answers(0.0, ValueError)).score(batch_of([0.0, 0.0]))
    assert "test_reward.py:" in scores.errors["mine"]


@pytest.mark.parametrize("bad", [None, math.nan, -math.inf, KeyError])
def test_a_failure_never_moves_the_advantages_of_others(bad):
    """The other seven advantages of a group equal those of the group without the sample that failed."""
    good = [0.1, 0.9, 0.4, 0.4, 0.8, 0.2, 0.5]
    with_bad = set_of(mine=answers(*good[:3], bad, *good[3:]), brightness=brightness).score(batch_of([0.5] * 8))
    without = set_of(mine=answers(*good), brightness=brightness).score(batch_of([0.5] * 7))
    weights = torch.ones(2)
    got, diagnostics = advantages.group(with_bad.raw[None], weights)
    wanted, _ = advantages.group(without.raw[None], weights)
    assert torch.equal(got[0, [0, 1, 2, 4, 5, 6, 7]], wanted[0])
    assert got[0, 3] == 0
    assert diagnostics["nan_samples"] == 1


def test_an_exception_on_every_sample_stops_with_name_and_cause():
    """A reward that is broken altogether stops the run; its own exception is the cause."""
    with pytest.raises(RunStopped, match="reward 'mine' raised on each of 2 samples: KeyError: ") as caught:
        set_of(brightness=brightness, mine=answers(KeyError, KeyError)).score(batch_of([0.0, 1.0]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_one_sample_alone_is_counted():
    """A batch of one that raises is NaN: micro-batches of one must not stop a run that larger ones do not."""
    calls = []

    def mine(images, prompts, metadata):
        calls.append(prompts)
        raise ValueError("no")

    scores = set_of(mine=mine).score(batch_of([0.0]))
    assert scores.raw.isnan().all()
    assert scores.failures == {"mine": 1}
    assert len(calls) == 1


def test_an_exception_of_the_batch_alone_is_told():
    """If each sample alone can be scored, nothing is lost, but the detour is reported."""

    def one_at_a_time(images, prompts, metadata):
        if len(prompts) > 1:
            raise NotImplementedError("one picture at a time")
        return [float(prompts[0])]

    scores = set_of(mine=one_at_a_time).score(batch_of([0.0, 0.0, 0.0]))
    assert scores.raw[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert scores.failures == {"mine": 0}
    assert scores.errors["mine"].startswith("no sample alone, but a batch of them: NotImplementedError: one picture")


def test_a_wrong_length_stops_also_when_scored_one_by_one():
    """The detour after an exception does not hide a wrong length."""

    def mine(images, prompts, metadata):
        if "1" in prompts:
            raise ValueError("no")
        return [0.0, 0.0]

    with pytest.raises(RunStopped, match=r"reward 'mine': wanted 1 numbers, one a picture, got shape \[2\]"):
        set_of(mine=mine).score(batch_of([0.0, 0.0, 0.0]))


@pytest.mark.parametrize("stop", [RunStopped, UserError, KeyboardInterrupt])
def test_a_reward_may_stop_the_run(stop):
    """What is meant for the run, or for the person at the keyboard, passes through."""
    with pytest.raises(stop):
        set_of(mine=answers(0.0, stop)).score(batch_of([0.0, 0.0]))


def test_pictures_that_are_not_finite_are_not_shown_to_rewards():
    """A NaN picture is NaN in every reward without a call; the others are scored as ever."""
    batch = batch_of([0.25, 0.5, 0.75])
    batch.images[1, 0, 0, 0] = math.nan
    seen = []

    def mine(images, prompts, metadata):
        seen.extend(prompts)
        return images.mean(dim=(1, 2, 3))

    scores = set_of(mine=mine).score(batch)
    assert seen == ["0", "2"]
    assert scores.raw[[0, 2], 0].tolist() == [0.25, 0.75]
    assert scores.raw[1].isnan().all()
    assert scores.errors == {"mine": "the picture is not finite"}


def test_a_batch_without_any_finite_picture():
    """If no picture is finite, no reward is called and every score is NaN."""
    scores = set_of(mine=answers(RuntimeError)).score(batch_of([math.nan, math.inf]))
    assert scores.raw.isnan().all()
    assert scores.failures == {"mine": 2}


def test_a_reward_that_scores_nothing_stops_the_step():
    """None for every sample of a step is a broken reward, unless its weight is 0."""
    rewards = RewardSet(("mine",), (FunctionReward(answers(None, None), name="mine"),), torch.ones(1))
    scores = rewards.score(batch_of([0.0, 0.0]))
    with pytest.raises(RunStopped, match="reward 'mine' could score none of 2 samples: it returned None"):
        rewards.require_alive(scores)
    RewardSet(rewards.names, rewards.rewards, torch.zeros(1)).require_alive(scores)
    set_of(mine=answers(None, 1.0)).require_alive(set_of(mine=answers(None, 1.0)).score(batch_of([0.0, 0.0])))


def test_gradients_are_off_while_scoring():
    """Scoring keeps no graph, so a reward of weights costs no activations."""
    batch = batch_of([0.5])
    batch.images.requires_grad_()
    seen = []

    def mine(images, prompts, metadata):
        seen.append((images * 2).requires_grad)
        return [0.0]

    set_of(mine=mine).score(batch)
    assert seen == [False]


def test_combine_flips_what_is_better_low():
    """Oriented scores are better when larger; NaN stays NaN."""
    rewards = RewardSet(("d", "b"), (Distance(), FunctionReward(brightness)), torch.ones(2))
    oriented = rewards.combine(torch.tensor([[[1.0, 2.0], [math.nan, 3.0]]]))
    assert oriented[0, 0].tolist() == [-1.0, 2.0]
    assert oriented[0, 1, 0].isnan()


@pytest.fixture
def my_rewards(tmp_path, monkeypatch):
    """A user's folder with a file of rewards, which is also a module."""
    source = """
from flowrl.reward import Reward

def brightness(images, prompts, metadata, scale=1.0):
    return [scale * float(image.mean()) for image in images]

def length(images, prompts, metadata):
    return [len(prompt) for prompt in prompts]

class Constant(Reward):
    def __init__(self, value):
        self.value = value

    def __call__(self, batch):
        return batch.images.new_full((len(batch),), self.value)

made = Constant(4.0)

class NoReward:
    pass

def short(images):
    return [0.0]
"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "my_rewards.py").write_text(source)
    yield
    sys.modules.pop("my_rewards", None)


def test_several_rewards_of_all_forms(my_rewards):
    """Built-in names, files, modules, classes and objects stand side by side in a config."""
    rewards = RewardSet.from_config(
        {
            "jpeg": 1.0,
            "my_rewards.py:brightness": {"weight": 0.5, "scale": 2.0},
            "my_rewards:length": -1,
            "my_rewards.py:Constant": {"value": 3.0},
            "my_rewards.py:made": 0,
        }
    )
    scores = rewards.score(batch_of([0.25, 0.75]))
    assert rewards.weights.tolist() == [1.0, 0.5, -1.0, 1.0, 0.0]
    assert scores.raw[:, 1:].tolist() == [[0.5, 1.0, 3.0, 4.0], [1.5, 1.0, 3.0, 4.0]]
    assert scores.failures == dict.fromkeys(rewards.names, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "rewards: wanted at least one"),
        ({"shaeps": 1.0}, "unknown reward 'shaeps'. Did you mean 'shapes'"),
        ({"jpeg": "much"}, "rewards.jpeg: weight: wanted a finite number such as 1.0, got 'much'"),
        ({"jpeg": True}, "rewards.jpeg: weight: wanted a finite number such as 1.0, got True"),
        ({"jpeg": math.nan}, "rewards.jpeg: weight: wanted a finite number"),
        ({"jpeg": {"qualty": 90}}, "reward 'jpeg': unknown option 'qualty'. Did you mean 'quality'"),
        ({"my_rewards.py:brightness": {"scal": 1}}, "unknown option 'scal'. Did you mean 'scale'"),
        ({"my_rewards.py:Constant": 1.0}, "missing a required argument: 'value'"),
        ({"my_rewards.py:made": {"value": 1}}, "it is an object, made already"),
        ({"my_rewards.py:NoReward": 1.0}, r"wanted a function f\(images, prompts, metadata\) or a subclass"),
        ({"my_rewards.py:short": 1.0}, r"short\(images\): too many positional arguments"),
    ],
)
def test_mistakes_in_a_config_are_named(my_rewards, config, message):
    """A wrong name, weight, option, kind or signature is a UserError before anything is scored."""
    with pytest.raises(UserError, match=message):
        RewardSet.from_config(config)


def test_missing_metadata_is_found_before_the_run():
    """A reward that needs a key which a row lacks names file, line and key."""
    rows = [PromptRow(0, "a", {"target": 0.5}, "p.jsonl:1"), PromptRow(1, "b", {"targt": 0.5}, "p.jsonl:2")]
    rewards = RewardSet(("d",), (Distance(),), torch.ones(1))
    rewards.check(rows[:1])
    with pytest.raises(UserError, match=r"p\.jsonl:2: metadata\.target: missing; the reward 'Distance' .*targt"):
        rewards.check(rows)


def test_description_is_plain_json():
    """What goes into ``environment.json`` is strict JSON, with None for an open end of a range."""
    rewards = RewardSet(("distance",), (Distance(),), torch.tensor([0.5]))
    (record,) = json.loads(json.dumps(rewards.describe(), allow_nan=False))
    assert record == {
        "name": "distance",
        "weight": 0.5,
        "media": "image",
        "higher_is_better": False,
        "range": [0.0, None],
        "needs": ["target"],
        "differentiable": False,
        "license": "MIT",
        "source": "procedural",
    }


@pytest.mark.parametrize("name", ["jpeg", "jpeg_incompressibility", "shapes", "shapes_partial"])
def test_every_built_in_reward_keeps_the_contract(name):
    """Batch equals singles, order does not matter, scores lie in the range, and good examples beat bad ones."""
    (reward,) = RewardSet.from_config({name: 1.0}).rewards
    good, bad = reward.examples()
    batch = RewardBatch(torch.cat([good.images, bad.images]), good.prompts + bad.prompts, good.metadata + bad.metadata)
    scores = reward(batch)
    order = torch.randperm(len(batch)).tolist()
    assert scores.shape == (len(batch),)
    assert torch.equal(scores, torch.cat([reward(batch.select([index])) for index in range(len(batch))]))
    assert torch.equal(scores[order], reward(batch.select(order)))
    assert reward.range[0] <= scores.min() <= scores.max() <= reward.range[1]
    assert reward.higher_is_better
    assert scores[: len(good)].min() > scores[len(good) :].max()
    assert reward.license
    assert reward.source
    assert reward.name == name


def test_reward_for_images_scores_every_frame_of_a_video():
    """The score of a video is the mean over its frames; a frame that cannot be scored makes it NaN."""
    clips = torch.tensor([[0.1, 0.3], [0.5, 0.7]]).view(2, 2, 1, 1, 1).expand(2, 2, 3, 4, 4)
    batch = RewardBatch(clips.contiguous(), ["a", "b"], [{"n": 0}, {"n": 1}])

    def brightness(images, prompts, metadata):
        assert images.shape == (4, 3, 4, 4)
        assert (prompts, metadata) == (["a", "a", "b", "b"], [{"n": 0}, {"n": 0}, {"n": 1}, {"n": 1}])
        means = images.mean(dim=(1, 2, 3))
        return torch.where(means > 0.6, math.nan, means)

    scores = set_of(brightness=brightness).score(batch)
    assert scores.raw[0].item() == pytest.approx(0.2)
    assert scores.raw[1].isnan().all()


def test_frames_that_raise_are_held_against_their_video_alone():
    """However many frames raise, they are one sample; a batch of one video that fails does not stop the run."""
    clips = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1, 1).expand(2, 3, 3, 4, 4).contiguous()
    batch = RewardBatch(clips, ["a", "b"], [{}, {}])

    def picky(images, prompts, metadata):
        if images.min() == 0:
            raise ValueError("too dark")
        return images.mean(dim=(1, 2, 3))

    rewards = set_of(picky=picky)
    assert rewards.score(batch).raw[:, 0].isnan().tolist() == [True, False]
    assert rewards.score(batch.select([0])).raw.isnan().all()


def test_function_of_videos_gets_them_whole():
    """The name of a function's first argument says what it wants."""

    def change(videos, prompts, metadata):
        return (videos[:, 1:] - videos[:, :-1]).abs().mean(dim=(1, 2, 3, 4))

    clips = torch.tensor([0.0, 0.5, 0.5]).view(1, 3, 1, 1, 1).expand(1, 3, 3, 4, 4).contiguous()
    rewards = set_of(change=change)
    assert rewards.rewards[0].media == "video"
    assert rewards.score(RewardBatch(clips, ["a"], [{}])).raw.item() == pytest.approx(0.25)
    with pytest.raises(UserError, match=r"reward 'change' scores videos, and the pipeline draws single pictures"):
        rewards.score(RewardBatch(clips[:, 0], ["a"], [{}]))


@pytest.mark.parametrize("scores", [None, torch.tensor([1.0, math.nan])])
def test_a_reward_says_why_it_cannot_score(scores):
    """It is asked once, what it could score stays, and its reason is the one that is recorded."""
    calls = []

    def judge(images, prompts, metadata):
        calls.append(len(images))
        raise Unscored("no face in it", scores)

    found = set_of(judge=judge).score(batch_of([0.5, 0.5]))
    wanted = torch.tensor([[math.nan if scores is None else 1.0], [math.nan]])
    torch.testing.assert_close(found.raw, wanted, equal_nan=True)
    assert (calls, found.errors) == ([2], {"judge": "no face in it"})
    assert found.failures == {"judge": 2 if scores is None else 1}


def test_reasons_of_frames():
    """Of two clips of two frames, the one with a frame that could not be scored is NaN, for the frame's reason."""

    def judge(images, prompts, metadata):
        raise Unscored("no face in it", torch.tensor([1.0, 3.0, 5.0, math.nan]))

    clips = RewardBatch(torch.rand(2, 2, 3, 4, 4), ["a", "b"], [{}, {}])
    found = set_of(judge=judge).score(clips)
    torch.testing.assert_close(found.raw, torch.tensor([[2.0], [math.nan]]), equal_nan=True)
    assert found.errors == {"judge": "no face in it"}
