"""Reading a run folder, whole or not."""

import json
import math

import pytest

from flowrl.errors import UserError
from flowrl.report.folder import read_run


def test_a_finished_run_is_read_whole(run):
    """Config, environment, log and every evaluation, without a note."""
    found = read_run(run)
    assert found.notes == ()
    assert found.finished
    assert [evaluation.label for evaluation in found.evaluations] == ["base model", "step 20", "step 40"]
    sample = found.evaluations[0].samples[3]
    assert sample.key == (1, 1, 1003, "three green circles")
    assert sample.file.is_file()
    assert found.trained_rewards == ["shapes"]
    assert (found.higher_is_better("shapes"), found.higher_is_better("my/rewards.py:<b>size</b>")) == (True, False)
    assert found.higher_is_better("never described")


def test_a_score_of_null_is_not_a_number(run):
    """Null says that the reward could not score."""
    scores = read_run(run).evaluations[0].samples[3].scores
    assert scores["shapes"] == 0.0
    assert math.isnan(scores["my/rewards.py:<b>size</b>"])


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    """The error says what a run folder holds, and how to write the command."""
    with pytest.raises(UserError, match=r"neither config.yaml nor metrics.jsonl.*flowrl report runs/"):
        read_run(tmp_path)


def test_what_is_missing_or_broken_is_noted(run):
    """Each part that cannot be read is empty and has its note; the others are as they were."""
    (run / "config.yaml").write_text("rewards: [unclosed")
    (run / "environment.json").unlink()
    (run / "samples" / "step_000020" / "prompts.json").write_text('[{"file": "0')
    (run / "samples" / "step_000040" / "prompts.json").unlink()
    found = read_run(run)
    assert (found.config, found.environment, found.max_steps, found.finished) == ({}, {}, None, False)
    assert [evaluation.step for evaluation in found.evaluations] == [0]
    assert len(found.notes) == 4
    assert all(any(name in note for note in found.notes) for name in ("config.yaml", "step_000020", "step_000040"))


@pytest.mark.parametrize(("name", "content"), [("config.yaml", "- a list"), ("environment.json", '"a word"')])
def test_a_file_that_holds_no_table_is_noted(run, name, content):
    """A list or a word where a table should be is as good as nothing."""
    (run / name).write_text(content)
    assert f"{name} holds no table of names and values." in read_run(run).notes


def test_a_list_of_pictures_cannot_point_out_of_its_folder(run):
    """A path in prompts.json is cut down to its name: a report must not carry other files of the disk."""
    path = run / "samples" / "step_000000" / "prompts.json"
    entries = json.loads(path.read_text())
    entries[0]["file"] = "../../../secret.png"
    path.write_text(json.dumps(entries))
    assert read_run(run).evaluations[0].samples[0].file == path.parent / "secret.png"
