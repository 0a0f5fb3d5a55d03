"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_UNFINISHED = ".unfinished-"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, renamed to ``path`` when the block ends well and removed when it does not.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_UNFINISHED}{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _finish(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder, renamed to ``path`` (which must not exist) when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{_UNFINISHED}{path.name}."))
    temporary.chmod(0o777 & ~_umask())
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _finish(file)
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left anywhere below ``folder``."""
    for path in list(folder.rglob(f"{_UNFINISHED}*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole; NaN is refused, since JSON has none."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finish(path: Path) -> None:
    """Make a file readable as any new file is, and see it on the disk."""
    path.chmod(0o666 & ~_umask())  # mkstemp and safetensors make files that only their owner can read
    with path.open("rb") as file:
        os.fsync(file.fileno())
