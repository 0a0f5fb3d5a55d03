"""``flowrl data``: make and check preference data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

data_app = typer.Typer(help="Make and check preference data.", no_args_is_help=True)


@data_app.command()
def make(
    config: Annotated[Path, typer.Argument(help="A recipe: its model, prompts, sampling and rewards are used.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes such as policy.steps=12.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the data.")] = Path("preferences"),
    groups: Annotated[int, typer.Option(min=1, help="Prompts to draw a group of pictures for.")] = 100,
) -> None:
    """Draw groups of pictures, score them, keep latents and initial noise; goes on if cut off."""
    from .config import load_config
    from .make_data import make as draw

    _print(str(draw(load_config(config, overrides or []), out, groups, _print)))


@data_app.command()
def check(path: Annotated[Path, typer.Argument(help="A .jsonl file, or a folder.")]) -> None:
    """Read everything that preference data names; every mistake with its file, line and field."""
    from .preferences import has_noise, mistakes, sizes

    groups, wrong = mistakes(path)
    for line in wrong:
        _print(line)
    counts = ", ".join(map(str, sorted(sizes(groups)))) or "no"
    noise = "" if wrong or not groups or not has_noise(groups) else ", with the noise they were drawn from"
    _print(f"{len(groups)} groups of {counts} pictures{noise}; {len(wrong)} mistakes.")
    if wrong or not groups:
        raise typer.Exit(2)


def _print(text: str) -> None:
    Console(soft_wrap=True).print(Text(text))
