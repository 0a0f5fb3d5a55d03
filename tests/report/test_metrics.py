"""Reading metrics.jsonl."""

import math

from flowrl.report.metrics import History, read_metrics


def test_a_log_is_read_in_the_order_of_steps(tmp_path):
    """Numbers are kept, null and NaN become gaps, words and truth values are no metrics."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "eval/a/mean": 1}\n{"step": 1, "loss": null, "x": "word", "y": true}\n')
    history = read_metrics(path)
    assert history.names() == ["eval/a/mean", "loss"]
    assert history.series("eval/a/mean") == [(0, 1.0)]
    assert math.isnan(history.series("loss")[0][1])
    assert history.at(1, "loss") is None
    assert history.at(5, "loss") is None
    assert (history.last_step, history.evaluations(), history.notes) == (1, [0], ())


def test_a_last_line_that_is_cut_off_is_left_out_and_noted(tmp_path):
    """A kill in the middle of a write costs that line, even in the middle of a letter, and the page says so."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 0.5}\n{"step": 2, "reward/\xc3')
    history = read_metrics(path)
    assert history.series("loss") == [(1, 0.5)]
    assert len(history.notes) == 1
    assert "cut off" in history.notes[0]


def test_steps_may_be_written_as_floats(tmp_path):
    """The trainer's metrics are all floats, its step too; a step and a half, a NaN and an infinity are no steps."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1.5}\n{"step": NaN}\n{"step": Infinity}\n{"step": true}\n{"step": 2.0, "loss": 1.0}\n')
    history = read_metrics(path)
    assert history.series("loss") == [(2, 1.0)]
    assert all(isinstance(step, int) for step in history.rows)
    assert len(history.notes) == 4


def test_a_complete_last_line_needs_no_line_end(tmp_path):
    """What counts is that the object is whole."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5}')
    assert read_metrics(path).notes == ()


def test_other_unreadable_lines_are_noted_by_number(tmp_path):
    """Garbage, an object without a step and a list are each left out, with their line."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('garbage\n{"loss": 1}\n[1]\n{"step": -1}\n{"step": 4, "loss": 1}\n')
    history = read_metrics(path)
    assert list(history.rows) == [4]
    assert [note.split()[1] for note in history.notes] == ["1", "2", "3", "4"]


def test_a_step_that_was_logged_twice_keeps_the_later_values(tmp_path):
    """A resumed run logs the steps after its checkpoint again; an evaluation may have a line of its own."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 3, "loss": 9}\n{"step": 2, "loss": 2}\n{"step": 3, "loss": 3}\n{"step": 3, "eval/d": 1}\n'
    )
    history = read_metrics(path)
    assert history.series("loss") == [(2, 2.0), (3, 3.0)]
    assert history.evaluations() == [3]


def test_no_file_and_an_empty_file_are_empty_logs(tmp_path):
    """A run that was killed before its first step still has a page."""
    (tmp_path / "empty.jsonl").touch()
    for name in ("absent.jsonl", "empty.jsonl"):
        history = read_metrics(tmp_path / name)
        assert history.rows == {}
        assert history.last_step == 0
        assert len(history.notes) == 1


def test_reward_names_may_hold_slashes():
    """`reward/mean` is the sum and not a reward; `reward/dir/mean.py:f/mean` is one."""
    history = History({1: {"reward/mean": 1.0, "reward/dir/mean.py:f/mean": 1.0, "reward/dir/mean.py:f/std": 1.0}})
    assert history.rewards("reward") == ["dir/mean.py:f"]
    assert history.rewards("eval") == []
