"""A study: several recipes, several seeds, the same number of denoiser calls each, and one table.

Every finished run leaves a small JSON file with its curve; the table is made from these files alone. So a study that
was cut goes on where it was, on another machine too, and several processes can work on different rows of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from . import recipe
from .config import Count, RunConfig, Section, load_config, to_yaml
from .errors import RunStopped, UserError
from .files import whole_file, write_json
from .plugins import nearest
from .study_table import Curve, Point, table


class StudyRow(Section):
    """A method."""

    recipe: Path
    """A recipe, relative to the study's file."""
    overrides: Annotated[list[str], Field(default_factory=list)]
    """Dotted changes to it, such as ``policy.train_steps=all``."""


class StudyConfig(Section):
    """A study."""

    title: str
    """What stands above the table."""
    budget: Count
    """Denoiser calls of each run."""
    seeds: Annotated[list[int], Field(min_length=1, default_factory=lambda: [0, 1, 2])]
    """A run for each."""
    evaluations: Count = 8
    """Of each run, besides the base model's."""
    measure: str
    """A reward that every row's evaluations have: what the study is about."""
    held_out: str
    """Another one, that no row is trained on."""
    gain: Annotated[float, Field(gt=0)] = 0.2
    """The denoiser calls until the measure has risen by this get a column."""
    overrides: Annotated[list[str], Field(default_factory=list)]
    """Changes to all recipes, before the rows' own."""
    rows: Annotated[dict[str, StudyRow], Field(min_length=1)]
    """The methods by name."""


@dataclass(frozen=True)
class Study:
    """A study, read from its file.

    Attributes:
        path: of the file; its name is the study's.
        config: what it says.
    """

    path: Path
    config: StudyConfig

    @staticmethod
    def read(path: Path, overrides: Sequence[str] = ()) -> Study:
        """Read a file.

        Raises:
            UserError: it cannot be read, or a key or a value is wrong.
        """
        return Study(path, recipe.load(StudyConfig, path, overrides))

    def run(self, row: str, seed: int, runs: Path) -> RunConfig:
        """The config of a run.

        Args:
            row: its method.
            seed: its seed.
            runs: the folder of the study's runs.

        Raises:
            UserError: a recipe or a change is wrong; the message names the row.
        """
        chosen, config = self.config.rows[row], self.config
        try:
            plain = load_config(self.path.parent / chosen.recipe, [*config.overrides, *chosen.overrides])
            return plain.model_copy(
                update={
                    "seed": seed,
                    "output": runs / f"{row}-seed{seed}",
                    "max_denoiser_calls": config.budget,
                    # A sample takes one call at least.
                    "max_steps": config.budget // (plain.groups_per_step * plain.group_size) + 1,
                    "eval": plain.eval.model_copy(
                        update={"every_calls": math.ceil(config.budget / config.evaluations), "every": 0}
                    ),
                    "trackers": [],
                }
            )
        except UserError as error:
            raise UserError(f"row {row}: {error}") from error

    def chosen(self, only: Sequence[str]) -> list[tuple[str, int]]:
        """Rows and seeds, seed by seed, of all rows or of some.

        Raises:
            UserError: there is no such row.
        """
        for name in only:
            if name not in self.config.rows:
                known = ", ".join(self.config.rows)
                raise UserError(f"no row {name!r}.{nearest(name, self.config.rows)} Known: {known}.")
        return [(row, seed) for seed in self.config.seeds for row in self.config.rows if row in (only or [row])]


def check(study: Study, pairs: Sequence[tuple[str, int]], runs: Path, results: Path) -> list[tuple[str, int]]:
    """Make sure that every run can work, before the first begins.

    Args:
        study: the study.
        pairs: rows and seeds.
        runs: the folder of the runs.
        results: the folder of the curves.

    Returns:
        What is left to run.

    Raises:
        UserError: a run cannot work, lacks a measure, or was made with another recipe; names the row.
    """
    from .preflight import preflight

    left = []
    for row, seed in pairs:
        config, file = study.run(row, seed, runs), _file(results, row, seed)
        if file.exists():
            if json.loads(file.read_text(encoding="utf8"))["recipe"] != digest(config):
                raise UserError(f"row {row}, seed {seed}: {file} is of another recipe; remove it to run this one.")
            continue
        try:
            checked = preflight(config, resume=True)
        except UserError as error:
            raise UserError(f"row {row}: {error}") from error
        for name in (study.config.measure, study.config.held_out):
            if name not in checked.eval_rewards.names:
                known = ", ".join(checked.eval_rewards.names)
                raise UserError(f"row {row}: its evaluations have no reward {name!r}, but {known}; see eval.rewards.")
        weights = dict(zip(checked.rewards.names, checked.rewards.weights.tolist(), strict=True))
        if weights.get(study.config.held_out):
            raise UserError(f"row {row}: it is trained on {study.config.held_out!r}, which is to be held out.")
        left.append((row, seed))
    return left


