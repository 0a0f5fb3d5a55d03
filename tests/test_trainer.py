"""flowrl.trainer: the loop's parts, one by one; ``test_run_exactness.py`` has whole runs."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch

from flowrl import trainer
from flowrl.errors import RunStopped
from flowrl.objectives import Objective, Terms

from . import runs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def made(model, tmp_path):
    """Makes a trainer of a tiny run from dotted changes; a step is two groups of four samples."""

    def make(*overrides, **settings):
        return runs.watched(runs.recipe(model, tmp_path / "run", *overrides, **settings))

    return make


def test_the_learning_rate_reaches_the_optimizer(made):
    """Each step sets the rate of its number."""
    run = made("learning_rate=0.01", "warmup_steps=2", "learning_rate_half_life=2")
    rates = []
    for _ in range(3):
        run.step()
        rates.append(run.optimizer.param_groups[0]["lr"])
    # Half of the warm-up; one of two steps of the half-life gone; a whole half-life gone.
    assert rates == pytest.approx([0.005, 0.01 * 0.5**0.5, 0.005])


DEAD = {"advantage/dead_groups": 2.0, "grad_norm": 1.0, "reward/mean": 0.5}
STILL = {"advantage/dead_groups": 1.0, "grad_norm": 0.0, "reward/mean": 0.5}
GOOD = {"advantage/dead_groups": 1.0, "grad_norm": 1e-30, "reward/mean": 0.5}


def test_three_idle_steps_stop_a_run(made):
    """A dead step or one without a gradient is idle; the third in a row stops the run, two and a good one do not."""
    run = made()
    for metrics in (DEAD, STILL, GOOD, STILL, DEAD):
        run._watch(metrics)
    assert run.counters.idle == 2
    run._watch(GOOD)
    assert run.counters.idle == 0
    run._watch(DEAD)
    run._watch(STILL)
    with pytest.raises(RunStopped, match=r"3 steps in a row: in every group all scores were equal.*Mean reward 0.5\."):
        run._watch(DEAD)


def test_idle_steps_before_a_resume_count(model, tmp_path):
    """A run that stops and resumes is as patient as one that does not."""
    constant = {runs.reward("constant"): 1.0}
    runs.train(runs.recipe(model, tmp_path / "run", "max_steps=2", rewards=constant))
    with pytest.raises(RunStopped, match="no learning signal for 3 steps"):
        runs.train(runs.recipe(model, tmp_path / "run", "max_steps=3", rewards=constant), resume=True)
    assert [row["step"] for row in runs.metrics(tmp_path / "run")] == [0, 1, 2]


def test_a_stop_leaves_a_diagnosis_and_a_report(model, tmp_path):
    """Whoever opens the folder finds out why the run ended, and what there was until then."""
    config = runs.recipe(model, tmp_path / "run", "eval.every=0", rewards={runs.reward("constant"): 1.0})
    with pytest.raises(RunStopped) as caught:
        trainer.train(config)
    reason = str(caught.value)
    assert json.loads((config.output / "stopped.json").read_text()) == {"step": 2, "reason": reason}
    assert "no learning signal for 3 steps in a row" in (config.output / "report.html").read_text()


def test_a_stop_before_the_run_has_begun_leaves_nothing(made, tmp_path):
    """Where there is no run's folder, none is made for the diagnosis."""
    made().note_stop("too early")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("decay", [0.5, None])
def test_an_evaluation_uses_the_averaged_weights(decay, made, monkeypatch):
    """Where a moving average is kept, it is evaluated, and training goes on from the current weights."""
    run = made(f"ema_decay={'null' if decay is None else decay}", "learning_rate=0.01")
    run.step()
    current = [parameter.detach().clone() for parameter in run.parameters]
    seen = []
    evaluate = trainer.evaluate

    def watched(policy, *arguments):
        seen.extend(parameter.detach().clone() for parameter in policy.parameters.values())
        return evaluate(policy, *arguments)

    monkeypatch.setattr(trainer, "evaluate", watched)
    metrics = run._evaluate()
    assert f"eval/{runs.reward('brightness')}/mean" in metrics
    wanted = current if decay is None else list(run.copies["ema"].tensors.values())
    assert all(torch.equal(found, tensor) for found, tensor in zip(seen, wanted, strict=True))
    assert all(torch.equal(p, tensor) for p, tensor in zip(run.parameters, current, strict=True))
    assert ("ema" in run.copies) == (decay is not None)
    assert any(not torch.equal(found, tensor) for found, tensor in zip(seen, current, strict=True)) == (
        decay is not None
    )


