"""``python -m tests.pipelines.table [CLASS ...]`` runs the checks and writes what they found, for users to see.

Writes ``pipelines/support.json``, which ``flowrl pipelines list`` reads, and ``docs/pipelines.md`` from it. With names,
only the rows of these classes change; without, all are made anew, and the rows of classes that have no case any more
go. After each class both files are written, so a run that was interrupted goes on with ``--missing``.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import diffusers

from flowrl.files import whole_file, write_json
from flowrl.kinds import scheduler_kind
from flowrl.support import PASSED, Row, read

from . import cases
from .cases import CASES, TASKS
from .conformance import CHECKS, CORE, results, shared_policy

ROOT = Path(__file__).parent.parent.parent
SUPPORT = ROOT / "pipelines" / "support.json"
PAGE = ROOT / "docs" / "pipelines.md"
EMPTY: dict[str, Any] = {"diffusers": diffusers.__version__, "classes": {}, "refused": {}}


def refused() -> dict[str, str]:
    """Classes that cannot be a policy, by the ``REFUSED`` of each file of cases."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(cases.__path__, f"{cases.__name__}."):
        found |= getattr(import_module(module.name), "REFUSED", {})
    return {name: reason.removesuffix(".") for name, reason in sorted(found.items())}


def row(name: str) -> dict[str, Any]:
    """Run every check of a class."""
    checks = results([name])[name]
    return {"task": CASES[name].task, "scheduler": kind(name), "kernel": CASES[name].kernel, "checks": checks}


def kind(name: str) -> str:
    """The kind of the scheduler that the class's tiny pipeline has."""
    try:
        scheduler = shared_policy(name).pipe.scheduler
    except Exception:  # noqa: BLE001  (its checks say what went wrong)
        return "unknown"
    return scheduler_kind(type(scheduler).__name__, scheduler.config)


def load() -> dict[str, Any]:
    """The content of ``support.json``."""
    return json.loads(SUPPORT.read_text(encoding="utf8")) if SUPPORT.exists() else EMPTY


def save(content: Mapping[str, Any]) -> None:
    """Write the table and the page, each whole, sorted."""
    content = {**content, "classes": dict(sorted(content["classes"].items())), "refused": refused()}
    write_json(SUPPORT, content)
    with whole_file(PAGE) as temporary:
        temporary.write_text(page(content), encoding="utf8")


def page(content: Mapping[str, Any]) -> str:
    """``docs/pipelines.md``."""
    support = read(content)
    core = [row for row in support.rows if all(row.checks.get(check) == PASSED for check in CORE)]
    whole = [row for row in support.rows if row.passed == len(row.checks)]
    lines = [
        "# Pipelines",
        "",
        "Written by `python -m tests.pipelines.table`; do not edit. `flowrl pipelines list` shows the same table, and "
        "`flowrl pipelines show CLASS` a class's presets with the source of each number.",
        "",
        f"Each of the {len(classes(support.rows))} classes below was built as a tiny random model of the real "
        f"components (diffusers {support.diffusers}, float32, CPU) and checked as a policy; some in several variants, "
        f"named in brackets, {len(support.rows)} in all. {len(core)} of these pass the checks that make a policy "
        f"({', '.join(CORE)}), {len(whole)} pass every check. A class that is not here takes the general path: it may "
        "well work, but nobody has tried.",
        "",
        "| check | what it asks |",
        "|---|---|",
        *(f"| {name} | {summary(function)} |" for name, function in CHECKS.items()),
    ]
    for task in TASKS:
        rows = [row for row in support.rows if row.task == task]
        if rows:
            lines += ["", f"## {task.capitalize()}", "", *table(rows)]
    lines += notes(support.rows)
    if support.refused:
        lines += ["", "## Not policies", "", *(f"- `{name}`: {reason}." for name, reason in support.refused.items())]
    return "\n".join(lines) + "\n"


def classes(rows: Iterable[Row]) -> set[str]:
    """Names of the classes, without those of their variants."""
    return {row.name.split("[")[0] for row in rows}


def summary(function: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join(function.__doc__.strip().split("\n\n")[0].split()).replace("|", "\\|")


def table(rows: Iterable[Row]) -> list[str]:
    """A Markdown table of classes."""
    names = list(CHECKS)
    lines = [f"| class | scheduler | {' | '.join(names)} | preset |", "|---" * (len(names) + 3) + "|"]
    for row in rows:
        marks = ["yes" if row.checks.get(name) == PASSED else _mark(row.checks.get(name)) for name in names]
        lines.append(f"| `{row.name}` | {row.scheduler} | {' | '.join(marks)} | {'; '.join(row.presets)} |")
    return lines


def _mark(result: str | None) -> str:
    return "**fails**" if result is None or result.startswith("failed") else "-"


def notes(rows: Sequence[Row]) -> list[str]:
    """Why a check does not apply, or what went wrong: each reason once, with the classes that it holds for."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for check in row.others:
            reasons.setdefault((check, row.checks[check]), []).append(f"`{row.name}`")
    if not reasons:
        return []
    told = [f"- {check}: {reason} ({', '.join(names)})" for (check, reason), names in sorted(reasons.items())]
    return ["", "## What does not apply, or fails", "", *told]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the checks of some classes, or of all."""
    parser = argparse.ArgumentParser(description="Run the conformance checks and write what they found.")
    parser.add_argument("names", nargs="*", metavar="CLASS", help="only these classes; all without any")
    parser.add_argument("--missing", action="store_true", help="only classes that have no row yet")
    given = parser.parse_args(arguments)
    content = load()
    unknown = sorted(set(given.names) - set(CASES))
    if unknown:
        parser.error(f"there is no case for {', '.join(unknown)}")
    names = given.names or sorted(CASES)
    if given.missing:
        names = [name for name in names if name not in content["classes"]]
    if not given.names:
        content = {**content, "classes": {name: r for name, r in content["classes"].items() if name in CASES}}
    content = {**content, "diffusers": diffusers.__version__}
    save(content)
    for number, name in enumerate(names, 1):
        content["classes"][name] = row(name)
        save(content)
        failed = [f"{check}: {r}" for check, r in content["classes"][name]["checks"].items() if r.startswith("failed")]
        print(f"{number}/{len(names)} {name}: {'; '.join(failed) or 'no failure'}", flush=True)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers' own: deprecated classes and arguments
        main()
