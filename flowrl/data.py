"""Prompt sets, and which prompts and seeds make up a step.

Nothing here has a state: the rows, the micro-batches and the seeds of a step are functions of the run's seed and the
step's number. So a resumed run goes on exactly, and the number of processes changes nothing: micro-batch ``i`` belongs
to rank ``i % world_size``, whatever the world size.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import UserError
from .plugins import nearest

_EXAMPLE = '{"prompt": "a red circle", "metadata": {"kind": "single"}}'


@dataclass(frozen=True)
class PromptRow:
    """One prompt of a set."""

    row: int
    """Its number in the set, from 0; blank lines do not count. Groups are keyed by it, not by the text."""
    prompt: str
    """The text, without white space at its ends."""
    metadata: dict[str, Any]
    """What rewards may need beside the text; empty for a ``.txt`` file."""
    where: str
    """``file:line``, for error messages."""


@dataclass(frozen=True)
class MicroBatch:
    """Samples that are rolled out together and trained together. The four lists are of one length."""

    index: int
    """Its number in the step, over all processes; rank ``index % world_size`` owns it."""
    rows: list[PromptRow]
    """The prompt of each sample."""
    groups: list[int]
    """The number of each sample's group in the step."""
    samples: list[int]
    """The number of each sample in its group."""
    seeds: list[int]
    """The seed of each sample's noise."""
    latent_seeds: list[int]
    """The seed of each sample's initial noise: its own, or one that its group shares."""


def load_prompts(source: str | Path) -> list[PromptRow]:
    """Read a prompt set.

    Args:
        source: the name of a bundled set (:func:`bundled_prompts`); or a file in UTF-8: ``.txt`` with a prompt a line,
            or ``.jsonl`` with ``{"prompt": text, "metadata": {...}}`` a line, ``metadata`` optional. Blank lines are
            skipped.

    Raises:
        UserError: no such set or file, no prompt in it, or a malformed line (file, line and field are named).

    >>> rows = load_prompts("shapes_heldout")
    >>> len(rows), rows[0].row, rows[0].where
    (96, 0, 'shapes_heldout.jsonl:1')
    """
    name, content = _open(source)
    parse = _parse_json if name.endswith(".jsonl") else _parse_text
    lines = enumerate(io.StringIO(_decode(name, content), newline=None), start=1)
    found = [(f"{name}:{number}", line.strip()) for number, line in lines if line.strip()]
    if not found:
        raise UserError(f"{name}: there is no prompt in it.")
    return [PromptRow(row, *parse(line, where), where) for row, (where, line) in enumerate(found)]


def bundled_prompts() -> list[str]:
    """The names of the prompt sets that come with flowrl, sorted."""
    files = (importlib.resources.files("flowrl.assets") / "prompts").iterdir()
    return sorted(file.name.removesuffix(".jsonl") for file in files if file.name.endswith(".jsonl"))


def _open(source: str | Path) -> tuple[str, bytes]:
    """The name (for messages) and the content of a bundled set or a file."""
    path = Path(source).expanduser()
    bundled = bundled_prompts()
    if str(source) in bundled:
        name = f"{source}.jsonl"
        return name, (importlib.resources.files("flowrl.assets") / "prompts" / name).read_bytes()
    if not path.is_file():
        raise UserError(
            f"prompts: there is no file {str(source)!r} (the current folder is {Path.cwd()}), and no bundled set of "
            f"that name.{nearest(str(source), bundled)} Bundled: {', '.join(bundled)}."
        )
    if path.suffix not in (".txt", ".jsonl"):
        raise UserError(f"prompts: wanted a .txt file (a prompt a line) or a .jsonl file ({_EXAMPLE}), got {path}.")
    return str(source), path.read_bytes()


