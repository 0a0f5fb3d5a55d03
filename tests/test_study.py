"""flowrl.study: rows and seeds are trained once, with one budget, and leave curves that the table is made of."""

import json
from pathlib import Path

import pytest

from flowrl.config import to_yaml
from flowrl.errors import RunStopped, UserError
from flowrl.study import Study, check, finished, points_of, run_all, write_page
from flowrl.study_table import Point

from . import runs

ROOT = Path(__file__).parent.parent
BRIGHTNESS = runs.reward("brightness")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model, a recipe, and a study of two rows and two seeds: a step takes 8 * 4 + 8 * 3 or 8 * 4 + 8 calls."""
    folder = tmp_path_factory.mktemp("study")
    model = runs.save_model(folder)
    (folder / "tiny.yaml").write_text(to_yaml(runs.recipe(model, folder / "unused", "checkpoint_every=100")))
    (folder / "small.yaml").write_text(
        f"title: Two of them.\nbudget: 100\nseeds: [0, 1]\nevaluations: 2\nmeasure: {BRIGHTNESS}\nheld_out: jpeg\n"
        f"overrides: ['eval.rewards={{{BRIGHTNESS}: 1.0, jpeg: 1.0}}']\n"
        "rows:\n  most: {recipe: tiny.yaml}\n  one: {recipe: tiny.yaml, overrides: [policy.train_steps=1]}\n"
    )
    return folder


def test_each_run_is_made_once(folder, tmp_path, monkeypatch):
    """Cut off after the first run, the study makes the other three only; then there is nothing left."""
    monkeypatch.setattr("flowrl.report.write_report", lambda folder: None)
    study, work, curves = Study.read(folder / "small.yaml"), tmp_path / "runs", tmp_path / "curves"
    left = check(study, study.chosen([]), work, curves)
    assert left == [("most", 0), ("one", 0), ("most", 1), ("one", 1)]
    run_all(study, left[:1], work, curves)
    assert check(study, study.chosen([]), work, curves) == left[1:]
    assert check(study, study.chosen(["most"]), work, curves) == [("most", 1)]
    run_all(study, left[1:], work, curves)
    assert check(study, study.chosen([]), work, curves) == []

    found = [(row, curve.seed) for row, curve, _ in finished(study, curves)]
    assert found == [("most", 0), ("most", 1), ("one", 0), ("one", 1)]
    for row, curve, _ in finished(study, curves):
        calls = [point.calls for point in curve.points]
        # Of 56 calls a step, two steps are over 100, and each crosses a multiple of 50; of 40 three, of which the first
        # crosses none.
        assert calls == {"most": [0, 56, 112], "one": [0, 80, 120]}[row]

    page = tmp_path / "results.md"
    write_page(study, curves, page)
    write_page(study, curves, page)
    text = page.read_text()
    assert text.startswith("# Results\n\n<!-- study small -->\nTwo of them.\n\n| method | seeds |")
    assert text.count("| most | 0 1 |") == text.count("| one | 0 1 |") == text.count("<!-- study small -->") == 1


def test_a_curve_of_another_recipe_is_refused(folder, tmp_path):
    """It is neither taken for one of today's recipe nor overwritten."""
    study, curves = Study.read(folder / "small.yaml"), tmp_path / "curves"
    curves.mkdir()
    (curves / "one-seed1.json").write_text(json.dumps({"recipe": "of yesterday"}))
    with pytest.raises(UserError, match=r"row one, seed 1: .*one-seed1.json is of another recipe"):
        check(study, study.chosen([]), tmp_path / "runs", curves)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("measure=shapes", "row most: its evaluations have no reward 'shapes', but "),
        (f"held_out={BRIGHTNESS}", "row most: it is trained on .* which is to be held out"),
        ("overrides=[policy.steeps=3]", "row most: .*unknown key 'policy.steeps'"),
        ("overrides=['objective.name=grpoo']", "row most: .*unknown objective 'grpoo'"),
        ("rows.one.recipe=none.yaml", "row one: .*none.yaml"),
        ("budgets=3", "unknown key 'budgets'"),
    ],
)
def test_mistakes_are_named_before_anything_runs(folder, tmp_path, change, message):
    """Of the study, and of each row."""

    def look():
        study = Study.read(folder / "small.yaml", [change])
        check(study, study.chosen([]), tmp_path / "runs", tmp_path / "curves")

    with pytest.raises(UserError, match=message):
        look()


def test_an_unknown_row(folder):
    """The nearest and all known ones are named."""
    with pytest.raises(UserError, match=r"no row 'mos'. Did you mean 'most'\? Known: most, one."):
        Study.read(folder / "small.yaml").chosen(["mos"])


def test_a_run_that_stops_itself_is_a_result(folder, tmp_path, monkeypatch):
    """Its curve is what it reached, with the reason, and the study goes on."""
    study, work, curves = Study.read(folder / "small.yaml"), tmp_path / "runs", tmp_path / "curves"

    def train(config, resume):
        config.output.mkdir(parents=True)
        row = {"step": 0, f"eval/{BRIGHTNESS}/mean": 0.5, "eval/jpeg/mean": 1.0, "eval/diversity": 0.1}
        (config.output / "metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({"step": 1}) + "\n")
        (config.output / "environment.json").write_text(json.dumps({"commit": "abc", "threads": 1}))
        raise RunStopped("no learning signal")

    monkeypatch.setattr("flowrl.trainer.train", train)
    run_all(study, [("most", 0), ("one", 0)], work, curves)
    assert [(row, curve.stopped) for row, curve, _ in finished(study, curves)] == [
        ("most", "no learning signal"),
        ("one", "no learning signal"),
    ]
    write_page(study, curves, tmp_path / "page.md")
    assert "| most | 0* |" in (tmp_path / "page.md").read_text()


def test_points_by_hand(folder):
    """Rows of the log without an evaluation are left out."""
    log = [
        {"step": 0, f"eval/{BRIGHTNESS}/mean": 0.5, "eval/jpeg/mean": 1.0, "eval/diversity": 0.1},
        {"step": 1, "denoiser_calls": 50.0},
        {
            "denoiser_calls": 100.0,
            "time": 9.0,
            f"eval/{BRIGHTNESS}/mean": 0.6,
            "eval/jpeg/mean": 2,
            "eval/diversity": 0.2,
        },
    ]
    points = points_of(log, Study.read(folder / "small.yaml").config)
    assert points == [Point(0.0, 0.0, 0.5, 1.0, 0.1), Point(100.0, 9.0, 0.6, 2, 0.2)]


def test_the_bundled_study_has_every_objective():
    """And its recipes exist."""
    study = Study.read(ROOT / "configs" / "studies" / "objectives.yaml")
    assert set(study.config.rows) == {*runs.OBJECTIVES, "flow_grpo_all_steps"}
    made = [study.run(row, 0, Path("runs")) for row in study.config.rows]
    assert {config.max_denoiser_calls for config in made} == {150_000}
