"""What a check found: one line of ``flowrl doctor`` and of ``flowrl rewards check``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

State = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        topic: what it is about: ``versions``, ``devices``, ``plug-ins``, ``recipe``, ``rewards``, or a reward.
        name: the thing that was looked at.
        state: ``FAIL`` makes the command fail; ``note`` is worth knowing.
        detail: what was found.
    """

    topic: str
    name: str
    state: State
    detail: str


def show(findings: Iterable[Finding]) -> int:
    """Print a table a topic, as soon as it is complete, and count the failures."""
    styles, failures = {"ok": "green", "note": "yellow", "FAIL": "bold red"}, 0
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        table = Table(box=None, show_header=False, title=topic, title_justify="left")
        for finding in group:
            failures += finding.state == "FAIL"
            table.add_row(Text(finding.state, style=styles[finding.state]), Text(finding.name), Text(finding.detail))
        Console().print(table)
    return failures
