"""Which pipeline classes are known to be policies: what ``flowrl pipelines`` shows.

The table is a result, not a promise: ``python -m tests.pipelines.table`` runs the conformance checks on tiny random
models of each class and writes ``pipelines/support.json``, which is installed with flowrl. A class that is not in it
runs too, if it keeps to diffusers' habits; nobody has tried. This module imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from .errors import UserError
from .plugins import nearest
from .preset import Preset, for_class, presets

PASSED = "passed"


@dataclass(frozen=True)
class Row:
    """A pipeline class that was checked.

    Attributes:
        name: the class.
        task: what it does.
        scheduler: the kind of its scheduler (`flowrl.preset.Scheduler`).
        checks: for each check ``passed``, ``failed: ...`` or the reason for which it does not apply.
        presets: names of the presets that serve it.
    """

    name: str
    task: str
    scheduler: str
    checks: Mapping[str, str]
    presets: tuple[str, ...]

    @property
    def passed(self) -> int:
        """How many checks it passed."""
        return sum(result == PASSED for result in self.checks.values())

    @property
    def others(self) -> list[str]:
        """The checks that it did not pass."""
        return [check for check, result in self.checks.items() if result != PASSED]


@dataclass(frozen=True)
class Support:
    """The whole table.

    Attributes:
        diffusers: the version that was checked.
        rows: the classes, by name.
        refused: classes that cannot be a policy, with the reason.
    """

    diffusers: str
    rows: tuple[Row, ...]
    refused: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Everything, for ``--json``."""
        return {
            "diffusers": self.diffusers,
            "classes": [asdict(row) for row in self.rows],
            "refused": dict(self.refused),
        }


def read(content: Mapping[str, Any] | None = None) -> Support:
    """The installed table.

    Args:
        content: of another ``support.json``.
    """
    if content is None:
        content = json.loads((files("flowrl.pipelines") / "support.json").read_text(encoding="utf-8"))
    installed = presets()
    rows = [
        Row(name, row["task"], row["scheduler"], row["checks"], _names(for_class(name, installed)))
        for name, row in sorted(content["classes"].items())
    ]
    return Support(content["diffusers"], tuple(rows), dict(sorted(content["refused"].items())))


def _names(found: list[Preset]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(preset.name for preset in found))


def find(name: str) -> tuple[Row | None, list[Preset]]:
    """What is known of a class: its row, and the presets that serve it.

    Raises:
        UserError: it cannot be a policy, or nothing is known of it.
    """
    table, found = read(), for_class(name)
    if name in table.refused:
        raise UserError(f"{name} cannot be a policy: {table.refused[name]}.")
    row = next((row for row in table.rows if row.name == name), None)
    if row is None and not found:
        known = {row.name for row in table.rows} | {each for preset in presets() for each in preset.classes}
        raise UserError(
            f"nothing is known of {name!r}: it was not checked and has no preset.{nearest(name, sorted(known))} "
            "`flowrl pipelines list` has all that were."
        )
    return row, found
