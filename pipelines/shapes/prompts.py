"""Writes the prompt sets of the shapes world, ``assets/prompts/shapes_*.jsonl``, and of its clips, ``clips_*.jsonl``.

    python -m flowrl.pipelines.shapes.prompts --out assets/prompts

A set has as many singles as counts as relations, so that the mean over its rows is the mean over the kinds, as in
GenEval. The world has few singles: their captions stand in several rows, each of which is a group of its own. Every
object of a held-out caption is a pair of ``world.HELD_OUT_PAIRS``, and no object of a training caption is. The sets of
clips hold every caption once, the paces in turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from ...data import sample_seed
from . import clips, world

TRAIN_ROWS = 972
"""324 rows a kind: every single 18 times, every count 6 times, and 324 of the 1,224 relations once."""
HELD_OUT_ROWS = 96
"""32 rows a kind: every single 5 or 6 times, every count once or twice, and 32 of the 120 relations once."""


def draw(captions: Sequence[str], count: int) -> list[str]:
    """Take ``count`` captions in the order of their hashes, which looks random and is the same everywhere.

    If there are fewer, go round again.

    >>> sorted(draw(["a red cross", "a blue circle"], 4))
    ['a blue circle', 'a blue circle', 'a red cross', 'a red cross']
    """
    order = sorted(captions, key=lambda caption: sample_seed("shapes prompts", caption))
    return [order[index % len(order)] for index in range(count)]


def prompt_rows(*, held_out: bool, count: int) -> list[dict[str, object]]:
    """The rows of a set: singles, counts and relations in turn, so that any first few are of all kinds.

    Args:
        held_out: captions of held-out pairs alone, else captions without any.
        count: rows; a multiple of 12, for three kinds and four relations.

    >>> for row in prompt_rows(held_out=True, count=12)[:3]:
    ...     print(row["metadata"], row["prompt"])
    {'kind': 'single'} a green circle
    {'kind': 'count'} two red squares
    {'kind': 'relation'} a yellow triangle left of a red square
    """
    pools: dict[str, list[str]] = {name: [] for name in ("single", "count", *world.RELATIONS)}
    for scene in world.all_scenes():
        if all((pair in world.HELD_OUT_PAIRS) == held_out for pair in scene.objects):
            pools[scene.relation or scene.kind].append(world.caption(scene))
    share = count // 3
    related = [draw(pools[relation], share // len(world.RELATIONS)) for relation in world.RELATIONS]
    kinds = {
        "single": draw(pools["single"], share),
        "count": draw(pools["count"], share),
        "relation": list(chain.from_iterable(zip(*related, strict=True))),
    }
    return [
        {"prompt": prompts[index], "metadata": {"kind": kind}}
        for index in range(share)
        for kind, prompts in kinds.items()
    ]


def clip_rows(*, held_out: bool) -> list[dict[str, object]]:
    """The rows of a set of clips: every caption once, the paces in turn.

    >>> [row["metadata"]["kind"] for row in clip_rows(held_out=True)[:4]], len(clip_rows(held_out=True))
    (['plain', 'slowly', 'quickly', 'plain'], 72)
    """
    pools: dict[str, list[str]] = {pace: [] for pace in clips.PACES}
    for motion in clips.all_motions():
        if motion.held_out == held_out:
            pools[motion.pace].append(clips.caption(motion))
    kinds = {pace: draw(pool, len(pool)) for pace, pool in pools.items()}
    count = len(kinds["plain"])
    return [
        {"prompt": prompts[index], "metadata": {"kind": pace}}
        for index in range(count)
        for pace, prompts in kinds.items()
    ]


def write(folder: Path) -> list[Path]:
    """Write all sets into ``folder``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    sets = {
        "shapes_train.jsonl": prompt_rows(held_out=False, count=TRAIN_ROWS),
        "shapes_heldout.jsonl": prompt_rows(held_out=True, count=HELD_OUT_ROWS),
        "clips_train.jsonl": clip_rows(held_out=False),
        "clips_heldout.jsonl": clip_rows(held_out=True),
    }
    for name, rows in sets.items():
        (folder / name).write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())
    return [folder / name for name in sets]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Writes the prompt sets of the shapes world.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    for path in write(parser.parse_args().out):
        print(path)


if __name__ == "__main__":
    main()
