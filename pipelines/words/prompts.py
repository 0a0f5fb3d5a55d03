"""Writes the prompt sets of the world of words, ``assets/prompts/words_*.jsonl``: every word once.

python -m flowrl.pipelines.words.prompts --out assets/prompts
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import world


def write(folder: Path) -> list[Path]:
    """Write both sets into ``folder``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = {"words_train.jsonl": world.train_words(), "words_heldout.jsonl": world.held_out_words()}
    for name, words in sets.items():
        rows = [json.dumps({"prompt": world.caption(word)}) + "\n" for word in words]
        (folder / name).write_bytes("".join(rows).encode())
    return [folder / name for name in sets]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Writes the prompt sets of the world of words.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    write(parser.parse_args().out)


if __name__ == "__main__":
    main()
