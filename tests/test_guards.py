"""flowrl.guards: alarms by hand, and runs that raise them, stop at them and keep their best weights."""

from __future__ import annotations

import json
import math

import pytest
from safetensors.torch import load_file

from flowrl import trainer
from flowrl.checkpoint import Counters
from flowrl.config import GuardConfig
from flowrl.errors import UserError
from flowrl.guards import NAMES, Guards, Watch, alarms, check, forget_later, moved
from flowrl.report.alarms import alarms as report_alarms
from flowrl.report.folder import read_run
from flowrl.report.table import first_and_last, table
from flowrl.reward import RewardSet

from . import runs

WATCH = Watch({"trained": 1.0}, {"held": 1.0, "error": -1.0}, samples=100)


def evaluation(trained=0.5, held=0.5, error=0.5, std=0.5, **more):
    """Metrics of an evaluation; a difference of means of 100 pictures has the error sqrt(2 * .25 / 100) = .0707."""
    means = {"trained": trained, "held": held, "error": error}
    found = {f"eval/{name}/mean": value for name, value in means.items()}
    return {**found, **{f"eval/{name}/std": std for name in means}, **more}


@pytest.mark.parametrize(
    ("now", "up"),
    [
        (evaluation(), False),
        (evaluation(trained=0.7), False),
        (evaluation(held=0.3), False),  # nothing was gained, so nothing was cheated
        (evaluation(trained=0.7, held=0.3), True),  # .2 / .0707 = 2.8 standard errors each
        (evaluation(trained=0.7, held=0.37), False),  # 1.8
        (evaluation(trained=0.7, error=0.7), True),  # lower is better
        (evaluation(trained=0.7, error=0.3), False),
        (evaluation(trained=0.7, held=math.nan), False),
    ],
)
def test_held_out_by_hand(now, up):
    """Up if a trained reward is two standard errors better, and one that is held out two worse."""
    found = alarms(GuardConfig(), WATCH, evaluation(), now)
    assert ("held_out" in found) == up
    assert alarms(GuardConfig(held_out=False), WATCH, evaluation(), now) == {}


def test_held_out_names_what_fell():
    """With both means."""
    said = alarms(GuardConfig(), WATCH, evaluation(), evaluation(trained=0.7, held=0.3))["held_out"]
    assert said == "the trained reward rose, and rewards that are held out got worse: held from 0.5 to 0.3"


def test_a_reward_that_does_not_vary():
    """Without spread any move is certain, and none is none."""
    still, up = evaluation(std=0.0), evaluation(trained=0.6, std=0.0)
    assert moved(still, up, "trained", 1.0, 100) == math.inf
    assert moved(still, up, "trained", -1.0, 100) == -math.inf
    assert moved(still, still, "trained", 1.0, 100) == 0


def test_numbers_of_sets_and_samples_without_a_score():
    """A set's number has no spread: a tenth counts. Samples that could not be scored make an error larger."""
    first, near, far = ({"eval/kid/mean": value} for value in (2.0, 2.19, 2.21))
    assert moved(first, near, "kid", -1.0, 100) == 0
    assert moved(first, far, "kid", -1.0, 100) == -math.inf
    before, after = evaluation(), {**evaluation(held=0.3), "eval/unscored": 75.0}
    assert moved(before, after, "held", 1.0, 100) == pytest.approx(-0.2 / (0.5 * 2**0.5 / 5))  # of 25


def test_another_measure_begins_anew():
    """A value of the old measure is no bar for the new one."""
    counters = Counters(best=100.0, best_of="jpeg")
    assert Guards(GuardConfig(best="held"), WATCH).improves(counters, {"eval/held/mean": 0.5})
    assert (counters.best, counters.best_of) == (0.5, "held")


def test_what_was_kept_later_is_forgotten(tmp_path):
    """A run that goes on from an older checkpoint finds its best anew."""
    for step in (10, 20, 30):
        (tmp_path / "best" / f"step_{step:06d}").mkdir(parents=True)
    forget_later(tmp_path, 20)
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["step_000010", "step_000020"]


