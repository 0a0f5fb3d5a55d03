"""`compare` as a user of the library calls it."""

import pytest
from PIL import Image

from flowrl.errors import UserError
from flowrl.report import compare
from flowrl.report.pairs import Outcome


def test_compare_writes_the_grid_and_returns_the_table(run):
    """compare.png is a picture in the run folder, and nothing else is added to it."""
    before = set(run.iterdir())
    found = compare(run)
    assert set(run.iterdir()) - before == {run / "compare.png"}
    assert found.grid == run / "compare.png"
    with Image.open(found.grid) as grid:
        assert grid.format == "PNG"
    assert (found.before, found.after) == ("base model", "step 40")
    assert found.rows[0].name == "shapes"
    # 18 pairs, of ten in a row: 0-2 stay right, 3-6 are fixed, 7 is broken, 8 and 9 stay wrong.
    assert found.tally == {Outcome.FIXED: 8, Outcome.RIGHT: 6, Outcome.WRONG: 2, Outcome.BROKEN: 2}


def test_compare_needs_two_evaluations(make_run):
    """The error says what the run has and what to do, and nothing is written."""
    run = make_run(last_step=9)
    with pytest.raises(UserError, match=r"it has: base model.*flowrl report"):
        compare(run)
    assert not (run / "compare.png").exists()


def test_compare_without_pictures_still_has_its_table(run):
    """Pictures may be deleted to save space; the log is still there, and an old grid is not passed off as new."""
    for picture in run.glob("samples/*/*.png"):
        picture.unlink()
    found = compare(run)
    assert found.grid is None
    assert found.rows


def test_a_failed_write_leaves_the_old_grid(run, monkeypatch):
    """A full disk in the middle of saving costs nothing that was there, and leaves no partial file."""
    (run / "compare.png").write_bytes(b"old")
    before = sorted(run.iterdir())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space"):
        compare(run)
    assert (run / "compare.png").read_bytes() == b"old"
    assert sorted(run.iterdir()) == before
