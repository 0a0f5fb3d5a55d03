"""Trains the bundled ``assets/words-sd3`` from scratch: a genuine, tiny ``StableDiffusion3Pipeline`` that writes words.

    python -m flowrl.pipelines.words.train --out assets/words-sd3

The two stages, sizes and loss are those of :mod:`..shapes.train`, on random strings of three letters; seeded; about 12
minutes on one core of a CPU. Training stops early on purpose, after 500 of 6000 steps: reward tuning needs a model that
is believable and imperfect, and after 1000 steps this one writes every word.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..shapes.train import Log, Schedule, World, train_flow, train_vae
from . import world

WORDS = World("words-sd3", world.SIZE, ("the", "word"), world.sample_word, world.render, world.caption)
"""The letters of a word are one token each, so that a word that was never seen says what to write. Only ``th`` and
``wo`` at its start are one, as parts of ``the`` and ``word``."""


def main() -> None:
    """Run the stages that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/words-sd3"))
    parser.add_argument("--stage", choices=["all", "vae", "flow"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vae-steps", type=int, default=1200)
    parser.add_argument("--stop", type=int, default=500, help="steps of the flow stage")
    parser.add_argument("--pictures", type=int, default=30000)
    parser.add_argument("--minutes", type=float, default=90.0, help="upper bound for the flow stage")
    arguments = parser.parse_args()
    log = Log(arguments.out / "training_log.csv")
    if arguments.stage != "flow":
        train_vae(arguments.out, log, steps=arguments.vae_steps, batch=16, seed=arguments.seed, subject=WORDS)
    if arguments.stage != "vae":
        schedule = Schedule(6000, rate=1.5e-3, minutes=arguments.minutes, stop=arguments.stop, log_every=20)
        options = {"pictures": arguments.pictures, "batch": 64, "seed": arguments.seed, "subject": WORDS}
        train_flow(arguments.out, log, schedule, **options)


if __name__ == "__main__":
    main()
