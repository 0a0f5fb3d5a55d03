"""The command line. Commands import what they need when they run, so that ``flowrl --help`` is there at once.

Exit codes: 0 done; 1 a failure, also one that ``doctor`` found; 2 a user's mistake, in one message; 3 the run stopped
itself, with its diagnosis.
"""

from __future__ import annotations

import os
from enum import Enum
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from .data_cli import data_app
from .errors import RunStopped, UserError
from .rewards_cli import rewards_app

if TYPE_CHECKING:
    from .config import RunConfig
    from .report import Comparison


class _Commands(TyperGroup):
    """Turns the errors that flowrl raises on purpose into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            _complain(error)
            raise typer.Exit(2) from None
        except RunStopped as error:
            _complain(error)
            raise typer.Exit(3) from None


app = typer.Typer(
    cls=_Commands,
    help="Reward tuning for diffusion and flow-matching generators: any pipeline, any reward, out comes a LoRA.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


pipelines_app = typer.Typer(help="Which pipeline classes are policies, and with which settings.", no_args_is_help=True)
app.add_typer(pipelines_app, name="pipelines")
app.add_typer(rewards_app, name="rewards")
app.add_typer(data_app, name="data")


class DemoObjective(str, Enum):
    """Objectives that have a bundled recipe."""

    nft = "nft"
    grpo = "grpo"


class DemoWorld(str, Enum):
    """Bundled models."""

    sd3 = "sd3"
    sd = "sd"
    wan = "wan"


Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example policy.steps=12.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A recipe, such as configs/shapes_nft.yaml.")],
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint, if any.")] = False,
) -> None:
    """Train a LoRA. Several processes: accelerate launch --num_processes N -m flowrl train ..."""
    from .config import load_config
    from .launch import processes_asked

    recipe = load_config(config, overrides or [])
    if not _elsewhere(recipe, resume, processes_asked()):
        _where_it_lies(_train(recipe, resume))


@app.command()
def demo(
    overrides: Overrides = None,
    world: Annotated[
        DemoWorld, typer.Option(help="Which bundled model: sd3 (flow), sd (UNet, noise prediction) or wan (video).")
    ] = DemoWorld.sd3,
    objective: Annotated[DemoObjective, typer.Option(help="Which bundled recipe.")] = DemoObjective.nft,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder; runs/demo_nft and the like by default.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="On a CPU; one a core by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint, if any.")] = False,
) -> None:
    """Teach a bundled model to draw what a caption says: on a laptop, offline, in minutes."""
    from .config import load_config
    from .launch import processes_for_cores

    name = _demo_recipe(world, objective)
    folder = output or Path("runs") / f"demo_{name}"
    with as_file(files("flowrl.configs") / f"shapes_{name}.yaml") as path:
        recipe = load_config(path, [f"output={folder}", *(overrides or [])])
    batches = recipe.groups_per_step * recipe.group_size // recipe.micro_batch_size
    if _elsewhere(recipe, resume, processes or processes_for_cores(limit=batches)):
        return
    run = _train(recipe, resume)
    if _main_process():
        _compare(run)
        _where_it_lies(run)


@app.command()
def sample(
    source: Annotated[Path, typer.Argument(help="The folder of a run, or of a LoRA.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="For example steps=40, seed=3, samples_per_prompt=4, model.path=..."
        ),
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt or a prompt file; may be repeated.")] = None,
    output: Annotated[Path, typer.Option(help="The folder of the PNG files.")] = Path("samples"),
    base: Annotated[bool, typer.Option("--base", help="Also draw with the base model, from the same noise.")] = False,
    ema: Annotated[bool, typer.Option("--ema", help="The averaged weights of a run.")] = False,
) -> None:
    """Draw pictures with a trained LoRA and the pipeline's stock sampler."""
    from .sample import draw, find_source, read_prompts

    found = find_source(source, overrides or [], ema=ema)
    for path in draw(found, read_prompts(prompt or []), output, base=base):
        _print(str(path))


@app.command()
def compare(run: Run) -> None:
    """Before and after: compare.png (of clips compare.webp), and a table of the first and the last evaluation."""
    _compare(run)


@app.command()
def report(run: Run) -> None:
    """Write report.html again, for instance while the run is still going."""
    from .report import write_report

    _print(str(write_report(run)))


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="A recipe; without one, every installed reward is asked.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Check the installation, the machine, a recipe, and that each reward tells a good picture from a bad one."""
    from .config import load_config

    recipe = load_config(config, overrides or []) if config else None
    from .doctor import diagnose
    from .findings import show

    failures = show(diagnose(recipe))
    if failures:
        Console(stderr=True).print(f"{failures} checks failed.")
        raise typer.Exit(1)


@app.command()
def bench(
    config: Annotated[Path | None, typer.Argument(help="A recipe; without one, the bundled one for GRPO.")] = None,
    overrides: Overrides = None,
    what: Annotated[list[str] | None, typer.Option(help="A measurement; may be repeated; without one, all.")] = None,
    repeats: Annotated[int, typer.Option(help="How often each quantity is measured.")] = 9,
    json: Annotated[Path | None, typer.Option(help="A file for the numbers.")] = None,
) -> None:
    """Measure what flowrl costs over the bare pipeline, and how fast a training step is."""
    from .config import load_config

    recipe = load_config(config, overrides or []) if config else None
    from .bench import main as run_benchmarks

    run_benchmarks(what or [], recipe, repeats=repeats, json=json)