@pytest.mark.parametrize(
    ("key", "values"),
    # First, the last value that is within the bounds, and one outside, by the defaults.
    [
        ("eval/diversity", (0.5, 0.4, 0.39)),  # 80 %
        ("pixels/saturation", (0.25, 0.3999, 0.4001)),
        ("pixels/saturation", (0.25, 0.1001, 0.0999)),
        ("pixels/dark_share", (0.0, 0.15, 0.16)),
        ("pixels/edge_energy", (0.01, 0.02, 0.021)),
        ("pixels/edge_energy", (0.01, 0.005, 0.0049)),
    ],
)
def test_bounds_by_hand(key, values):
    """Each guard at its bound and just beyond it; null switches it off, and so does an unknown first value."""
    first, inside, outside = ({key: value} for value in values)
    name = key.split("/")[1]
    assert alarms(GuardConfig(), WATCH, first, inside) == {}
    assert list(alarms(GuardConfig(), WATCH, first, outside)) == [name]
    assert alarms(GuardConfig.model_validate({name: None}), WATCH, first, outside) == {}
    assert alarms(GuardConfig(), WATCH, {}, outside) == {}


def test_what_is_held_out():
    """A reward of weight 0 and one that only evaluations have; a negative weight turns what is wanted round."""
    rewards = RewardSet.from_config({"saturation": -1.0, "jpeg": 0.0})
    measured = RewardSet.from_config({"saturation": 1.0, "jpeg": 1.0, "dark_share": 1.0})
    assert Watch.of(rewards, measured, 8) == Watch({"saturation": -1.0}, {"jpeg": 1.0, "dark_share": -1.0}, 8)


def test_alarms_in_a_row():
    """Two in a row stop a run that says so; a good evaluation between them starts the count anew."""
    guards, counters = Guards(GuardConfig(stop_after=2), WATCH), Counters()
    stops = []
    for diversity in (1.0, 0.5, 1.0, 0.5, 0.5, 0.5):
        found, _ = guards.look(counters, {"eval/diversity": diversity})
        assert found == {f"alarm/{name}": float(name == "diversity" and diversity < 0.8) for name in NAMES}
        stops.append(guards.stops(counters))
    assert stops == [False, False, False, False, True, False]
    assert not Guards(GuardConfig(), WATCH).stops(Counters(alarmed=100))


@pytest.mark.parametrize(("measure", "wanted"), [("held", [1, 1, 0, 0, 1]), ("error", [1, 0, 1, 0, 0])])
def test_the_best_is_the_highest_of_what_is_wanted(measure, wanted):
    """Higher or lower, as the reward wants it; the first is the best so far, and unknown values are not."""
    guards, counters = Guards(GuardConfig(best=measure), WATCH), Counters()
    values = [0.5, 0.6, 0.4, math.nan, 0.7]
    found = [guards.improves(counters, {f"eval/{measure}/mean": value}) for value in values]
    assert found == [bool(one) for one in wanted]


def test_a_measure_that_no_evaluation_has():
    """The nearest and all known ones are named."""
    with pytest.raises(UserError, match=r"'jpg' is no reward of the evaluations. Did you mean 'jpeg'\? Known: jpeg."):
        check(GuardConfig(best="jpg"), RewardSet.from_config({"jpeg": 1.0}))
    check(GuardConfig(best="jpeg"), RewardSet.from_config({"jpeg": 1.0}))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random SD3 pipeline."""
    return runs.save_model(tmp_path_factory.mktemp("tiny"))


def recipe(model, output, *overrides):
    """A run that is held to the base model's saturation to the last bit, which it cannot be, and keeps its best."""
    best = runs.reward("brightness")
    guards = f"guards={{saturation: 1.0e-9, held_out: false, diversity: null, stop_after: 2, best: '{best}'}}"
    return runs.recipe(model, output, "max_steps=6", "eval.every=1", "learning_rate=0.05", guards, *overrides)


