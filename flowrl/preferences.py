"""Preference data on disk: which pictures of a prompt are better, and by how much.

A file of JSON lines, one group of pictures a line, in one of these forms; paths are relative to the file and stay in
its folder::

    {"prompt": "a red circle", "chosen": "a.png", "rejected": "b.png"}
    {"prompt": "a red circle", "images": ["a.png", "b.png", "c.png"], "scores": [0.9, 0.1, 0.4]}
    {"prompt": "a red circle", "latents": "0.safetensors", "scores": [0.9, 0.1]}
    {"caption": "a red circle", "jpg_0": "a.jpg", "jpg_1": "b.jpg", "label_0": 1.0, "label_1": 0.0}

The third is what ``flowrl data make`` writes; its file has ``latents`` `[G, ...]` and may have ``noise``, the noise
that each sample was drawn from. The fourth has the columns of Pick-a-Pic; ties there are left out. A folder is read as
its ``preferences.jsonl``, or else as ``chosen/NAME.png``, ``rejected/NAME.png`` and ``chosen/NAME.txt`` with the
prompt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .data import PromptRow
from .errors import UserError
from .plugins import nearest

FILE = "preferences.jsonl"
SCORE = "stored score"
"""The reward, and the key of the metadata, of what the data says a sample is worth."""
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class StoredGroup:
    """Pictures of a prompt, and what each is worth.

    Attributes:
        prompt: the text.
        scores: of G pictures, higher is better.
        images: their files, if there are any.
        latents: a safetensors file with ``latents`` `[G, ...]`, if there is one.
        where: ``file:line``, for messages.
    """

    prompt: str
    scores: tuple[float, ...]
    images: tuple[Path, ...]
    latents: Path | None
    where: str

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that it names."""
        return self.images if self.latents is None else (*self.images, self.latents)


def load_groups(source: str | Path) -> list[StoredGroup]:
    """Read preference data; pictures are not opened.

    Args:
        source: a ``.jsonl`` file, or a folder.

    Raises:
        UserError: a mistake; file, line and field are named. :func:`mistakes` finds all of them.
    """
    found, wrong = _read(Path(source).expanduser())
    if wrong:
        more = f" And {len(wrong) - 1} more; `flowrl data check` lists them." if len(wrong) > 1 else ""
        raise UserError(wrong[0] + more)
    if not found:
        raise UserError(f"{source}: there is no preference in it.")
    return found


def mistakes(source: str | Path) -> tuple[list[StoredGroup], list[str]]:
    """Everything that can be read, and everything that is wrong, pictures and latents that do not open included."""
    found, wrong = _read(Path(source).expanduser())
    for group in found:
        wrong += [f"{group.where}: {problem}" for path in group.images if (problem := _picture_problem(path))]
        problem = None if group.latents is None else _latents_problem(group.latents, len(group.scores))
        wrong += [f"{group.where}: latents: {problem}"] if problem else []
    return found, wrong


def rows_of(groups: Sequence[StoredGroup]) -> list[PromptRow]:
    """A row of the training's prompts for each group."""
    return [PromptRow(number, group.prompt, {}, group.where) for number, group in enumerate(groups)]


def sizes(groups: Sequence[StoredGroup]) -> set[int]:
    """How many pictures the groups have."""
    return {len(group.scores) for group in groups}


def has_noise(groups: Sequence[StoredGroup]) -> bool:
    """Whether every group has the noise that its samples were drawn from."""
    return all(group.latents is not None and "noise" in _shapes(group.latents) for group in groups)


def _read(path: Path) -> tuple[list[StoredGroup], list[str]]:
    if path.is_dir() and not (path / FILE).is_file():
        return _collect(_of_folder(path))
    file = path / FILE if path.is_dir() else path
    if not file.is_file() or file.suffix != ".jsonl":
        raise UserError(f"data: wanted a .jsonl file or a folder with {FILE} or chosen/ and rejected/, got {path}.")
    return _collect(_of_lines(file))


def _collect(parts: Iterator[Callable[[], StoredGroup | None]]) -> tuple[list[StoredGroup], list[str]]:
    found, wrong = [], []
    for part in parts:
        try:
            group = part()
        except UserError as error:
            wrong.append(str(error))
        else:
            found += [] if group is None else [group]
    return found, wrong


def _of_folder(folder: Path) -> Iterator[Callable[[], StoredGroup | None]]:
    chosen, rejected = folder / "chosen", folder / "rejected"
    if not (chosen.is_dir() and rejected.is_dir()):
        raise UserError(f"data: {folder} has neither {FILE} nor the folders chosen and rejected.")

    def pair(path: Path) -> StoredGroup:
        other = next((p for p in sorted(rejected.glob(f"{path.stem}.*")) if p.suffix.lower() in _PICTURES), None)
        text = path.with_suffix(".txt")
        if other is None or not text.is_file():
            what = (
                f"{text.name} with its prompt beside it" if other is not None else "a picture of its name in rejected/"
            )
            raise UserError(f"{path}: wanted {what}.")
        prompt = text.read_text(encoding="utf8").strip()
        if not prompt:
            raise UserError(f"{text}: wanted a prompt, got an empty file.")
        return StoredGroup(prompt, (1.0, 0.0), (path, other), None, str(path))

    for path in sorted(chosen.iterdir()):
        if path.suffix.lower() in _PICTURES:
            yield lambda path=path: pair(path)  # type: ignore[misc]