def run_all(
    study: Study,
    pairs: Sequence[tuple[str, int]],
    runs: Path,
    results: Path,
    tell: Callable[[str], object] = lambda line: None,
) -> None:
    """Run what is left of a study, one run after the other; each leaves its curve.

    A run that stops itself keeps what it has reached: that a method does not learn is a result.

    Args:
        study: the study.
        pairs: rows and seeds, checked.
        runs: the folder of the runs.
        results: the folder of the curves.
        tell: is given a line for each run.
    """
    from .trainer import train

    for number, (row, seed) in enumerate(pairs):
        tell(f"study {study.path.stem}: {row}, seed {seed} ({number + 1} of {len(pairs)})")
        config, stopped = study.run(row, seed, runs), None
        try:
            train(config, resume=True)
        except RunStopped as stop:
            stopped = str(stop)
        log = [json.loads(line) for line in (config.output / "metrics.jsonl").read_text(encoding="utf8").splitlines()]
        facts = json.loads((config.output / "environment.json").read_text(encoding="utf8"))
        said = {"row": row, "seed": seed, "recipe": digest(config), "commit": facts["commit"], "stopped": stopped}
        points = [asdict(point) for point in points_of(log, study.config)]
        write_json(_file(results, row, seed), {**said, "threads": facts["threads"], "points": points})


def points_of(log: Sequence[dict[str, Any]], config: StudyConfig) -> list[Point]:
    """The evaluations of a run's log."""
    key, held = (f"eval/{name}/mean" for name in (config.measure, config.held_out))
    return [
        Point(row.get("denoiser_calls", 0.0), row.get("time", 0.0), row[key], row[held], row["eval/diversity"])
        for row in log
        if row.get(key) is not None
    ]


def digest(config: RunConfig) -> str:
    """What tells two recipes apart: a hash of everything but the folder of the output."""
    return hashlib.sha256(to_yaml(config.model_copy(update={"output": Path()})).encode()).hexdigest()[:16]


def finished(study: Study, results: Path) -> Iterator[tuple[str, Curve, str]]:
    """Row, curve and commit of the runs that have left one, row by row."""
    for row in study.config.rows:
        for seed in study.config.seeds:
            file = _file(results, row, seed)
            if file.exists():
                said = json.loads(file.read_text(encoding="utf8"))
                curve = Curve(seed, [Point(**point) for point in said["points"]], said["stopped"])
                yield row, curve, str(said["commit"])


def write_page(study: Study, results: Path, page: Path) -> None:
    """Write the table into a Markdown page, between ``<!-- study NAME -->`` and ``<!-- end -->``, or at its end.

    Args:
        study: the study.
        results: the folder of the curves.
        page: the page; it is made if there is none.
    """
    config, name = study.config, study.path.stem
    rows: dict[str, list[Curve]] = {row: [] for row in config.rows}
    commits = set()
    for row, curve, commit in finished(study, results):
        rows[row].append(curve)
        commits.add(commit[:12] + ("-dirty" if commit.endswith("-dirty") else ""))
    made = table(dict(rows), measure=config.measure, held_out=config.held_out, gain=config.gain)
    notes = f"Commits: {', '.join(sorted(commits))}. `*`: the run stopped itself."
    block = f"<!-- study {name} -->\n{config.title}\n\n{made}\n{notes}\n<!-- end -->"
    text = page.read_text(encoding="utf8") if page.exists() else "# Results\n"
    mark = re.compile(rf"<!-- study {re.escape(name)} -->\n.*?<!-- end -->", re.DOTALL)
    changed = mark.sub(lambda _: block, text) if mark.search(text) else f"{text.rstrip()}\n\n{block}\n"
    with whole_file(page) as temporary:
        temporary.write_text(changed, encoding="utf8")


def _file(results: Path, row: str, seed: int) -> Path:
    return results / f"{row}-seed{seed}.json"
