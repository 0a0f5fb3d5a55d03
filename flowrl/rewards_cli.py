"""``flowrl rewards``: which rewards there are, what they say of pictures, whether they work, and how to serve them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from .findings import Finding
    from .reward import RewardSet

rewards_app = typer.Typer(help="The rewards: list, check, score, compare and serve them.", no_args_is_help=True)

Images = Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Files, or folders of PNG, JPEG and WebP.")]
Prompts = Annotated[
    Path | None, typer.Option(help="A prompt file: one prompt for all pictures, or one each, in order of the names.")
]
Names = Annotated[list[str], typer.Option("--reward", help="A reward's name; may be repeated.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Pictures that are scored at once.")]

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_FILE_BYTES, _PIXELS = 2**28, 2**26  # of one picture
_ALIAS = re.compile(r"[A-Za-z0-9_-]+")


@rewards_app.command("list")
def list_rewards(as_json: AsJson = False) -> None:
    """Every installed reward: what it looks at and needs, its range and licence, and what is missing to use it."""
    from . import plugins

    rows = [describe(name) for name in plugins.known("rewards")]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "media", "needs", "range", "better", "gradient", "licence", "installed")
    for row in rows:
        low, high = ("" if end is None else f"{end:g}" for end in row["range"] or (None, None))
        better = "" if row["higher_is_better"] is None else "higher" if row["higher_is_better"] else "lower"
        gradient = "yes" if row["differentiable"] else ""
        cells = (row["name"], row["media"], ", ".join(row["needs"]), f"{low} .. {high}", better, gradient)
        table.add_row(*map(Text, (*cells, row["license"], row["missing"] or "yes")))
    Console().print(table)


@rewards_app.command()
def score(
    images: Images,
    reward: Names,
    prompts: Prompts = None,
    batch_size: BatchSize = 8,
    as_json: AsJson = False,
) -> None:
    """Score pictures. The exit code is 1 if a picture could not be read."""
    rewards, found = _rewards(reward), _read(images, prompts)
    raw = _score(rewards, found, batch_size)
    if as_json:
        typer.echo(json.dumps([_record(row, rewards.names, raw[i]) for i, row in enumerate(found)], indent=2))
    else:
        table = Table("picture", *map(escape, rewards.names))
        for column in table.columns[1:]:
            column.justify = "right"
        for row, values in zip(found, raw.tolist(), strict=True):
            cells = [f"{value:.5g}" for value in values] if row["error"] is None else [row["error"]]
            table.add_row(Text(row["file"]), *map(Text, cells))
        Console().print(table)
    if any(row["error"] for row in found):
        raise typer.Exit(1)


@rewards_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Rewards to check.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every installed one; those without weights are noted.")] = False,
) -> None:
    """Self-test: good and bad pictures separate, batches equal singles, ranges and gradients are as declared, cost."""
    from . import plugins
    from .reward_checks import self_test

    if every == bool(names):
        raise UserError("wanted the names of rewards, or --all; `flowrl rewards list` shows them.")
    chosen = plugins.known("rewards") if every else names or []
    failures = 0
    for name in chosen:
        failures += _show(self_test(name, if_missing="note" if every else "FAIL"))
    if failures:
        Console(stderr=True).print(f"{failures} checks failed.")
        raise typer.Exit(1)


@rewards_app.command()
def compare(
    images: Images, reward: Names, prompts: Prompts = None, batch_size: BatchSize = 8, as_json: AsJson = False
) -> None:
    """Do rewards agree? Spearman's rank correlation of each two on the same pictures; 1 is the same order."""
    if len(reward) < 2:
        raise UserError("wanted two rewards or more to compare, such as --reward jpeg --reward shapes.")
    rewards, found = _rewards(reward), _read(images, prompts)
    for row in found:
        if row["error"]:
            Console(stderr=True).print(Text(f"left out: {row['file']}: {row['error']}"))
    found = [row for row in found if not row["error"]]
    matrix = correlations(rewards.combine(_score(rewards, found, batch_size)))
    if as_json:
        shown = [[None if math.isnan(value) else value for value in row] for row in matrix]
        typer.echo(json.dumps({"rewards": rewards.names, "pictures": len(found), "spearman": shown}, indent=2))
        return
    table = Table(f"{len(found)} pictures", *map(escape, rewards.names))
    for name, values in zip(rewards.names, matrix, strict=True):
        table.add_row(Text(name), *("-" if math.isnan(value) else f"{value:+.3f}" for value in values))
    Console().print(table)


