"""Tests of the benchmark: what it measures and what it writes, on a tiny run; never times."""

import json
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch

from flowrl import bench
from flowrl.errors import UserError
from flowrl.reward import RewardBatch

from . import runs

# Latents of the tiny pipeline: 4 samples x 4 channels x 8 x 8 float32. Of the schedule's 4 steps the last one ends on
# clean data and has no noise, so 3 are recorded; between and around them lie 4 latents.
LATENTS, LOG_PROBS = 4 * 4 * 8 * 8 * 4, 4 * 4
KEPT = 4 * LATENTS + 3 * LOG_PROBS


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model."""
    return runs.save_model(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def tiny_bench(model, tmp_path):
    """A benchmark of a tiny run."""
    return bench.Bench(runs.recipe(model, tmp_path / "run"), repeats=1)


def test_main_measures_prints_and_writes(model, tmp_path, capsys):
    """Every measure that was asked for is in the table and, with recipe and environment, in the file."""
    recipe = runs.recipe(model, tmp_path / "run")
    measures = bench.main(["rollout", "replay", "storage", "throughput"], recipe, repeats=1, json=tmp_path / "n.json")
    assert [(measure.topic, measure.unit, measure.bound) for measure in measures] == [
        ("rollout", "x", 1.05),
        ("rollout", "s", None),
        ("rollout", "s", None),
        ("replay", "x", 1.10),
        ("replay", "s", None),
        ("replay", "s", None),
        ("storage", "x", 1.0),
        ("storage", "bytes", None),
        *[("throughput", "s", None), ("throughput", "pictures/s", None)] * 4,
        ("throughput", "steps/s", None),
    ]
    assert all(0 < measure.low <= measure.median <= measure.high for measure in measures)
    written = json.loads((tmp_path / "n.json").read_text())
    assert written["recipe"]["policy"]["steps"] == 4
    assert written["environment"]["versions"]["torch"] == version("torch")
    assert [row["median"] for row in written["measures"]] == [measure.median for measure in measures]
    shown = capsys.readouterr().out
    assert "rollout / plain call" in shown
    assert "micro-batch 4" in " ".join(shown.split())  # the title wraps where the folder has a long name
    assert not (tmp_path / "run").exists()


def test_storage_is_exact(tiny_bench):
    """Recorded transitions keep exactly the bytes of their latents, each once, and of their log-probabilities."""
    ratio, each = bench.storage(tiny_bench)
    assert (ratio.low, ratio.high) == (1.0, 1.0)
    assert each.median == KEPT / 3


def test_own_bytes_of_a_window(tiny_bench, model, tmp_path):
    """Steps 0 and 2 have no latents in common: four of them again, and two log-probabilities."""
    window = bench.Bench(runs.recipe(model, tmp_path / "run", "policy.train_steps=[0,2]"))
    assert bench.own_bytes(window.rollout()) == 4 * LATENTS + 2 * LOG_PROBS
    assert bench.own_bytes(tiny_bench.rollout()) == KEPT


def test_storage_finds_a_hidden_copy(tiny_bench, monkeypatch):
    """A log-probability that is a view of a larger tensor keeps all of it, and the ratio says so."""
    rollout = tiny_bench.rollout()
    for transition in rollout.transitions.values():
        object.__setattr__(transition, "log_prob", torch.zeros(LATENTS)[:4])  # LATENTS numbers of 4 bytes each
    monkeypatch.setattr(tiny_bench, "recorded", lambda: rollout)
    assert bench.storage(tiny_bench)[0].median == (4 * LATENTS + 3 * 4 * LATENTS) / KEPT


def test_bare_denoiser_gets_the_inputs_of_the_replay(tiny_bench):
    """The denoiser alone, with the arguments that were listened for, gives the replay's model output bit for bit."""
    rollout = tiny_bench.recorded()
    with torch.no_grad():
        calls = bench.denoiser_calls(tiny_bench.policy, lambda: tiny_bench.policy.replay(rollout, 1))
        ((module, args, kwargs),) = calls
        output = module(*args, **kwargs)[0]
        assert torch.equal(output, tiny_bench.policy.replay(rollout, 1).model_output)
    assert len(calls) == 1  # nobody listens any more


