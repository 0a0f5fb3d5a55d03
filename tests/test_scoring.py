"""Scoring beside the rollout: it overlaps, changes no number, and hides no failure. Overlap is shown by events."""

import math
import threading

import pytest
import torch

from flowrl.errors import RunStopped, UserError
from flowrl.reward import FunctionReward, Reward, RewardBatch, RewardSet, Scores
from flowrl.scoring import Scoring, merge_scores, score_metrics

from . import runs

WAIT = 20
"""Seconds after which an event that should have come has not."""


def batch_of(*values, side=4) -> RewardBatch:
    """A grey picture for each value."""
    images = torch.tensor(values)[:, None, None, None].expand(-1, 3, side, side).clone()
    return RewardBatch(images, ["a"] * len(values), [{} for _ in values])


def brightness(images, prompts, metadata):
    """The mean of the pixels."""
    return images.mean(dim=(1, 2, 3))


def set_of(**functions) -> RewardSet:
    """A set of functions and rewards, each of weight 1."""
    rewards = tuple(f if isinstance(f, Reward) else FunctionReward(f, name=n) for n, f in functions.items())
    return RewardSet(tuple(functions), rewards, torch.ones(len(rewards)))


class Calls(Reward):
    """Brightness, with a list of the pictures and the threads of each call."""

    def __init__(self, thread_safe=True):
        self.thread_safe = thread_safe
        self.seen: list[tuple[list[float], str]] = []

    def __call__(self, batch):
        scores = batch.images.mean(dim=(1, 2, 3))
        self.seen.append((scores.tolist(), threading.current_thread().name))
        return scores


def test_scoring_goes_on_while_the_main_thread_works():
    """The reward waits for what the main thread does after `begin`: scored in the main thread it would never end."""
    drawn, scored = threading.Event(), threading.Event()

    def waits(images, prompts, metadata):
        assert drawn.wait(WAIT)
        scored.set()
        return brightness(images, prompts, metadata)

    with Scoring(set_of(waits=waits)) as scoring:
        scoring.begin(0, batch_of(0.25))
        drawn.set()  # the next rollout
        assert scored.wait(WAIT)  # before anybody asks for the scores
        assert scoring.finish()[0].raw.tolist() == [[0.25]]


def test_one_at_a_time_and_in_order():
    """Micro-batches meet a reward in the order of the step, in one thread that is not the main one."""
    calls = Calls()
    with Scoring(set_of(calls=calls)) as scoring:
        for index in (0, 2, 4):  # those of rank 0 of two
            scoring.begin(index, batch_of(index / 4))
        assert list(scoring.finish()) == [0, 2, 4]
    values, threads = zip(*calls.seen, strict=True)
    assert list(values) == [[0.0], [0.5], [1.0]]
    assert len(set(threads)) == 1
    assert threads[0].startswith("flowrl-scoring")


def test_the_numbers_are_those_of_scoring_afterwards():
    """Large sums depend on how torch cuts them; a thread cuts them as the main one does. So do failures and errors."""

    def sometimes(images, prompts, metadata):
        return [None if value > 0.5 else float(value) for value in images.mean(dim=(1, 2, 3))]

    rewards = set_of(brightness=brightness, later=Calls(thread_safe=False), sometimes=sometimes)
    noise = torch.rand(6, 3, 257, 129)
    batches = [RewardBatch(noise[part], ["a"] * 3, [{}] * 3) for part in (slice(0, 3), slice(3, 6))]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = [rewards.score(batch) for batch in batches]
        with Scoring(rewards) as scoring:
            for index, batch in enumerate(batches):
                scoring.begin(index, batch)
            found = scoring.finish()
    finally:
        torch.set_num_threads(before)
    for index, scores in enumerate(wanted):
        assert torch.equal(found[index].raw.nan_to_num(-1), scores.raw.nan_to_num(-1))
        assert (found[index].failures, found[index].errors) == (scores.failures, scores.errors)
        assert list(found[index].failures) == ["brightness", "later", "sometimes"]


def test_no_gradients_in_the_thread():
    """Gradient mode belongs to a thread: scores of the worker carry no graph either."""
    batch = batch_of(0.5)
    batch.images.requires_grad_()
    with Scoring(set_of(calls=Calls())) as scoring:
        scoring.begin(0, batch)
        assert not scoring.finish()[0].raw.requires_grad


def test_a_reward_that_is_not_thread_safe_is_called_by_the_main_thread():
    """It comes after the rollout, and its column stays where the config put it."""
    first, second = Calls(thread_safe=False), Calls()
    with Scoring(set_of(first=first, second=second, third=lambda i, p, m: [9.0] * len(i))) as scoring:
        scoring.begin(0, batch_of(0.25, 0.75))
        assert first.seen == []
        scores = scoring.finish()[0]
    assert scores.raw.tolist() == [[0.25, 0.25, 9.0], [0.75, 0.75, 9.0]]
    assert [thread for _, thread in first.seen] == [threading.current_thread().name]
    assert [thread for _, thread in second.seen] != [threading.current_thread().name]


