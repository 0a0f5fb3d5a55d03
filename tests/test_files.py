"""Tests of `flowrl.files`: a file or a folder is there whole, or not at all."""

import json
import math
import os
import stat

import pytest
import torch
from safetensors.torch import save_file

from flowrl.files import remove_unfinished, whole_file, whole_folder, write_json


def names(folder):
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def fail(path):
    """Break off in the middle of a file."""
    path.write_text("half")
    raise ZeroDivisionError


def mode(path):
    """The permission bits of a path."""
    return stat.S_IMODE(path.stat().st_mode)


def test_whole_file_appears_at_the_end(tmp_path):
    """Inside the block the path does not exist; after it the file is whole, and nothing else is there."""
    path = tmp_path / "new" / "a.txt"
    with whole_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.suffix == ".txt"  # writers that look at the name see the right one
    assert path.read_text() == "whole"
    assert names(tmp_path) == ["new", "new/a.txt"]


def test_whole_file_after_an_exception(tmp_path):
    """Nothing is left, and a file that was there is as it was."""
    path = tmp_path / "a.txt"
    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        fail(temporary)
    assert names(tmp_path) == []
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
        fail(temporary)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_whole_file_replaces(tmp_path):
    """A file that was there is replaced."""
    path = tmp_path / "a.txt"
    for text in ("old", "new"):
        with whole_file(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "new"


def test_whole_folder_appears_at_the_end(tmp_path):
    """Inside the block the folder does not exist; after it all of its files do."""
    path = tmp_path / "runs" / "step"
    with whole_folder(path) as temporary:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "a").write_text("whole")
        assert not path.exists()
    assert names(tmp_path) == ["runs", "runs/step", "runs/step/deep", "runs/step/deep/a"]


def test_whole_folder_after_an_exception(tmp_path):
    """Nothing is left."""
    with pytest.raises(ZeroDivisionError), whole_folder(tmp_path / "step") as temporary:
        fail(temporary / "a")
    assert names(tmp_path) == []


def test_whole_folder_that_is_there(tmp_path):
    """A folder with files in it is not replaced, and nothing temporary is left beside it."""
    path = tmp_path / "step"
    path.mkdir()
    (path / "a").write_text("old")
    with pytest.raises(OSError, match="step"), whole_folder(path) as temporary:
        (temporary / "a").write_text("new")
    assert (path / "a").read_text() == "old"
    assert names(tmp_path) == ["step", "step/a"]


def test_what_a_killed_process_leaves(tmp_path):
    """Unfinished files and folders are found anywhere below a folder and removed; finished ones, hidden too, stay."""
    write_json(tmp_path / "run" / "a.json", 1)
    (tmp_path / "run" / ".hidden").touch()
    # Entered and never left, as after SIGKILL.
    blocks = [whole_file(tmp_path / "run" / "a.json"), whole_folder(tmp_path / "run" / "checkpoints" / "step")]
    file, folder = (block.__enter__() for block in blocks)
    nested = whole_file(folder / "b.json")
    assert {file.exists(), folder.exists(), nested.__enter__().exists()} == {True}
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["run", "run/.hidden", "run/a.json", "run/checkpoints"]


def test_others_may_read(tmp_path):
    """Files and folders have the permissions that the user's umask gives, not those of a temporary file."""
    before = os.umask(0o022)
    try:
        with whole_file(tmp_path / "a") as temporary:
            save_file({"x": torch.zeros(1)}, temporary)  # which leaves a file that only its owner can read
        with whole_folder(tmp_path / "b") as folder:
            save_file({"x": torch.zeros(1)}, folder / "c")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "b"), mode(tmp_path / "b" / "c")) == (0o644, 0o755, 0o644)


def test_write_json(tmp_path):
    """What is written can be read, prompts in any script stay readable, and the file ends with a line break."""
    path = tmp_path / "a.json"
    write_json(path, {"prompt": "ein grüner Kreis", "score": 0.5})
    text = path.read_text(encoding="utf8")
    assert "grüner" in text
    assert text.endswith("}\n")
    assert json.loads(text) == {"prompt": "ein grüner Kreis", "score": 0.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_write_json_refuses_what_json_has_not(tmp_path, value):
    """NaN, infinity and foreign types are errors, and no file is left."""
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "a.json", {"score": value})
    assert names(tmp_path) == []