class Linear(Objective):
    """A loss whose gradient is the advantage: ``A`` times the sum of the first parameter, in two pieces of one weight.

    The metric ``seen`` is the advantage too.
    """

    transitions = False

    def __init__(self):
        self.on_policy = []

    def pieces(self, policy, rollout, seeds):
        return [0.5, 1.5]

    def loss(self, policy, rollout, piece, work):
        self.on_policy.append(work.on_policy)
        first = next(iter(policy.parameters.values()))
        return Terms(piece * work.advantages * first.sum(), {"seen": work.advantages})


def linear(made, *overrides):
    """A trainer with the `Linear` objective, and the list of the gradients that its optimizer will take."""
    run = made(*overrides)
    run.objective, taken = Linear(), []
    step = run.optimizer.step

    def listened():
        taken.append([parameter.grad.detach().clone() for parameter in run.parameters])
        return step()

    run.optimizer.step = listened
    return run, taken


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize(("updates", "bounds"), [(1, [0, 8]), (2, [0, 4, 8]), (3, [0, 2, 5, 8]), (20, range(9))])
def test_every_update_takes_the_mean_of_its_share(updates, bounds, size, made):
    """The gradient of each update is the mean over its own samples and all pieces, wherever micro-batches are cut."""
    run, taken = linear(made, f"updates_per_step={updates}", f"micro_batch_size={size}", "max_grad_norm=1000")
    metrics = run.step()
    advantages = torch.tensor(run.trace.advantages[0]).flatten()
    means = [float(advantages[low:high].mean()) for low, high in pairwise(bounds)]
    assert len(taken) == len(means)
    for (first, *others), mean in zip(taken, means, strict=True):
        # The pieces weigh 0.5 and 1.5, so their mean is 1.
        torch.testing.assert_close(first, torch.full_like(first, mean), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in others)
    assert metrics["seen"] == pytest.approx(float(advantages.mean()), abs=1e-6)
    norms = [abs(mean) * run.parameters[0].numel() ** 0.5 for mean in means]
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4, abs=1e-5)


def test_only_the_first_update_is_on_policy(made):
    """After an update the weights are no longer those of the rollout."""
    run, _ = linear(made, "updates_per_step=2", "micro_batch_size=4")
    run.step()
    assert run.objective.on_policy == [True, True, False, False]


