"""The page: gathers what it shows, lets Jinja2 escape and lay it out, writes one file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..files import whole_file
from ..media import LOSSLESS_SIDE, read_frames
from .alarms import alarms
from .charts import last, legend, main_charts, other_charts
from .folder import Run, Sample, label, read_run
from .pairs import Pair, Pairing, spread
from .pictures import data_uri
from .table import Row, elapsed, first_and_last, table
from .wording import MISSING, duration, number, printable, signed

MAX_PAIRS = 24
"""Pairs on the page. They are spread evenly over the evaluation, so no score decides which are shown."""

_FACTS = (
    ("model", "model.path"),
    ("objective", "objective.name"),
    ("advantage", "advantage.name"),
    ("prompts", "prompts"),
    ("evaluated on", "eval.prompts"),
    ("kernel", "policy.kernel"),
    ("sampling steps", "policy.steps"),
    ("guidance", "policy.guidance_scale"),
    ("LoRA rank", "lora.rank"),
    ("learning rate", "learning_rate"),
    ("group size", "group_size"),
    ("groups a step", "groups_per_step"),
    ("seed", "seed"),
)


@dataclass(frozen=True)
class Figure:
    """One picture or clip on the page.

    Attributes:
        uri: the picture itself.
        pixelated: it is so small that its pixels are shown as squares.
        scores: (reward, score) in words.
    """

    uri: str
    pixelated: bool
    scores: list[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """A pair on the page."""

    pair: Pair
    before: Figure
    after: Figure


def dig(config: Mapping[str, Any], field: str) -> Any:
    """The value of a dotted field, or None.

    >>> dig({"eval": {"every": 10}}, "eval.every"), dig({"eval": 3}, "eval.every")
    (10, None)
    """
    value: Any = config
    for key in field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def facts(run: Run) -> list[tuple[str, str]]:
    """What the run was: the settings that a reader asks for first, as (name, value)."""
    found = [(label, dig(run.config, field)) for label, field in _FACTS]
    return [(label, str(value)) for label, value in found if value is not None]


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested tables as (dotted name, value).

    >>> list(flatten({"torch": "2.6", "devices": ["cpu"], "git": {"commit": "abc"}}))
    [('torch', '2.6'), ('devices', 'cpu'), ('git.commit', 'abc')]
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and not any(isinstance(item, Mapping | list) for item in value):
        yield name, ", ".join(map(str, value))
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def rewards_table(run: Run) -> list[list[str]]:
    """What ``environment.json`` says of the rewards: a line of headings, and a line each; empty if it says nothing."""
    described = run.environment.get("rewards")
    rewards = [entry for entry in described if isinstance(entry, Mapping)] if isinstance(described, list) else []
    keys = list(dict.fromkeys(key for reward in rewards for key in reward))
    lines = [[_words(key, reward.get(key)) for key in keys] for reward in rewards]
    return [[str(key).replace("_", " ") for key in keys], *lines] if lines else []


def _words(key: str, value: Any) -> str:
    """A JSON value as a person writes it; the open end of a range is called so."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if key == "range" and isinstance(value, list):
        return " to ".join("open" if end is None else str(end) for end in value)
    if isinstance(value, list):
        return ", ".join(map(str, value)) or MISSING
    return str(value) if value else MISSING


def _figure(sample: Sample) -> Figure | None:
    found = read_frames(sample.file)
    if found is None:
        return None
    frames, duration = found
    scores = [(name, number(score)) for name, score in sample.scores.items()]
    return Figure(data_uri(frames, duration), max(frames[0].size) <= LOSSLESS_SIDE, scores)


def cards(pairing: Pairing) -> list[Card]:
    """The pairs that the page shows: spread evenly, and both pictures readable."""
    shown: list[Card] = []
    for pair in spread(pairing.pairs, MAX_PAIRS):
        before, after = _figure(pair.before), _figure(pair.after)
        if before is not None and after is not None:
            shown.append(Card(pair, before, after))
    return shown


def lone_figures(run: Run) -> list[tuple[str, Figure]]:
    """Pictures of the only evaluation of a run that has no second one yet, as (prompt, picture)."""
    samples = spread(run.evaluations[-1].samples, MAX_PAIRS) if run.evaluations else []
    figures = ((sample.prompt, _figure(sample)) for sample in samples)
    return [(prompt, figure) for prompt, figure in figures if figure is not None]


