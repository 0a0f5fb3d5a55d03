"""The exactness of a whole run: resume, kills, processes, micro-batches, and rewards in trouble."""

from __future__ import annotations

import json
import math
import os
import random
from functools import cache

import pytest
import torch

from flowrl.errors import RunStopped

from . import runs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory):
    """The folder of a run of four steps that nothing disturbed, by its objective."""
    folder = tmp_path_factory.mktemp("unbroken")

    @cache
    def run(name):
        runs.run_watched(runs.recipe(model, folder / name, f"objective.name={name}"))
        return folder / name

    return run


@pytest.fixture(scope="module")
def calm(model, tmp_path_factory):
    """The trace of a step in which every sample was scored."""
    trainer = runs.watched(runs.recipe(model, tmp_path_factory.mktemp("calm") / "run"))
    trainer.step()
    return trainer.trace


@runs.each_objective
def test_stop_and_resume_is_bit_equal(objective, model, unbroken, tmp_path):
    """Four steps are two steps, a stop, and two more: weights, copies, EMA, optimizer, metrics and pictures."""
    name = f"objective.name={objective}"
    runs.train(runs.recipe(model, tmp_path / "run", name, "max_steps=2"))
    runs.train(runs.recipe(model, tmp_path / "run", name), resume=True)
    runs.assert_same_run(tmp_path / "run", unbroken(objective))


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_sigkill_leaves_a_folder_that_resumes(count, model, unbroken, tmp_path):
    """Killed before a random operation on a file of the run, it resumes and ends as if nothing had happened."""
    log = tmp_path / "log"
    operations = json.loads(runs.trace_file(unbroken("grpo")).read_text())["operations"]
    assert operations > 50
    for number, moment in enumerate(random.Random(count).sample(range(operations), count)):
        config = runs.recipe(model, tmp_path / f"run{number}", "objective.name=grpo")
        assert _run_elsewhere(config, False, moment, log=log) == -9, log.read_text()
        assert _run_elsewhere(config, True, log=log) == 0, log.read_text()
        runs.assert_same_run(config.output, unbroken("grpo"))


def _run_elsewhere(*arguments, log):
    process = runs.start(runs.run_watched, *arguments, log=log)
    process.join(timeout=120)
    return process.exitcode


@pytest.mark.parametrize(("updates", "size"), [(1, 2), (2, 3)])
@runs.each_objective
def test_micro_batches_change_nothing(objective, updates, size, model, tmp_path):
    """The 8 samples in one micro-batch or in several: the same noise, and only rounding differs, after three steps."""
    settings = (*_named(objective), "max_steps=3", "eval.every=0", f"updates_per_step={updates}")
    whole = runs.recipe(model, tmp_path / "whole", *settings, "micro_batch_size=8")
    cut = runs.recipe(model, tmp_path / "cut", *settings, f"micro_batch_size={size}")
    for config in (whole, cut):
        runs.run_watched(config)
    _assert_same_but_for_rounding([cut], whole)


@runs.each_objective
def test_two_processes_are_one(objective, model, tmp_path):
    """Equal ranks, and only rounding differs from one process, after three steps."""
    # Micro-batches of 3, 3 and 2 samples, of ranks 0, 1 and 0; updates of 2 samples each, of ranks 0, both, 1 and 0.
    settings = (*_named(objective), "max_steps=3", "micro_batch_size=3", "updates_per_step=4")
    one, two = runs.recipe(model, tmp_path / "one", *settings), runs.recipe(model, tmp_path / "two", *settings)
    runs.run_watched(one)
    runs.together(runs.run_watched, two, log=tmp_path / "log")
    ranks = [_trace(two, rank) for rank in range(2)]
    assert ranks[0]["sums"] == ranks[1]["sums"]
    _assert_same_but_for_rounding([two, two], one)


def _named(objective):
    """The objective, with a clip range of which no ratio is within rounding: GRPO-Guard's own is 2e-6."""
    wide = ["objective.clip_range=0.001"] if objective == "grpo_guard" else []
    return [f"objective.name={objective}", *wide]


def _trace(config, rank=0):
    return json.loads(runs.trace_file(config.output, rank).read_text())


