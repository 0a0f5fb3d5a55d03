"""The folder that a run leaves behind, as the process with rank 0 writes it.

::

    config.yaml  environment.json  metrics.jsonl  samples/  checkpoints/  adapter/  report.html
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import RunConfig, to_yaml
from .files import whole_file, whole_folder, write_json
from .media import suffix, to_frames, write_frames

PACKAGES = ("flowrl", "torch", "diffusers", "transformers", "accelerate", "peft", "safetensors", "numpy")


EXPORTS = {"lora": "adapter", "full": "model"}
"""The folder of what was trained, by ``fit.train``."""


class RunFolder:
    """Writes the files of a run."""

    def __init__(self, path: Path) -> None:
        """Write below ``path``."""
        self.path = path
        self._metrics = path / "metrics.jsonl"

    def start(self, config: RunConfig, environment: Mapping[str, Any]) -> None:
        """Write the resolved config and the environment."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "stopped.json").unlink(missing_ok=True)
        with whole_file(self.path / "config.yaml") as temporary:
            temporary.write_text(to_yaml(config), encoding="utf8")
        write_json(self.path / "environment.json", environment)

    def log(self, row: Mapping[str, float]) -> None:
        """Append a line to ``metrics.jsonl``; numbers that are not finite become null, since JSON has none."""
        finite = {key: value if math.isfinite(value) else None for key, value in row.items()}
        with self._metrics.open("a", encoding="utf8") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the metrics of later steps than ``step``, and a last line that a killed process left unfinished."""
        if not self._metrics.exists():
            return
        kept = []
        for line in self._metrics.read_text(encoding="utf8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if row["step"] <= step:
                kept.append(line)
        with whole_file(self._metrics) as temporary:
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf8")

    def note_stop(self, step: int, reason: str) -> None:
        """Write why the run stopped itself to ``stopped.json``."""
        write_json(self.path / "stopped.json", {"step": step, "reason": reason})

    def save_samples(
        self, step: int, images: Sequence[Tensor], records: Sequence[Mapping[str, Any]], fps: float | None = None
    ) -> None:
        """Write pictures `[3, H, W]` or clips `[F, 3, H, W]`, uint8, and their records to ``samples/step_000010/``."""
        folder = self.path / "samples" / f"step_{step:06d}"
        if folder.exists():
            return
        with whole_folder(folder) as temporary:
            rows = []
            for number, (image, record) in enumerate(zip(images, records, strict=True)):
                frames = to_frames(image)
                name = f"{number:03d}{suffix(frames)}"
                write_frames(frames, temporary / name, fps)
                rows.append({"file": name, **record})
            write_json(temporary / "prompts.json", rows)


def environment(rewards: Sequence[Mapping[str, Any]], processes: int, device: torch.device) -> dict[str, Any]:
    """Versions, machine and rewards of a run."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "rewards": list(rewards),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the current folder's checkout, marked if files differ from it; None outside of one."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
