"""What a check found: one line of ``flowrl doctor`` and of ``flowrl rewards check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