def test_functions_say_whether_they_are_thread_safe():
    """A plain function says it by an attribute."""

    def draws(images, prompts, metadata):
        return torch.rand(len(images))

    assert FunctionReward(draws).thread_safe
    draws.thread_safe = False
    assert not FunctionReward(draws).thread_safe


@pytest.mark.parametrize("error", [RunStopped("broken"), UserError("wrong")])
def test_what_stops_a_run_stops_the_main_thread(error):
    """`finish` raises what the reward raised."""

    def stops(images, prompts, metadata):
        raise error

    with Scoring(set_of(stops=stops)) as scoring:
        scoring.begin(0, batch_of(0.5))
        with pytest.raises(type(error), match=str(error)):
            scoring.finish()


def test_a_broken_run_stops_before_the_last_rollout():
    """`begin` raises what an earlier micro-batch met, so the remaining rollouts are spared."""

    def stops(images, prompts, metadata):
        raise RunStopped("broken at the first")

    with Scoring(set_of(stops=stops)) as scoring:
        scoring.begin(0, batch_of(0.5))
        scoring._begun[0][1].exception(WAIT)
        with pytest.raises(RunStopped, match="broken at the first"):
            scoring.begin(1, batch_of(0.5))


def test_a_failed_rollout_drops_what_was_not_scored_yet():
    """The context ends when the micro-batch at work is done; those in the queue are never scored."""
    begun, end = threading.Event(), threading.Event()
    seen = []

    def slow(images, prompts, metadata):
        seen.append(float(images.mean()))
        begun.set()
        assert end.wait(WAIT)
        return brightness(images, prompts, metadata)

    def fail():
        with Scoring(set_of(slow=slow)) as scoring:
            for value in (0.0, 0.5, 1.0):
                scoring.begin(int(value * 2), batch_of(value))
            assert begun.wait(WAIT)
            threading.Timer(0.05, end.set).start()
            raise ZeroDivisionError("the rollout")

    with pytest.raises(ZeroDivisionError, match="the rollout"):
        fail()
    assert seen == [0.0]


def test_merged_scores_by_hand():
    """Rows stand one below the other, failures add up, and the first error of a reward stays."""
    parts = [
        Scores(torch.tensor([[1.0, 2.0]]), {"a": 0, "b": 0}, {}),
        Scores(torch.tensor([[math.nan, 3.0], [4.0, math.nan]]), {"a": 1, "b": 1}, {"b": "first of b"}),
        Scores(torch.tensor([[math.nan, math.nan]]), {"a": 1, "b": 1}, {"a": "first of a", "b": "second of b"}),
    ]
    merged = merge_scores(parts)
    wanted = torch.tensor([[1.0, 2.0], [math.nan, 3.0], [4.0, math.nan], [math.nan, math.nan]])
    torch.testing.assert_close(merged.raw, wanted, equal_nan=True)
    assert merged.failures == {"a": 2, "b": 2}
    assert merged.errors == {"a": "first of a", "b": "first of b"}


def test_metrics_by_hand():
    """The mean leaves out what was not scored: (1 + 3) / 2."""
    scores = Scores(torch.tensor([[1.0], [math.nan], [3.0]]), {"a": 1}, {})
    assert score_metrics(set_of(a=brightness), scores) == {"reward/a/mean": 2.0, "reward/a/failures": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model."""
    return runs.save_model(tmp_path_factory.mktemp("scoring"))


def test_a_step_scores_while_it_draws(model, tmp_path, monkeypatch):
    """The first micro-batch of a step is scored while the second is drawn, and each picture once."""
    run = runs.watched(runs.recipe(model, tmp_path / "run"))
    scored = threading.Event()
    calls = Calls()

    class Signals(Calls):
        def __call__(self, batch):
            scores = calls(batch)
            scored.set()
            return scores

    monkeypatch.setattr(run, "_checked", runs.replace(run._checked, rewards=set_of(signals=Signals())))
    rollout, drawn = run.policy.rollout, []

    def waits(*arguments, **call):
        if drawn:
            assert scored.wait(WAIT)  # while this rollout has not even begun
        drawn.append(rollout(*arguments, **call))
        return drawn[-1]

    monkeypatch.setattr(run.policy, "rollout", waits)
    metrics = run.step()
    pictures = torch.cat([part.images for part in drawn])
    assert sum(len(values) for values, _ in calls.seen) == len(pictures) == 8
    assert metrics["reward/signals/mean"] == pytest.approx(float(pictures.mean()), abs=1e-6)
    assert {"seconds/rollout", "seconds/score"} <= metrics.keys()


def test_first_rollout_is_the_training_s_own(model, tmp_path):
    """It draws the first micro-batch of the first step, and scores nothing."""
    run = runs.watched(runs.recipe(model, tmp_path / "run"))
    batch, rollout = run.first_rollout()
    run.step()
    assert run.trace.samples[0] == run.trace.samples[1] == [list(rollout.prompts), list(batch.seeds)]
    assert len(run.trace.scores) == 1