def _decode(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{name}:{line}: the file is not UTF-8 text: {error.reason}.") from error


def _parse_text(line: str, where: str) -> tuple[str, dict[str, Any]]:
    del where  # any line of text is a prompt
    return line, {}


def _parse_json(line: str, where: str) -> tuple[str, dict[str, Any]]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{where}: not JSON: {error.msg}, column {error.colno}. A line looks like {_EXAMPLE}."
        raise UserError(message) from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: wanted an object like {_EXAMPLE}, got {line[:80]}")
    for field in value.keys() - {"prompt", "metadata"}:
        hint = nearest(field, ["prompt", "metadata"]) or " What rewards need goes into 'metadata'."
        raise UserError(f"{where}: {field}: unknown field.{hint}")
    prompt, metadata = value.get("prompt"), value.get("metadata", {})
    if not isinstance(prompt, str) or not prompt.strip():
        raise UserError(f"{where}: prompt: wanted a text that is not empty, got {json.dumps(prompt)}.")
    if not isinstance(metadata, dict):
        raise UserError(f'{where}: metadata: wanted an object like {{"kind": "single"}}, got {json.dumps(metadata)}.')
    return prompt.strip(), metadata


def sample_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on all parts, their order and their types, on every machine alike.

    It is a BLAKE2b hash, so the streams of two different tuples have nothing to do with each other; sums such as
    ``seed + step`` make streams meet.

    >>> sample_seed("noise", 0, 1) == sample_seed("noise", 0, 1)
    True
    >>> len({sample_seed(1, 23), sample_seed(12, 3), sample_seed("1", 23), sample_seed(23, 1)})
    4
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def rows_for_step(count: int, groups_per_step: int, step: int, seed: int) -> list[int]:
    """The rows that a step trains on, one a group.

    An epoch is a shuffle of all rows, cut into steps. The ``count % groups_per_step`` rows at its end, too few for a
    step, sit it out; the next epoch's shuffle leaves out others. So no row is in a step twice, unless there are more
    groups than rows: then a step takes whole shuffles, one after the other, until it is full.

    Args:
        count: rows in the set.
        groups_per_step: rows to return.
        step: from 0.
        seed: of the run.

    Raises:
        ValueError: ``count`` or ``groups_per_step`` is under 1, or ``step`` under 0.

    >>> sorted(rows_for_step(4, 2, step=0, seed=7) + rows_for_step(4, 2, step=1, seed=7))
    [0, 1, 2, 3]
    """
    if count < 1 or groups_per_step < 1 or step < 0:
        raise ValueError(f"wanted count, groups_per_step >= 1, step >= 0; got {count}, {groups_per_step}, {step}")
    shuffles = -(-groups_per_step // count)
    epoch, place = divmod(step, shuffles * count // groups_per_step)
    order = [row for number in range(shuffles) for row in _shuffle(count, seed, epoch * shuffles + number)]
    return order[place * groups_per_step :][:groups_per_step]


@lru_cache(maxsize=8)
def _shuffle(count: int, seed: int, number: int) -> tuple[int, ...]:
    """Rows in the order of their hashes: unlike a generator's permutation, the same in every version of a library."""
    return tuple(sorted(range(count), key=lambda row: sample_seed("shuffle", seed, number, row)))


def plan_step(
    rows: Sequence[PromptRow],
    *,
    group_size: int,
    micro_batch_size: int,
    step: int,
    seed: int,
    share_initial_noise: bool = False,
) -> list[MicroBatch]:
    """Cut the samples of a step into micro-batches.

    The samples stand in one global order, group after group; only the last micro-batch may be smaller. The seed of a
    sample's noise does not depend on the cut.

    Args:
        rows: the prompt of each group.
        group_size: samples a group.
        micro_batch_size: samples a micro-batch, at most.
        step: from 0.
        seed: of the run.
        share_initial_noise: the samples of a group start from the same noise.

    Raises:
        ValueError: a size is under 1.

    >>> row = PromptRow(5, "a red circle", {}, "prompts.txt:6")
    >>> plan = plan_step([row, row], group_size=3, micro_batch_size=4, step=0, seed=0)
    >>> [(batch.index, batch.groups, batch.samples) for batch in plan]
    [(0, [0, 0, 0, 1], [0, 1, 2, 0]), (1, [1, 1], [1, 2])]
    """
    if group_size < 1 or micro_batch_size < 1:
        raise ValueError(f"wanted group_size and micro_batch_size >= 1, got {group_size} and {micro_batch_size}")
    places = [(group, sample) for group in range(len(rows)) for sample in range(group_size)]

    # The group is in the seeds because a row may fill two groups of a step.
    def noise(group: int, sample: int) -> int:
        return sample_seed("noise", seed, step, rows[group].row, group, sample)

    def initial(group: int, sample: int) -> int:
        return (
            sample_seed("initial", seed, step, rows[group].row, group) if share_initial_noise else noise(group, sample)
        )

    return [
        MicroBatch(
            index=index,
            rows=[rows[group] for group, _ in part],
            groups=[group for group, _ in part],
            samples=[sample for _, sample in part],
            seeds=[noise(*place) for place in part],
            latent_seeds=[initial(*place) for place in part],
        )
        for index, part in enumerate(
            places[start : start + micro_batch_size] for start in range(0, len(places), micro_batch_size)
        )
    ]