@rewards_app.command()
def serve(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Rewards, or ALIAS=NAME for the URL's end.")],
    option: Annotated[list[str] | None, typer.Option(help="ALIAS.KEY=VALUE, an option of a reward.")] = None,
    host: Annotated[
        str, typer.Option(help="Address; other machines need the token of FLOWRL_REWARD_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    device: Annotated[str | None, typer.Option(help="Where rewards find pictures; the accelerator, if any.")] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 2**28,
    max_pixels: Annotated[int, typer.Option(min=1, help="Pixels of a request.")] = 2**26,
    max_batch: Annotated[int, typer.Option(min=1, help="Pictures of a request.")] = 256,
) -> None:
    """Put rewards behind HTTP, for runs that write `rewards: {"http://127.0.0.1:8000/NAME": 1.0}`."""
    from .reward_protocol import Limits
    from .reward_server import Served, create_app, token_for
    from .reward_server import serve as listen

    token = token_for(host)
    limits = Limits(max_body, max_pixels, max_batch)
    aliases = _aliases(names)
    options = _options(option or [], aliases)
    served = {}
    for alias, name in aliases.items():
        (reward,) = _rewards([name], options.get(alias, {})).rewards
        served[alias] = Served(name, reward, limits, options.get(alias, {}))
    app = create_app(served, limits, token=token, device=device or _accelerator())
    listen(app, host, port)


@rewards_app.command("train-artifact")
def train_artifact(
    data: Annotated[Path, typer.Argument(help="A folder with clean/, and flawed/ if you have labelled pictures.")],
    out: Annotated[Path, typer.Option(help="The .safetensors file to write.")],
    features: Annotated[str | None, typer.Option(help="MODULE:FUNCTION of your own features.")] = None,
    side: Annotated[int, typer.Option(min=24, help="The shorter side that pictures are reduced to.")] = 256,
    seed: Annotated[int, typer.Option(help="Of the split, the flaws and the head.")] = 0,
) -> None:
    """Train a head for the reward `artifact` on your pictures, and print how well it tells a fifth kept out."""
    from . import plugins

    train = plugins.load("rewards", "flowrl.rewards.artifact:train_artifact")
    report = train(data, out, features=features, side=side, seed=seed)
    typer.echo(json.dumps({"out": _plain(out), **report}))


def describe(name: str) -> dict[str, Any]:
    """What a reward declares, without making it; ``missing`` says what to do before it can be made.

    >>> described = describe("jpeg")
    >>> described["range"], described["missing"]
    ([None, 0.0], '')
    """
    from . import plugins

    row: dict[str, Any] = {"name": name, "media": "", "needs": [], "range": None, "higher_is_better": None}
    row |= {"differentiable": None, "license": "", "missing": ""}
    try:
        found = plugins.load("rewards", name)
    except UserError as error:
        return {**row, "missing": str(error)}
    if not hasattr(found, "higher_is_better"):
        return {**row, "media": "function"}
    return {
        **row,
        "media": found.media,
        "needs": sorted(found.needs),
        "range": [end if math.isfinite(end) else None for end in found.range],
        "higher_is_better": found.higher_is_better,
        "differentiable": found.differentiable,
        "license": found.license,
        "missing": _missing(found.extra),
    }


def correlations(scores: Tensor) -> list[list[float]]:
    """Spearman's rank correlation of the columns of `[N, R]`, over the rows that both could score.

    NaN where fewer than three rows remain, or a column is constant.

    >>> import torch
    >>> correlations(torch.tensor([[1.0, 5.0], [2.0, 50.0], [3.0, 500.0]]))
    [[1.0, 1.0], [1.0, 1.0]]
    """
    from scipy.stats import spearmanr

    def one(first: Tensor, second: Tensor) -> float:
        both = ~(first.isnan() | second.isnan())
        first, second = first[both], second[both]
        if len(first) < 3 or first.min() == first.max() or second.min() == second.max():
            return math.nan
        return round(float(spearmanr(first.numpy(), second.numpy()).statistic), 12)

    return [[one(first, second) for second in scores.T] for first in scores.T]


def _missing(extra: str) -> str:
    """The command that installs what an extra of flowrl lacks; empty if it lacks nothing."""
    from importlib import metadata

    from packaging.requirements import Requirement

    if not extra:
        return ""
    for text in metadata.requires("flowrl") or ():
        wanted = Requirement(text)
        if (
            wanted.marker is None
            or wanted.marker.evaluate({"extra": ""})
            or not wanted.marker.evaluate({"extra": extra})
        ):
            continue
        try:
            metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            return f"pip install 'flowrl[{extra}]'"
    return ""


def _rewards(names: Sequence[str], options: dict[str, Any] | None = None) -> RewardSet:
    from .reward import RewardSet

    made = RewardSet.from_config({name: {"weight": 1.0, **(options or {})} for name in names})
    for name, reward in zip(made.names, made.rewards, strict=True):
        if reward.scope != "sample":
            raise UserError(
                f"reward {name!r} needs all pictures of a {reward.scope} at once; name it in a run's rewards or "
                "eval.rewards. It cannot be served, or score a list of files."
            )
    return made


def _read(paths: Sequence[Path], prompts: Path | None) -> list[dict[str, Any]]:
    """File, prompt, metadata, and picture or error of each file."""
    from .data import load_prompts

    files = [file for path in paths for file in _files(path)]
    if not files:
        raise UserError(f"no picture ({', '.join(_SUFFIXES)}) in {', '.join(map(_plain, paths))}.")
    rows = [] if prompts is None else load_prompts(prompts)
    if prompts is not None and len(rows) not in (1, len(files)):
        raise UserError(f"{prompts}: {len(rows)} prompts for {len(files)} pictures; wanted 1, or one a picture.")
    found = []
    for index, file in enumerate(files):
        row = rows[index if len(rows) > 1 else 0] if rows else None
        image, error = _picture(file)
        asked = {"prompt": row.prompt if row else "", "metadata": row.metadata if row else {}}
        found.append({"file": _plain(file), **asked, "image": image, "error": error})
    return found


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES and file.is_file())
    return [path]


def _picture(file: Path) -> tuple[Tensor | None, str | None]:
    """A picture `[3, H, W]`, or why there is none."""
    from .reward_protocol import BadRequest, read_picture

    try:
        if not file.is_file():
            return None, "no such file"
        if file.stat().st_size > _FILE_BYTES:
            return None, f"more than {_FILE_BYTES} bytes"
        return read_picture(file.read_bytes(), _PIXELS), None
    except OSError as error:
        return None, str(error.strerror)
    except BadRequest as error:
        return None, str(error)


def _score(rewards: RewardSet, found: Sequence[dict[str, Any]], batch_size: int) -> Tensor:
    """Raw scores `[N, R]`; pictures of one size that follow one another are scored together."""
    import torch

    from .reward import RewardBatch

    raw = torch.full((len(found), len(rewards.names)), math.nan)
    readable = [index for index, row in enumerate(found) if row["error"] is None]
    for _, same in groupby(readable, key=lambda index: found[index]["image"].shape):
        indices = list(same)
        for start in range(0, len(indices), batch_size):
            part = indices[start : start + batch_size]
            rows = [found[index] for index in part]
            _have_what_is_needed(rewards, rows)
            images = torch.stack([row["image"] for row in rows])
            scores = rewards.score(RewardBatch(images, [r["prompt"] for r in rows], [r["metadata"] for r in rows]))
            raw[part] = scores.raw
            for name, reason in scores.errors.items():
                Console(stderr=True).print(Text(f"{name}: {reason}"))
    return raw


def _have_what_is_needed(rewards: RewardSet, rows: Sequence[dict[str, Any]]) -> None:
    for name, reward in zip(rewards.names, rewards.rewards, strict=True):
        missing = sorted({key for row in rows for key in reward.needs - row["metadata"].keys()})
        if missing:
            raise UserError(
                f"reward {name!r} needs metadata.{missing[0]}; write --prompts with a .jsonl file: "
                f'{{"prompt": ..., "metadata": {{"{missing[0]}": ...}}}}.'
            )


def _record(row: dict[str, Any], names: Sequence[str], values: Tensor) -> dict[str, Any]:
    scores = {n: None if math.isnan(v) else v for n, v in zip(names, values.tolist(), strict=True)}
    return {"file": row["file"], "prompt": row["prompt"], "scores": scores, "error": row["error"]}


def _plain(path: Path) -> str:
    """A path for a terminal or JSON: bytes that are no text, and control characters, as escapes."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _aliases(names: Sequence[str]) -> dict[str, str]:
    """From the last part of the URL to the reward's name."""
    found: dict[str, str] = {}
    for given in names:
        alias, equals, name = given.partition("=")
        if not equals:
            alias, name = given.rpartition(":")[2], given
        if not _ALIAS.fullmatch(alias) or alias == "health":
            raise UserError(f"{given!r}: {alias!r} cannot end a URL; write ALIAS={name}, of letters, digits, _ and -.")
        if alias in found:
            raise UserError(f"{given!r}: {alias!r} is {found[alias]!r} already; write ALIAS={name}.")
        found[alias] = name
    return found


def _options(given: Sequence[str], aliases: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The options of each reward, from ``alias.key=value``."""
    from omegaconf import OmegaConf

    for text in given:
        alias, dot, _ = text.partition(".")
        if not dot or "=" not in text or alias not in aliases:
            raise UserError(f"--option {text!r}: wanted ALIAS.KEY=VALUE, the alias one of {', '.join(aliases)}.")
    found: Any = OmegaConf.to_container(OmegaConf.from_dotlist(list(given)))
    return {alias: dict(options) for alias, options in found.items()}


def _accelerator() -> str:
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if found is None else found.type


def _show(findings: Iterable[Finding]) -> int:
    from .findings import show

    return show(findings)