def _assert_same_but_for_rounding(found, wanted):
    """The configs of a run's processes, and of another run: samples, scores, advantages, metrics and parameters."""
    expected, traces = _trace(wanted), [_trace(config, rank) for rank, config in enumerate(found)]
    assert sorted(s for trace in traces for s in _samples(trace)) == sorted(_samples(expected))
    for trace in traces:
        torch.testing.assert_close(torch.tensor(trace["scores"]), torch.tensor(expected["scores"]), rtol=0, atol=5e-6)
        # Scores of a group differ by 1e-3 or so, and that is what a rounding of 1e-7 is divided by.
        torch.testing.assert_close(
            torch.tensor(trace["advantages"]), torch.tensor(expected["advantages"]), rtol=0, atol=2e-3
        )
    for row, other in zip(runs.metrics(found[0].output), runs.metrics(wanted.output), strict=True):
        for values in (row, other):  # a micro-batch that two updates share runs in both, so the cost may differ
            values.pop("denoiser_calls", None)
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5)
    ours, theirs = runs.state(found[0].output), runs.state(wanted.output)
    names = [name for name in theirs if "weights.safetensors:parameters/" in name]
    assert names
    for name in names:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)


def _samples(trace):
    return [(prompt, seed) for prompts, seeds in trace["samples"] for prompt, seed in zip(prompts, seeds, strict=True)]


@pytest.mark.parametrize("trouble", ["nan", "none", "infinity", "exception"])
def test_a_reward_in_trouble_costs_one_sample(trouble, calm, model, tmp_path):
    """One sample is left out and counted; the others' advantages are those of the group without it."""
    scores = calm.scores[0][0]
    bad = scores[1][0]
    flaky = {runs.reward("flaky"): {"weight": 1.0, "trouble": trouble, "bad": bad}}
    troubled = runs.watched(runs.recipe(model, tmp_path / trouble, "max_steps=1", rewards=flaky))
    metrics = troubled.step()
    assert metrics["advantage/nan_samples"] == 1
    assert metrics[f"reward/{runs.reward('flaky')}/failures"] == 1
    advantages = troubled.trace.advantages[0]
    assert advantages[0][1] == 0
    # The other three by hand: (s - mean) / (std + 1e-4), population std.
    rest = [score[0] for number, score in enumerate(scores) if number != 1]
    mean = sum(rest) / 3
    std = math.sqrt(sum((score - mean) ** 2 for score in rest) / 3)
    wanted = [(score - mean) / (std + 1e-4) for score in rest]
    found = [advantage for number, advantage in enumerate(advantages[0]) if number != 1]
    assert found == pytest.approx(wanted, rel=1e-3)
    assert advantages[1] == pytest.approx(calm.advantages[0][1])


def test_a_reward_of_the_wrong_length_stops_the_run_by_name(calm, model, tmp_path):
    """There is no way to tell which sample a missing score belongs to."""
    flaky = {runs.reward("flaky"): {"weight": 1.0, "trouble": "length", "bad": calm.scores[0][0][1][0]}}
    with pytest.raises(RunStopped, match=r"flaky.*wanted 4 numbers"):
        runs.watched(runs.recipe(model, tmp_path / "run", rewards=flaky)).step()


def _stopped(config):
    """For a process of its own: a run that stops itself; the others lose their connection to it."""
    with pytest.raises(RuntimeError) as caught:
        runs.train(config)
    config.output.with_name(f"error{os.environ['RANK']}").write_text(type(caught.value).__name__)


def test_the_process_that_stops_leaves_the_diagnosis(calm, model, tmp_path):
    """If only the second of two processes finds out what is wrong, the folder says so all the same."""
    # Micro-batch 1, of rank 1, is the second group.
    flaky = {runs.reward("flaky"): {"weight": 1.0, "trouble": "length", "bad": calm.scores[0][1][0][0]}}
    config = runs.recipe(model, tmp_path / "run", rewards=flaky)
    runs.together(_stopped, config, log=tmp_path / "log")
    assert (tmp_path / "error1").read_text() == "RunStopped"
    assert (tmp_path / "error0").read_text() != "RunStopped"
    stop = json.loads((config.output / "stopped.json").read_text())
    assert stop["step"] == 0
    assert "wanted 4 numbers" in stop["reason"]