@app.command()
def plan(
    config: Annotated[Path, typer.Argument(help="A recipe.")],
    overrides: Overrides = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share a step.")] = 1,
) -> None:
    """What a training step will cost: denoiser calls, operations, and the peak memory, term by term."""
    from .config import load_config

    recipe = load_config(config, overrides or [])
    from .plan import plan as make_plan
    from .plan import show

    show(make_plan(recipe, processes))


@app.command()
def study(
    config: Annotated[Path, typer.Argument(help="A study, such as configs/studies/objectives.yaml.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The Markdown page of the table.")] = Path("docs/results.md"),
    results: Annotated[
        Path | None, typer.Option(help="The folder of the curves; beside the page, named as the study, by default.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A row; may be repeated; without one, all.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every row, and train nothing.")] = False,
) -> None:
    """Train recipes side by side with the same budget of denoiser calls, and write their table; goes on if cut off."""
    from .study import Study, check, run_all, write_page

    asked = Study.read(config, overrides or [])
    curves = results or out.parent / "results" / config.stem
    runs = Path("runs/studies") / config.stem
    left = check(asked, asked.chosen(only or []), runs, curves)
    _print(f"left to run: {', '.join(f'{row} (seed {seed})' for row, seed in left) or 'nothing'}")
    if not dry_run:
        run_all(asked, left, runs, curves, _print)
        write_page(asked, curves, out)
        _print(f"{'table:':10}{out}")


@pipelines_app.command("list")
def list_pipelines(
    as_json: Annotated[bool, typer.Option("--json", help="JSON, with the outcome of each check.")] = False,
) -> None:
    """Every class that was checked: its task, its kind of scheduler, the checks that it passed, its presets."""
    from .support import read

    support = read()
    if as_json:
        _print_json(support.as_json())
        return
    table = Table("class", "task", "scheduler", "checks", "preset")
    for row in support.rows:
        checks = f"{row.passed} of {len(row.checks)}" + "".join(f", not {check}" for check in row.others)
        table.add_row(*map(Text, (row.name, row.task, row.scheduler, checks, "; ".join(row.presets))))
    Console().print(table)
    _print(f"{len(support.rows)} classes, checked on tiny random models with diffusers {support.diffusers}.")
    for name, reason in support.refused.items():
        _print(f"{name} cannot be a policy: {reason}.")


@pipelines_app.command("show")
def show_pipeline(
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Such as StableDiffusion3Pipeline.")],
) -> None:
    """The presets of a class: each setting with its source."""
    from .support import find

    row, found = find(name)
    if row is not None:
        _print(f"{name}: {row.task}, {row.scheduler} scheduler; checks passed: {row.passed} of {len(row.checks)}")
        for check in row.others:
            _print(f"  {check}: {row.checks[check]}")
    if not found:
        _print("It has no preset: a run warns of what it guesses.")
    for preset in found:
        _print(f"\npreset {preset.name}" + (f", where {preset.when.text}" if preset.when else ""))
        if preset.notes:
            _print(preset.notes)
        for source in dict.fromkeys(setting.source for setting in preset.sourced().values()):
            _print(f"  {source}")
            for field, setting in preset.sourced().items():
                if setting.source == source:
                    _print(f"    {field}: {_plain(setting.value)}")


def main() -> None:
    """Run the command line."""
    app(prog_name="flowrl")


def _demo_recipe(world: DemoWorld, objective: DemoObjective) -> str:
    """What stands between ``shapes_`` and ``.yaml`` in the name of a bundled recipe."""
    name = objective.value if world is DemoWorld.sd3 else f"{world.value}_{objective.value}"
    if not (files("flowrl.configs") / f"shapes_{name}.yaml").is_file():
        raise UserError(f"there is no recipe for --world {world.value} with --objective {objective.value}; write nft.")
    return name


def _elsewhere(config: RunConfig, resume: bool, processes: int) -> bool:
    """Run this command in several processes, if it should be and is not yet; mistakes are found before, once."""
    if processes < 2 or "RANK" in os.environ:
        return False
    from .launch import run_together
    from .preflight import check_files

    check_files(config, resume)
    run_together(processes)
    return True


def _train(config: RunConfig, resume: bool) -> Path:
    from .preflight import check_files

    check_files(config, resume)  # the trainer checks these too, but only after its slow imports
    from .trainer import train as run

    return run(config, resume)


def _main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _complain(error: Exception) -> None:
    rank = "" if _main_process() else f"[process {os.environ['RANK']}] "
    # Text, not a string: what a user wrote may look like Rich's markup.
    Console(stderr=True, soft_wrap=True).print(Text(f"{rank}{error}", style="red"))


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _print(text: str) -> None:
    Console(soft_wrap=True).print(Text(text))


def _where_it_lies(run: Path) -> None:
    if not _main_process():
        return
    from .sample import WEIGHTS_FILE

    whole = (run / "model").is_dir()
    for what, path in {
        "pictures": run / "samples",
        "report": run / "report.html",
        **({"model": run / "model"} if whole else {"LoRA": run / "adapter" / WEIGHTS_FILE}),
    }.items():
        _print(f"{what + ':':10}{path}")


def _compare(run: Path) -> None:
    from .report import compare as write_comparison

    _show_comparison(write_comparison(run))


def _show_comparison(comparison: Comparison) -> None:
    table = Table("", comparison.before, comparison.after, "change")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in comparison.rows:
        table.add_row(*map(Text, row.cells()))
    Console().print(table)
    if comparison.grid is not None:
        _print(f"{'grid:':10}{comparison.grid}")