def test_each_repetition_has_new_prompts(tiny_bench):
    """Repetitions walk through the run's five prompts, four at a time."""
    prompts = runs.PROMPTS
    assert tiny_bench.prompts(0) == list(prompts[:4])
    assert tiny_bench.prompts(1) == [prompts[4], *prompts[:3]]


def test_startup_reads_what_the_processes_say(tiny_bench, monkeypatch):
    """The import's seconds are those that the new process printed; the bounds are the promised ones."""
    monkeypatch.setattr(bench, "IMPORT", "print(0.25)")
    imported, shown = bench.startup(tiny_bench)
    assert (imported.median, imported.bound) == (0.25, 0.3)
    assert (shown.name, shown.bound) == ("flowrl --help", 1.0)


def test_throughput_goes_on_without_a_signal(tiny_bench, monkeypatch):
    """A model that scores nothing, which stops a training, is measured all the same."""
    tiny_bench.repeats = 12  # five steps with the warm-up; a training stops after three
    step = tiny_bench.trainer.step

    def idle():
        metrics = step()
        tiny_bench.trainer.counters.idle += 1
        assert tiny_bench.trainer.counters.idle == 1
        return metrics

    monkeypatch.setattr(tiny_bench.trainer, "step", idle)
    assert [measure.name for measure in bench.throughput(tiny_bench)][-1] == "whole steps"


def test_overlap_compares_a_waiting_judge_with_none(tiny_bench, monkeypatch):
    """Steps without and with a wait take turns; the wait of all parts together is the rollout just before."""
    waits, steps = [], []

    class Fake:
        counters = SimpleNamespace(idle=2)

        def __init__(self, config, rewards):
            self.config, (self.judge,) = config, rewards.rewards

        def step(self):
            steps.append(self.judge.seconds)
            assert self.config.micro_batch_size == 1  # 8 pictures are no 16 parts
            return {"seconds/rollout": 4.0, "seconds/score": 0.5 if self.judge.seconds else 0.0}

    monkeypatch.setattr(tiny_bench, "trainer_of", Fake)
    ratio, alone, both = bench.overlap(tiny_bench)
    assert steps == [0.0, 4.0 / 8] * 2  # a warm-up, and one repetition
    assert (ratio.median, ratio.bound) == (4.5 / 4.0, 1.15)
    assert (alone.median, both.median) == (4.0, 4.5)
    monkeypatch.setattr(bench.time, "sleep", waits.append)
    judge = bench.Waiting()
    judge.seconds = 0.25
    assert judge(RewardBatch(torch.full((1, 3, 4, 4), 0.5), ["a"], [{}])).tolist() == [0.5]
    assert waits == [0.25]


def test_replay_needs_transitions(model, tmp_path):
    """A recipe with a deterministic kernel is told what to add."""
    quiet = bench.Bench(runs.recipe(model, tmp_path / "run", "policy.kernel=ode", "objective=nft"), repeats=1)
    with pytest.raises(UserError, match=r"'ode' is deterministic .* policy\.kernel=flow_sde"):
        bench.replay_overhead(quiet)


@pytest.mark.parametrize(
    ("what", "repeats", "message"),
    [(["rolout"], 1, "no measurement 'rolout'. Did you mean 'rollout'"), ([], 0, "repeats is 0; wanted at least 1")],
)
def test_mistakes_are_named(what, repeats, message):
    """Unknown measurements and no repetition at all are refused before anything loads."""
    with pytest.raises(UserError, match=message):
        bench.main(what, repeats=repeats)


def test_bundled_recipe_is_the_default():
    """Without a recipe the bundled GRPO run is measured, which records transitions."""
    assert bench.bundled_recipe(["policy.steps=5"]).policy.steps == 5
    assert bench.bundled_recipe().objective.name == "grpo"