def _of_lines(file: Path) -> Iterator[Callable[[], StoredGroup | None]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: the file is not UTF-8 text: {error.reason}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield lambda line=line, number=number: _parse(line, file, f"{file}:{number}")  # type: ignore[misc]


def _parse(line: str, file: Path, where: str) -> StoredGroup | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON: {error.msg}, column {error.colno}.") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: wanted an object, got {line[:60]}.")
    for fields, read in _FORMS:
        if fields & row.keys():
            return read(row, file.parent, where)
    raise UserError(f"{where}: wanted chosen and rejected, images and scores, latents and scores, or jpg_0 and jpg_1.")


def _pair(row: Mapping[str, Any], folder: Path, where: str) -> StoredGroup:
    _only(row, {"prompt", "chosen", "rejected"}, where)
    images = tuple(_inside(row.get(field), folder, f"{where}: {field}") for field in ("chosen", "rejected"))
    return StoredGroup(_text(row, "prompt", where), (1.0, 0.0), images, None, where)


def _group(row: Mapping[str, Any], folder: Path, where: str) -> StoredGroup:
    _only(row, {"prompt", "images", "latents", "scores"}, where)
    scores, listed = row.get("scores"), row.get("images", [])
    if not isinstance(scores, list) or len(scores) < 2 or not all(_is_number(score) for score in scores):
        raise UserError(f"{where}: scores: wanted two numbers or more, got {json.dumps(scores)[:60]}.")
    latents = _inside(row["latents"], folder, f"{where}: latents") if "latents" in row else None
    if not isinstance(listed, list) or (len(listed) != len(scores) and (listed or latents is None)):
        got = json.dumps(listed)[:60]
        raise UserError(f"{where}: images: wanted {len(scores)} files, one for each score, got {got}.")
    if latents is not None and latents.suffix != ".safetensors":
        raise UserError(f"{where}: latents: wanted a .safetensors file, got {latents.name}.")
    images = tuple(_inside(name, folder, f"{where}: images") for name in listed)
    return StoredGroup(_text(row, "prompt", where), tuple(map(float, scores)), images, latents, where)


def _pick_a_pic(row: Mapping[str, Any], folder: Path, where: str) -> StoredGroup | None:
    labels: list[Any] = [row.get("label_0"), row.get("label_1")]
    if not all(_is_number(label) and 0 <= label <= 1 for label in labels):
        raise UserError(f"{where}: label_0, label_1: wanted numbers from 0 to 1, got {json.dumps(labels)[:60]}.")
    images = tuple(_inside(row.get(field), folder, f"{where}: {field}") for field in ("jpg_0", "jpg_1"))
    if labels[0] == labels[1]:
        return None
    return StoredGroup(_text(row, "caption", where), (float(labels[0]), float(labels[1])), images, None, where)


_FORMS: tuple[tuple[set[str], Callable[[Mapping[str, Any], Path, str], StoredGroup | None]], ...] = (
    ({"chosen", "rejected"}, _pair),
    ({"images", "latents", "scores"}, _group),
    ({"jpg_0", "jpg_1"}, _pick_a_pic),
)


def _only(row: Mapping[str, Any], known: set[str], where: str) -> None:
    for field in row.keys() - known:
        names = ", ".join(sorted(known))
        raise UserError(f"{where}: {field}: unknown field.{nearest(field, known)} Known here: {names}.")


def _text(row: Mapping[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {field}: wanted a text that is not empty, got {json.dumps(value)[:60]}.")
    return value.strip()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _inside(name: object, folder: Path, label: str) -> Path:
    """A file that a line names, inside the data's own folder."""
    if not isinstance(name, str) or not name:
        raise UserError(f"{label}: wanted the name of a file, got {json.dumps(name)[:60]}.")
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{label}: {name!r} leads out of the folder {folder}; data may only name files inside of it.")
    if not path.is_file():
        raise UserError(f"{label}: there is no file {path}.")
    return path


def _picture_problem(path: Path) -> str | None:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            picture.verify()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{path.name} is no picture that can be read: {error}"
    return None


def _shapes(path: Path) -> dict[str, list[int]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _latents_problem(path: Path, count: int) -> str | None:
    from safetensors import SafetensorError

    try:
        shapes = _shapes(path)
    except (OSError, SafetensorError) as error:
        return f"{path.name} cannot be read: {error}"
    if "latents" not in shapes:
        return f"{path.name} has no tensor 'latents' but {', '.join(shapes) or 'none'}"
    wrong = {name: shapes[name] for name in ("latents", "noise") if name in shapes and shapes[name][:1] != [count]}
    if wrong:
        return f"wanted {count} rows, one for each score, got {wrong}"
    if "noise" in shapes and shapes["noise"] != shapes["latents"]:
        return f"noise is {shapes['noise']} and latents are {shapes['latents']}"
    return None