@pytest.mark.parametrize("limit", [1000.0, 5.0])
def test_max_grad_norm_caps_the_gradient(limit, made):
    """A gradient over the limit is scaled down to it, one under it is left alone; the metric is the norm before."""
    run, taken = linear(made, "updates_per_step=8", f"max_grad_norm={limit}")
    run.objective.pieces = lambda *arguments: [1.0]
    metrics = run.step()
    # An update a sample, with a gradient of A in each of n elements: its norm is |A| sqrt(n).
    advantages = torch.tensor(run.trace.advantages[0]).flatten()
    before = (advantages.abs() * run.parameters[0].numel() ** 0.5).tolist()
    assert min(before) < 5
    assert 5 < max(before) < 1000
    norms = [math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients)) for gradients in taken]
    assert norms == pytest.approx([min(norm, limit) for norm in before], rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(sum(before) / 8, rel=1e-4)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing(value, made):
    """Neither the weights nor the optimizer's moments take it, and the step does not count."""
    run, taken = linear(made)
    run.objective.pieces = lambda *arguments: [value]
    before = [parameter.detach().clone() for parameter in run.parameters]
    with pytest.raises(RunStopped, match="gradient of step 1 is not finite"):
        run.step()
    assert all(torch.equal(parameter, kept) for parameter, kept in zip(run.parameters, before, strict=True))
    assert taken == []
    assert not run.optimizer.state
    assert run.counters.step == 0


def test_copies_follow_by_their_decays(made):
    """After a step an averaged copy whose decay is one half lies half way between the old weights and the new."""
    run = made("ema_decay=0.5", "learning_rate=0.01")
    start = [parameter.detach().clone() for parameter in run.parameters]
    run.step()
    for name, before, parameter in zip(run.policy.parameters, start, run.parameters, strict=True):
        torch.testing.assert_close(run.copies["ema"].tensors[name], (before + parameter.detach()) / 2)


def test_the_behaviour_policy_samples_the_rollouts(made, monkeypatch):
    """Rollouts come from the copy that the objective names, and the update from the current weights."""
    run = made("objective.name=nft")
    for tensor in run.copies["old"].tensors.values():
        tensor.fill_(0.125)
    current = [parameter.detach().clone() for parameter in run.parameters]
    seen = []
    rollout = run.policy.rollout

    def listened(*arguments, **call):
        seen.append({float(parameter.detach().mean()) for parameter in run.parameters})
        return rollout(*arguments, **call)

    monkeypatch.setattr(run.policy, "rollout", listened)
    batches = run._plan(0)
    run._rollouts(0, batches)
    assert seen == [{0.125}] * len(batches)
    assert all(torch.equal(parameter, kept) for parameter, kept in zip(run.parameters, current, strict=True))


def test_denoiser_calls_by_hand(made):
    """Every sample that the denoiser processes counts: the rollout's steps, and the objective's model calls."""
    grpo = made("objective.name=grpo", "policy.train_steps=[0, 1]")
    # 8 samples in 4 steps, and 2 replays of each.
    assert [grpo.step()["denoiser_calls"] for _ in range(2)] == [8 * (4 + 2), 2 * 8 * (4 + 2)]


def test_denoiser_calls_of_nft_by_hand(made):
    """The old policy's model call is spared for as long as its weights are the current ones."""
    nft = made("objective.name=nft", "objective.times=2", "objective.decay_slope=0.5")
    # A rollout of 4 steps; at each of 2 noise levels the policy and the reference. The old policy equals the current
    # one at steps 0 and 1 (its decay after step 0 is 0), and lags behind at step 2: one more call at each level.
    totals = [nft.step()["denoiser_calls"] for _ in range(3)]
    assert totals == [64, 128, 128 + 8 * (4 + 2 * 3)]


def test_evaluations_and_checkpoints_come_when_they_are_due(model, tmp_path):
    """At the start, every so many steps, and at the end; the newest checkpoints stay."""
    settings = ("max_steps=5", "eval.every=2", "checkpoint_every=2", "keep_checkpoints=2")
    run = runs.train(runs.recipe(model, tmp_path / "run", *settings))
    rows = runs.metrics(run)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["step"] for row in rows if "eval/diversity" in row] == [0, 2, 4, 5]
    assert sorted(path.name for path in (run / "samples").iterdir()) == [f"step_{step:06d}" for step in (0, 2, 4, 5)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_000004", "step_000005"]
    exports = sorted(str(path.relative_to(run)) for path in run.glob("adapter/**/*.safetensors"))
    assert exports == ["adapter/ema/pytorch_lora_weights.safetensors", "adapter/pytorch_lora_weights.safetensors"]


@pytest.mark.parametrize("objective", ["grpo", "nft"])
def test_advantages_by_step(objective, made):
    """Of two rewards, each decided in one half of the schedule, steps get their own mixture, and train with it."""
    rewards = {runs.reward(name): 1.0 for name in ("brightness", "redness")}
    first, second = rewards
    gains = (
        f"advantage={{name: recast, temperature: 0.01, gains: {{'{first}': [1, 1, 0, 0], '{second}': [0, 0, 1, 1]}}}}"
    )
    run = made(f"objective.name={objective}", "policy.train_steps=[0, 1, 2]", gains, rewards=rewards)
    seen = {}
    loss = run.objective.loss

    def listened(policy, rollout, piece, work):
        for step in range(4):
            seen.setdefault(step, []).append(work.advantages_at(step))
        return loss(policy, rollout, piece, work)

    run.objective.loss = listened
    assert run.step()["grad_norm"] > 0
    scores = torch.tensor(run.trace.scores[0])
    alone = (scores - scores.mean(dim=1, keepdim=True)) / scores.std(dim=1, correction=0, keepdim=True)
    pieces = len(seen[0]) // 2  # of each of the two micro-batches, which are the two groups
    for step, reward in enumerate([0, 0, 1, 1]):
        found = torch.stack(seen[step][::pieces])
        torch.testing.assert_close(found, alone[..., reward], rtol=1e-3, atol=1e-3)