def status(run: Run) -> tuple[str, str]:
    """Whether the run is complete, as (class of the mark, words)."""
    step, planned = run.history.last_step, run.max_steps
    if run.finished:
        return "done", f"finished, {number(step)} steps"
    return (
        "partial",
        f"partial, {number(step)} of {number(planned)} steps" if planned else f"partial, {number(step)} steps",
    )


def unscored(run: Run) -> str | None:
    """Which rewards could not score how many pictures of the last evaluation."""
    if not run.evaluations:
        return None
    samples = run.evaluations[-1].samples
    missing: dict[str, int] = {}
    for sample in samples:
        for name, score in sample.scores.items():
            missing[name] = missing.get(name, 0) + (not math.isfinite(score))
    parts = [f"{name}: {count} of {len(samples)}" for name, count in missing.items() if count]
    return f"Pictures of the last evaluation that could not be scored: {'; '.join(parts)}." if parts else None


def notes(run: Run, pairing: Pairing | None, shown: int) -> list[str]:
    """What is missing, for a reader who would wonder."""
    found = list(run.notes)
    if not run.finished and run.max_steps is not None:
        found.insert(
            0,
            "This run has not reached its last step: it is still going, was stopped, or was killed. "
            "The page shows what it has written so far.",
        )
    if not run.history.evaluations() and not run.evaluations:
        found.append("The run has not been evaluated yet, so there are no pictures and no table.")
    elif pairing is None or not table(run, pairing):
        found.append("There is only one evaluation so far: before and after, and the table, come with the second.")
    if pairing is not None and shown < min(MAX_PAIRS, len(pairing.pairs)):
        found.append("Some pictures could not be read, and their pairs are left out.")
    if (message := unscored(run)) is not None:
        found.append(message)
    return found


def tiles(run: Run, rows: list[Row]) -> list[Row]:
    """The figures at the top: up to three rewards and the diversity."""
    rewards = [row for row in rows if row.kind == "reward"][:3]
    return rewards + [row for row in rows if row.kind == "diversity"]


def context(run: Run) -> dict[str, Any]:
    """Everything that the template asks for."""
    pairing = first_and_last(run)
    rows = table(run, pairing)
    shown = cards(pairing) if pairing is not None else []
    rest = {name: value for name, value in run.environment.items() if name != "rewards"}
    evaluations = run.history.evaluations()
    return {
        "run": run,
        "name": run.path.resolve().name,
        "status": status(run),
        "facts": facts(run),
        "rewards": run.trained_rewards,
        "tiles": tiles(run, rows),
        "elapsed": elapsed(run, run.history.last_step),
        "calls": run.history.at(run.history.last_step, "denoiser_calls"),
        "alarms": alarms(run, rows),
        "notes": notes(run, pairing, len(shown)),
        "charts": main_charts(run),
        "more_charts": other_charts(run),
        "rows": rows,
        "columns": [label(step) for step in (evaluations[0], evaluations[-1])] if rows else [],
        "pairing": pairing,
        "tally": pairing.tally() if pairing is not None else {},
        "cards": shown,
        "lone": lone_figures(run) if pairing is None else [],
        "rewards_table": rewards_table(run),
        "environment": list(flatten(rest)),
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True) if run.config else "",
    }


def render(run: Run) -> str:
    """Lay out the page.

    Args:
        run: the run.

    Returns:
        HTML; every text of the run is escaped, and nothing in it points outside.
    """
    jinja = Environment(
        loader=PackageLoader("flowrl", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters.update(number=number, signed=signed, duration=duration, printable=printable)
    # Only drawings go in unescaped; curves.draw makes them, and no text of a user is in them.
    jinja.filters.update(drawing=Markup, last=last, legend=legend, finite=math.isfinite)
    return jinja.get_template("page.html.j2").render(context(run))


def write_report(run: Path) -> Path:
    """Write ``report.html`` into a run folder: one file that opens anywhere, without a network.

    Args:
        run: the run folder; the run may be going on, or may have been killed.

    Returns:
        The path of the page.

    Raises:
        UserError: ``run`` is no run folder.
    """
    path = run / "report.html"
    page = render(read_run(run))
    with whole_file(path) as temporary:
        # A prompt may hold a lone surrogate, which no encoding has: a question mark stands for it.
        temporary.write_bytes(page.encode("utf-8", errors="replace"))
    return path
