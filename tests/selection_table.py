"""The tables of ``docs/step_selection.md``: ``python -m tests.selection_table`` writes them anew.

The first shows the indices that selections return; the second counts denoiser calls of an optimizer step on the bundled
model, which takes two minutes or so. The third compares what selections reach with as many denoiser calls; it takes
more than an hour of a core: ``python -m tests.selection_table --reached FOLDER`` makes it, with the runs in FOLDER. Cut
off and started again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from accelerate import Accelerator

from flowrl.bench import bundled_recipe
from flowrl.config import PolicyConfig
from flowrl.data import sample_seed
from flowrl.preflight import make_selection, preflight
from flowrl.selection import stand_in
from flowrl.trainer import Trainer, train

PAGE = Path(__file__).parent.parent / "docs" / "step_selection.md"
STEPS = 10
TRAINING_STEPS = (0, 1, 2, 25, 50, 150)

SELECTIONS = (
    "all",
    "2",
    "[0, 3, 6]",
    "{name: fraction, share: 0.6}",
    "{name: window, start: 0, size: 3}",
    "{name: random_window, size: 2, high: 5}",
    "{name: sliding, size: 4}",
    "{name: sliding, size: 4, shift: 4, interval: 1}",
    "{name: sliding, size: 4, schedule: decay}",
    "{name: sliding, size: 4, schedule: random}",
)
"""Values of ``policy.train_steps``, as a recipe writes them."""

BRANCHES = (
    ("all", None),
    ("{name: fraction, share: 0.6}", None),
    ("2", None),
    ("{name: sliding, size: 4}", None),
    ("{name: window, start: 2, size: 1}", None),
    ("{name: window, start: 2, size: 1}", "{}"),
    ("1", None),
    ("1", "{}"),
    ("{name: sliding, size: 3, interval: 1}", None),
    ("{name: sliding, size: 3, interval: 1}", "{}"),
    ("[0, 3, 6]", "{}"),
    ("all", "{at: [0, 2, 4]}"),
    ("all", "{at: [2]}"),
)
"""Values of ``policy.train_steps`` and ``policy.branch``."""


LEARNERS = (
    ("all", None),
    ("[0, 1, 2, 3]", None),
    ("2", None),
    ("{name: sliding, size: 4, shift: 1, interval: 5}", None),
    ("[0, 1, 2, 3]", "{at: [0, 1, 2]}"),
    ("1", "{}"),
)
"""Values of ``policy.train_steps`` and ``policy.branch`` that are trained."""
BUDGET = 120_000
"""Denoiser calls of each of these runs."""
JUDGES = ("shapes", "shapes_partial")


def indices() -> str:
    """What each selection trains in a schedule of ten steps, at some training steps of a run with seed 0."""
    rows = []
    for text in SELECTIONS:
        chosen = make_selection(_policy(text))
        found = [chosen.select(step, sample_seed("window", 0, step), stand_in(STEPS)) for step in TRAINING_STEPS]
        rows.append([f"`{text}`", *(" ".join(map(str, train)) for _, train in found)])
    return _table(["`train_steps`", *(f"step {step}" for step in TRAINING_STEPS)], rows)


def calls(overrides: tuple[str, ...] = ("groups_per_step=16", "group_size=8")) -> str:
    """Samples through the denoiser in one optimizer step of the bundled GRPO recipe, counted."""
    rows, most = [], 0.0
    for train_steps, branch in BRANCHES:
        rollout, update = count([*overrides, *_change(train_steps, branch)])
        most = most or rollout + update
        share = f"{100 * (rollout + update) / most:.0f} %"
        rows.append([f"`{train_steps}`", f"`{branch}`" if branch else "", f"{rollout}", f"{update}", share])
    return _table(["`train_steps`", "`branch`", "rollout", "update", "of all steps"], rows)


def count(overrides: list[str]) -> tuple[int, int]:
    """Denoiser calls of the rollouts and of the update of a run's first training step."""
    with TemporaryDirectory() as folder:
        config = bundled_recipe([f"output={folder}/run", "trackers=[]", *overrides])
        checked = preflight(config)
        trainer = Trainer(checked.resolved.config, checked, Accelerator(cpu=True))
        seen: list[int] = []
        update = trainer._update

        def listened(*arguments: Any) -> dict[str, float]:
            seen.append(trainer.policy.denoiser_calls)
            return update(*arguments)

        trainer._update = listened  # type: ignore[method-assign]
        total = int(trainer.step()["denoiser_calls"])
    return seen[0], total - seen[0]


def reached(folder: Path) -> str:
    """What both judges give held-out prompts before and after :data:`BUDGET` denoiser calls of each selection."""
    rows = []
    for number, (train_steps, branch) in enumerate(LEARNERS):
        change = ["eval.every=0", "eval.samples_per_prompt=4", *_change(train_steps, branch)]
        ends_at = [f"max_denoiser_calls={BUDGET}", f"max_steps={BUDGET}"]
        config = bundled_recipe([f"output={folder / str(number)}", "trackers=[]", *ends_at, *change])
        if not (config.output / "adapter").is_dir():
            train(config, resume=True)
        log = [json.loads(line) for line in (config.output / "metrics.jsonl").read_text(encoding="utf8").splitlines()]
        ends = [f"{row[f'eval/{judge}/mean']:.3f}" for judge in JUDGES for row in (log[0], log[-1])]
        calls_made = f"{log[-1]['denoiser_calls']:,.0f}"
        rows.append([f"`{train_steps}`", f"`{branch}`" if branch else "", f"{log[-1]['step']:.0f}", calls_made, *ends])
    head = ["`train_steps`", "`branch`", "optimizer steps", "denoiser calls"]
    return _table([*head, *(f"`{judge}` {when}" for judge in JUDGES for when in ("before", "after"))], rows)


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reached", type=Path, metavar="FOLDER", help="make the third table, and the others not")
    folder = parser.parse_args().reached
    tables = {"reached": reached(folder)} if folder else {"indices": indices(), "calls": calls()}
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, table=table: found[1] + table + found[2],
            text,
            flags=re.DOTALL,
        )
    PAGE.write_text(text, encoding="utf-8")


def _change(train_steps: str, branch: str | None) -> list[str]:
    return [f"policy.train_steps={train_steps}", *([] if branch is None else [f"policy.branch={branch}"])]


def _policy(train_steps: str) -> PolicyConfig:
    return bundled_recipe([f"policy.train_steps={train_steps}", f"policy.steps={STEPS}"]).policy


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    main()