def test_a_run_that_cheats(model, tmp_path, monkeypatch):
    """A held-out reward that falls while the trained one rises is an alarm in the log and a sentence in the report."""
    trained, held = runs.reward("brightness"), runs.reward("redness")
    measured = trainer.evaluate

    def cheated(policy, *arguments):
        found = measured(policy, *arguments)
        if policy.moved:
            found.metrics[f"eval/{trained}/mean"] += 1
            found.metrics[f"eval/{held}/mean"] -= 1
        policy.moved = True
        return found

    monkeypatch.setattr(trainer, "evaluate", cheated)
    monkeypatch.setattr(trainer.Policy, "moved", False, raising=False)
    folder = runs.train(runs.recipe(model, tmp_path / "run", "max_steps=1", rewards={trained: 1.0, held: 0.0}))
    assert [row["alarm/held_out"] for row in log_of(folder)] == [0.0, 1.0]
    run = read_run(folder)
    assert any("held out at step 1" in line for line in report_alarms(run, table(run, first_and_last(run))))


def log_of(folder):
    """The lines of a run's log."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf8").splitlines()]


def test_a_run_stops_early_and_goes_on_if_asked(model, tmp_path):
    """After two evaluations with an alarm it ends as a run does, with its export; resumed, it does two more."""
    folder = runs.train(recipe(model, tmp_path / "run"))
    log = log_of(folder)
    assert [row["alarm/saturation"] for row in log] == [0.0, 1.0, 1.0]
    assert {"alarm/held_out", "pixels/edge_energy", "pixels/saturation", "pixels/dark_share"} <= set(log[0])
    assert (folder / "adapter" / "pytorch_lora_weights.safetensors").is_file()
    stopped = json.loads((folder / "stopped.json").read_text())
    assert stopped["step"] == 2
    wanted = "2 evaluations in a row with an alarm (guards.stop_after), the last: saturation went from "
    assert stopped["reason"].startswith(wanted)
    runs.train(recipe(model, tmp_path / "run"), resume=True)
    assert [row["step"] for row in log_of(folder)] == [0, 1, 2, 3, 4]
    runs.train(recipe(model, tmp_path / "run", "guards.saturation=null"), resume=True)  # the bound was wrong
    assert [row["step"] for row in log_of(folder)] == [0, 1, 2, 3, 4, 5, 6]


def test_the_best_weights_are_kept_as_they_were_evaluated(model, tmp_path):
    """``best/`` holds the averaged weights of the best evaluation; a run in two parts leaves the same."""
    whole = runs.train(recipe(model, tmp_path / "whole", "guards.stop_after=null", "max_steps=4"))
    log = log_of(whole)
    values = {int(row["step"]): row[f"eval/{runs.reward('brightness')}/mean"] for row in log}
    step = max(values, key=values.__getitem__)
    said = json.loads(next((whole / "best").glob("step_*/best.json")).read_text())
    assert said == {"measure": runs.reward("brightness"), "value": values[step], "step": step}
    assert [path.name for path in (whole / "best").iterdir()] == [f"step_{step:06d}"]
    assert step > 0
    parts = tmp_path / "parts"
    runs.train(recipe(model, parts, "guards.stop_after=null", "max_steps=2"))
    runs.train(recipe(model, parts, "guards.stop_after=null", "max_steps=4"), resume=True)
    assert json.loads(next((parts / "best").glob("step_*/best.json")).read_text()) == said
    kept = [load_file(next((folder / "best").rglob("*.safetensors"))) for folder in (whole, parts)]
    assert kept[0].keys() == kept[1].keys()
    assert all(bool((kept[0][name] == kept[1][name]).all()) for name in kept[0])
    if step == 4:
        ema = load_file(whole / "adapter" / "ema" / "pytorch_lora_weights.safetensors")
        assert all(bool((ema[name] == kept[0][name]).all()) for name in ema)
