"""Before and after a run, as a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..errors import UserError
from ..files import whole_file
from ..media import suffix, write_frames
from .folder import Run, read_run
from .grids import draw_grid
from .pairs import Outcome, Pairing
from .table import Row, first_and_last, table


@dataclass(frozen=True)
class Comparison:
    """A run before and after.

    Attributes:
        rows: the table; `Row.cells` gives each as text.
        grid: the picture, or None if no pair of pictures could be read.
        before: what the first evaluation is called, ``base model`` or ``step N``.
        after: what the last evaluation is called.
        tally: how many pairs of pictures had which outcome.
    """

    rows: list[Row]
    grid: Path | None
    before: str
    after: str
    tally: dict[Outcome, int]


def _save(sheets: list[Image.Image], path: Path) -> Path:
    with whole_file(path) as temporary:
        write_frames(sheets, temporary)
    return path


def _pairing(run: Run) -> Pairing:
    pairing = first_and_last(run)
    if pairing is None:
        have = ", ".join(evaluation.label for evaluation in run.evaluations) or "none"
        raise UserError(
            f"{run.path} cannot be compared: before and after take two evaluations with pictures in samples/, and it "
            f"has: {have}. Let the run reach its next evaluation (`eval.every` in its config), or look at what is "
            f"there with: flowrl report {run.path}"
        )
    return pairing


def compare(run: Path) -> Comparison:
    """Compare the first evaluation of a run with its last; write ``compare.png``, of clips ``compare.webp``.

    Args:
        run: the run folder.

    Returns:
        The table and the path of the picture.

    Raises:
        UserError: no run folder, or fewer than two evaluations in it.
    """
    found = read_run(run)
    pairing = _pairing(found)
    sheets = draw_grid(pairing, run.resolve().name)
    return Comparison(
        rows=table(found, pairing),
        grid=_save(sheets, run / f"compare{suffix(sheets)}") if sheets else None,
        before=pairing.before.label,
        after=pairing.after.label,
        tally=pairing.tally(),
    )