def test_constant_rewards_stop_the_run(model, tmp_path):
    """Three steps in which no group has a spread end the run with a diagnosis, which stays in its folder."""
    config = runs.recipe(model, tmp_path / "run", rewards={runs.reward("constant"): 1.0})
    with pytest.raises(RunStopped, match=r"no learning signal for 3 steps.*all scores were equal"):
        runs.train(config)
    stop = json.loads((config.output / "stopped.json").read_text())
    assert stop["step"] == 2
    assert "flowrl doctor" in stop["reason"]


def test_a_silent_reward_stops_the_run(model, tmp_path):
    """A reward that can score nothing is named."""
    with pytest.raises(RunStopped, match=r"silent.*could score none of 8 samples"):
        runs.watched(runs.recipe(model, tmp_path / "run", rewards={runs.reward("silent"): 1.0})).step()


def test_a_zero_gradient_stops_the_run(model, tmp_path, monkeypatch):
    """Three steps with a gradient of exactly 0 end the run, though the scores differ."""
    trainer = runs.watched(runs.recipe(model, tmp_path / "run"))
    loss = trainer.objective.loss
    monkeypatch.setattr(
        trainer.objective, "loss", lambda *arguments: loss(*arguments)._replace(loss=loss(*arguments).loss * 0)
    )
    trainer.step()
    trainer.step()
    with pytest.raises(RunStopped, match="the gradient was exactly 0"):
        trainer.step()


def test_a_gradient_that_is_not_finite_changes_no_weight(model, tmp_path, monkeypatch):
    """The run stops before the optimizer's step."""
    trainer = runs.watched(runs.recipe(model, tmp_path / "run"))
    loss = trainer.objective.loss
    monkeypatch.setattr(
        trainer.objective, "loss", lambda *arguments: loss(*arguments)._replace(loss=loss(*arguments).loss * math.inf)
    )
    before = [parameter.detach().clone() for parameter in trainer.parameters]
    with pytest.raises(RunStopped, match="gradient of step 1 is not finite"):
        trainer.step()
    assert all(torch.equal(parameter, kept) for parameter, kept in zip(trainer.parameters, before, strict=True))


def test_a_ratio_other_than_one_stops_the_run(model, tmp_path, monkeypatch):
    """Weights that change between rollout and training stop the run, with the deviation, the step and the causes."""
    trainer = runs.watched(runs.recipe(model, tmp_path / "run"))
    pieces = trainer.objective.pieces

    def tampered(*arguments):
        with torch.no_grad():
            for parameter in trainer.parameters:
                parameter.add_(0.3)
        return pieces(*arguments)

    monkeypatch.setattr(trainer.objective, "pieces", tampered)
    with pytest.raises(RunStopped, match=r"ratio is not 1.*largest \|log ratio\| .* at step \d.*Likely causes"):
        trainer.step()


@runs.each_objective
def test_every_lora_tensor_moves_and_the_reference_does_not(objective, model, tmp_path):
    """After two steps every adapter tensor has changed; the base model's output has not."""
    trainer = runs.watched(runs.recipe(model, tmp_path / "run", f"objective.name={objective}"))
    policy = trainer.policy
    before = {name: parameter.detach().clone() for name, parameter in policy.parameters.items()}
    rollout = policy.rollout(["a red circle"], seeds=[0], steps=4, train_steps=())
    with torch.no_grad(), policy.reference():
        base = policy.predict(rollout, rollout.latents, 0.5)
    trainer.step()
    trainer.step()
    assert [name for name, parameter in policy.parameters.items() if torch.equal(parameter, before[name])] == []
    with torch.no_grad(), policy.reference():
        assert torch.equal(policy.predict(rollout, rollout.latents, 0.5), base)
    with torch.no_grad():
        assert not torch.equal(policy.predict(rollout, rollout.latents, 0.5), base)


@runs.each_objective
def test_runs_in_bfloat16(objective, model, tmp_path):
    """Two steps on a bfloat16 base leave float32 adapters that have moved."""
    trainer = runs.watched(runs.recipe(model, tmp_path / "run", f"objective.name={objective}", "model.dtype=bfloat16"))
    metrics = [trainer.step(), trainer.step()]
    assert all(row["grad_norm"] > 0 for row in metrics)
    assert {parameter.dtype for parameter in trainer.parameters} == {torch.float32}
    assert trainer.policy.dtype == torch.bfloat16
