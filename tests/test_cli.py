"""Tests of the command line: what it passes on, what it prints, and how it refuses bad input."""

import json
import os
import resource
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner, Result

from flowrl import cli, trainer
from flowrl.config import RunConfig, load_config, to_yaml
from flowrl.errors import RunStopped
from flowrl.files import write_json

NEEDY = """
from flowrl.reward import Reward

class Needy(Reward):
    needs = frozenset({"target"})

    def __call__(self, batch):
        return batch.images.mean(dim=(1, 2, 3))
"""

BLIND = """
import torch
from flowrl.reward import Reward, RewardBatch

PICTURE = RewardBatch(torch.zeros(1, 3, 8, 8), ["a"], [{}])

class Blind(Reward):
    def __call__(self, batch):
        return batch.images.mean(dim=(1, 2, 3))

    def examples(self):
        return PICTURE, PICTURE
"""


def invoke(*arguments: object) -> Result:
    """Run a command in this process."""
    # A wide terminal, so that no table breaks what is looked for.
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe that passes every check: the model's folder is a pipeline, but holds no weights."""
    (tmp_path / "train.txt").write_text("a red circle\n")
    (tmp_path / "model" / "scheduler").mkdir(parents=True)
    (tmp_path / "model" / "scheduler" / "scheduler_config.json").write_text("{}")
    (tmp_path / "model" / "model_index.json").write_text(
        '{"scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"]}'
    )
    fields = {
        "output": str(tmp_path / "run"),
        "model": {"path": str(tmp_path / "model")},
        "prompts": str(tmp_path / "train.txt"),
        "eval": {"prompts": "shapes_heldout"},
        "rewards": {"jpeg": 1.0},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


@dataclass
class Bad:
    """Bad input: overrides, what is changed in the folder first, the environment, and parts of the message."""

    wanted: list[str]
    overrides: list[str] = field(default_factory=list)
    change: Callable[[Path], object] = lambda folder: None
    environment: dict[str, str] = field(default_factory=dict)


def append(path: Path, text: str) -> None:
    """Add to a file."""
    path.write_text(path.read_text() + text)


def another_run(folder: Path) -> None:
    """A run's folder, where the output should go."""
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(to_yaml(load_config(folder / "recipe.yaml", ["seed=9"])))


BAD = {
    "unknown key": Bad(["'policy.step=3'", "Did you mean 'steps'?", "Known: kernel, "], ["policy.step=3"]),
    "unknown key in the file": Bad(
        ["recipe.yaml:9: unknown key 'grup_size'", "Did you mean 'group_size'?", "Known: output, "],
        change=lambda folder: append(folder / "recipe.yaml", "grup_size: 8\n"),
    ),
    "unknown reward": Bad(["unknown reward 'shapez'", "Did you mean 'shapes'?", "Known: "], ["rewards.shapez=1"]),
    "unknown objective": Bad(["Did you mean 'grpo'?", "nft"], ["objective=gpro"]),
    "unknown advantage": Bad(["Did you mean 'group'?", "Known: "], ["advantage=groups"]),
    "unknown option": Bad(["objective nft: unknown key 'betta'", "Did you mean 'beta'?"], ["objective.betta=1"]),
    "no recipe": Bad(["no recipe at"], change=lambda folder: (folder / "recipe.yaml").unlink()),
    "no prompt file": Bad(["there is no file 'nowhere.txt'", "shapes_heldout"], ["prompts=nowhere.txt"]),
    "malformed prompt file": Bad(
        ["bad.jsonl:2: prompt: wanted a text"],
        ["prompts=bad.jsonl"],
        lambda folder: (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n'),
    ),
    "group of one": Bad(["group_size is 1: wanted at least 2"], ["group_size=1"]),
    "steps outside the schedule": Bad(["wanted indices from 0 to 9", "[10]"], ["policy.train_steps=[9,10]"]),
    "output of another run": Bad(["holds a run already", "--resume"], change=another_run),
    "foreign output": Bad(
        ["is not empty (thesis.tex)"],
        change=lambda folder: ((folder / "run").mkdir(), (folder / "run" / "thesis.tex").touch()),
    ),
    "no scheduler": Bad(
        ["names no scheduler"], change=lambda folder: (folder / "model" / "model_index.json").write_text('{"vae": 1}')
    ),
    "no scheduler folder": Bad(
        ["no scheduler/scheduler_config.json"], change=lambda folder: shutil.rmtree(folder / "model" / "scheduler")
    ),
    "no model": Bad(["is no folder", "no hub id"], ["model.path=./nowhere"]),
    "model offline": Bad(["HF_HUB_OFFLINE", "hf download org/no-such"], ["model.path=org/no-such"]),
    "metadata missing": Bad(
        ["train.txt:1: metadata.target: missing"],
        ["rewards={'needy.py:Needy': 1}"],
        lambda folder: (folder / "needy.py").write_text(NEEDY),
    ),
    "launcher's precision": Bad(["write model.dtype: bfloat16"], environment={"ACCELERATE_MIXED_PRECISION": "bf16"}),
}


def everything(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder, but for what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


def is_one_message(text: str, wanted: list[str]) -> None:
    """The message holds what is wanted, in one paragraph, without a traceback."""
    assert [part for part in wanted if part not in text] == []
    assert "Traceback" not in text
    assert "\n\n" not in text.strip()


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bad_input(bad, recipe, tmp_path, monkeypatch):
    """Exit code 2, one message on stderr, nothing on stdout, nothing written."""
    monkeypatch.chdir(tmp_path)
    for name, value in bad.environment.items():
        monkeypatch.setenv(name, value)
    bad.change(tmp_path)
    before = everything(tmp_path)
    result = invoke("train", recipe, *bad.overrides)
    assert result.exit_code == 2
    is_one_message(result.stderr, bad.wanted)
    assert result.stdout == ""
    assert everything(tmp_path) == before
    assert (tmp_path / "run").exists() == any(str(tmp_path / "run") in path for path in before)


# Two in every run of the tests, one found in the recipe and one in the files; the others when there is time.
QUICK = ("unknown key", "no scheduler")


@pytest.mark.parametrize(
    "bad",
    [pytest.param(bad, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, bad in BAD.items()],
)
def test_bad_input_in_a_process_of_its_own(bad, recipe, tmp_path):
    """``python -m flowrl train`` does the same."""
    bad.change(tmp_path)
    before = everything(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "flowrl", "train", str(recipe), *bad.overrides],
        cwd=tmp_path,
        env={**os.environ, **bad.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    is_one_message(done.stderr, bad.wanted)
    assert everything(tmp_path) == before


def test_no_disk_space(recipe, tmp_path, monkeypatch):
    """A full disk is found before the run starts."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    result = invoke("train", recipe)
    assert result.exit_code == 2
    is_one_message(result.stderr, ["has 1 MB free", "keep_checkpoints: 1"])
    assert not (tmp_path / "run").exists()


def test_messages_are_not_markup(recipe, tmp_path):
    """What looks like Rich's markup in a user's text is printed as it stands."""
    result = invoke("train", recipe, "prompts=[bold]x[/bold].txt")
    assert "[bold]x[/bold].txt" in result.stderr or "prompts" in result.stderr
    result = invoke("train", tmp_path / "[red]no[/red].yaml")
    assert "[red]no[/red].yaml" in result.stderr


def test_a_run_that_stops_itself(recipe, monkeypatch):
    """Exit code 3 and the diagnosis."""

    def stop(config: RunConfig, resume: bool) -> Path:
        raise RunStopped("no learning signal for 3 steps in a row")

    monkeypatch.setattr(trainer, "train", stop)
    result = invoke("train", recipe)
    assert result.exit_code == 3
    is_one_message(result.stderr, ["no learning signal"])


def test_other_processes_say_who_they_are(recipe, monkeypatch):
    """Under a launcher, each process says what it finds, for it may be the only one; the first speaks for the run."""
    monkeypatch.setenv("RANK", "1")
    result = invoke("train", recipe, "group_size=1")
    assert result.exit_code == 2
    assert result.stderr.startswith("[process 1] ")


@pytest.mark.parametrize(("processes", "started"), [((), [3]), (("--processes", "2"), [2]), (("--processes", "1"), [])])
def test_demo_starts_its_processes(processes, started, recipe, tmp_path, calls, monkeypatch):
    """One a core by default, or as many as are asked for; with one, it trains itself."""
    found = []
    monkeypatch.setattr("flowrl.launch.processes_for_cores", lambda limit: 3)
    monkeypatch.setattr("flowrl.launch.run_together", found.append)
    place = ("--output", tmp_path / "demo", f"model.path={recipe.parent / 'model'}")
    assert invoke("demo", *processes, *place).exit_code == 0
    assert found == started
    assert len(calls) == (0 if started else 1)


def test_a_mistake_starts_no_processes(recipe, tmp_path, monkeypatch):
    """It is found, and said once, before there are several to say it."""
    monkeypatch.setattr("flowrl.launch.run_together", lambda count: pytest.fail("started"))
    result = invoke("demo", "--processes", "2", "--output", tmp_path / "demo", "model.path=nowhere")
    assert result.exit_code == 2
    assert result.stderr.count("model.path") == 1


@pytest.fixture
def calls(monkeypatch) -> list[tuple[RunConfig, bool]]:
    """What `train` was called with; it leaves the folder of a finished run."""
    found: list[tuple[RunConfig, bool]] = []

    def train(config: RunConfig, resume: bool = False) -> Path:
        found.append((config, resume))
        finished_run(config)
        return config.output

    monkeypatch.setattr(trainer, "train", train)
    return found


def finished_run(config: RunConfig) -> None:
    """Two evaluations of one prompt, scored 0 and then 1."""
    run = config.output
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(config))
    lines = []
    for step, score in ((0, 0.0), (4, 1.0)):
        folder = run / "samples" / f"step_{step:06d}"
        folder.mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), step * 20, np.uint8)).save(folder / "000.png")
        record = {
            "file": "000.png",
            "prompt": "a [red] circle",
            "row": 0,
            "sample": 0,
            "seed": 1,
            "scores": {"jpeg": score},
        }
        write_json(folder / "prompts.json", [record])
        lines.append(f'{{"step": {step}, "time": {step}, "eval/jpeg/mean": {score}, "denoiser_calls": {step * 10}}}\n')
    (run / "metrics.jsonl").write_text("".join(lines))
    write_json(run / "environment.json", {"rewards": [{"name": "jpeg", "higher_is_better": True}]})


def test_train(recipe, tmp_path, calls):
    """The config with its overrides reaches the trainer, options may stand anywhere, and the places are printed."""
    result = invoke("train", recipe, "max_steps=3", "--resume", "policy.steps=4")
    assert (result.exit_code, result.stderr) == (0, "")
    ((config, resume),) = calls
    assert (config.max_steps, config.policy.steps, resume) == (3, 4, True)
    for place in ("samples", "report.html", "adapter/pytorch_lora_weights.safetensors"):
        assert str(tmp_path / "run" / place) in result.stdout


@pytest.mark.parametrize("objective", ["nft", "grpo"])
def test_demo(objective, recipe, tmp_path, calls):
    """The bundled recipe is run from the installed package, and before and after are shown."""
    result = invoke(
        "demo",
        "--processes",
        1,
        "--objective",
        objective,
        "--output",
        tmp_path / "demo",
        "max_steps=7",
        f"model.path={recipe.parent / 'model'}",
    )
    assert (result.exit_code, result.stderr) == (0, "")
    ((config, resume),) = calls
    assert (config.objective.name, config.max_steps, config.output, resume) == (objective, 7, tmp_path / "demo", False)
    table = [line for line in result.stdout.splitlines() if "jpeg" in line]
    assert len(table) == 1
    assert "+1" in table[0]
    for place in ("compare.png", "samples", "report.html", "adapter"):
        assert str(tmp_path / "demo" / place) in result.stdout.replace("\n", "")


def test_demo_has_no_other_objective(tmp_path):
    """Only objectives with a bundled recipe are offered."""
    result = invoke("demo", "--objective", "dpo", "--output", tmp_path / "demo")
    assert result.exit_code == 2
    assert "dpo" in result.stderr
    assert not (tmp_path / "demo").exists()


def test_only_the_first_process_prints(recipe, tmp_path, calls, monkeypatch):
    """The other processes of a run stay silent."""
    monkeypatch.setenv("RANK", "1")
    assert invoke("demo", "--output", tmp_path / "demo", f"model.path={recipe.parent / 'model'}").stdout == ""
    assert invoke("train", recipe).stdout == ""


def test_compare_and_report(recipe, tmp_path):
    """Both read a run's folder and say where they wrote."""
    finished_run(load_config(recipe))
    run = tmp_path / "run"
    result = invoke("compare", run)
    assert result.exit_code == 0
    assert "base model" in result.stdout
    assert (run / "compare.png").is_file()
    result = invoke("report", run)
    assert result.exit_code == 0
    assert str(run / "report.html") in result.stdout
    assert (run / "report.html").is_file()


@pytest.mark.parametrize("command", ["compare", "report", "sample"])
def test_folders_that_are_no_run(command, tmp_path):
    """A wrong folder is one message, and is left as it is."""
    result = invoke(command, tmp_path)
    assert result.exit_code == 2
    is_one_message(result.stderr, [str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_sample(monkeypatch, tmp_path):
    """Prompts, settings and switches reach `flowrl.sample`, and the files are listed."""
    from flowrl import sample

    seen = {}

    def find_source(folder, overrides, *, ema):
        seen["source"] = (folder, overrides, ema)
        return "source"

    def draw(source, prompts, output, *, base):
        seen["draw"] = (source, prompts, output, base)
        return [output / "000_seed_0.png"]

    monkeypatch.setattr(sample, "find_source", find_source)
    monkeypatch.setattr(sample, "draw", draw)
    result = invoke(
        "sample", tmp_path, "steps=5", "--prompt", "a", "--prompt", "b", "--base", "--output", tmp_path / "out"
    )
    assert result.exit_code == 0
    assert seen["source"] == (tmp_path, ["steps=5"], False)
    assert seen["draw"] == ("source", ["a", "b"], tmp_path / "out", True)
    assert result.stdout.strip() == str(tmp_path / "out" / "000_seed_0.png")


def test_doctor(recipe):
    """A healthy recipe exits with 0 and shows each reward's two scores."""
    result = invoke("doctor", recipe)
    assert result.exit_code == 0
    assert "positive -0." in result.stdout
    assert "torch" in result.stdout


def test_doctor_finds_a_sick_reward(recipe, tmp_path):
    """A reward that does not separate its own examples makes the command fail."""
    (tmp_path / "blind.py").write_text(BLIND)
    result = invoke("doctor", recipe, f"rewards={{'{tmp_path / 'blind.py'}:Blind': 1}}")
    assert result.exit_code == 1
    assert "1 checks failed" in result.stderr
    assert "no separation" in result.stdout


def test_bench(monkeypatch, recipe, tmp_path):
    """What to measure, on which run, how often, and where the numbers go, is passed on."""
    seen = []
    module = types.SimpleNamespace(main=lambda *arguments, **options: seen.append((arguments, options)))
    monkeypatch.setitem(sys.modules, "flowrl.bench", module)
    assert invoke("bench", "--what", "rollout", "--what", "replay").exit_code == 0
    assert invoke("bench", recipe, "seed=5", "--repeats", 3, "--json", tmp_path / "n.json").exit_code == 0
    assert seen == [
        ((["rollout", "replay"], None), {"repeats": 9, "json": None}),
        (([], load_config(recipe, ["seed=5"])), {"repeats": 3, "json": tmp_path / "n.json"}),
    ]


def test_help_names_every_command():
    """``flowrl --help``, and ``flowrl`` alone, say what there is."""
    shown = invoke("--help").stdout
    assert [
        name for name in ("train", "sample", "compare", "report", "doctor", "demo", "bench") if name not in shown
    ] == []
    assert "Commands" in invoke().output


def test_help_is_there_at_once(tmp_path):
    """``flowrl --help`` costs less than a second of a processor, whatever else the machine does meanwhile."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    subprocess.run([sys.executable, "-m", "flowrl", "--help"], cwd=tmp_path, check=True, capture_output=True)
    assert spent() - before < 1


def test_pipelines_list():
    """A table of the classes that were checked, or JSON with the outcome of each check."""
    shown = invoke("pipelines", "list")
    assert shown.exit_code == 0
    assert "StableDiffusion3Pipeline" in shown.stdout
    assert "text to image" in shown.stdout
    rows = json.loads(invoke("pipelines", "list", "--json").stdout)["classes"]
    (row,) = (row for row in rows if row["name"] == "StableDiffusion3Pipeline")
    assert (row["scheduler"], row["presets"], row["checks"]["exact_replay"]) == ("flow", ["sd3"], "passed")


def test_pipelines_show():
    """A class's presets, each setting with its source; an unknown class comes with the nearest."""
    shown = invoke("pipelines", "show", "FluxPipeline")
    assert shown.exit_code == 0
    assert "preset flux, schnell, where transformer/config.json has guidance_embeds false" in shown.stdout
    assert "    noise_level: 0.8" in shown.stdout
    assert "https://github.com/yifan123/flow_grpo" in shown.stdout
    wrong = invoke("pipelines", "show", "FluxPipelin")
    assert wrong.exit_code == 2
    assert "Did you mean 'FluxPipeline'?" in wrong.output


def test_pipelines_list_imports_no_torch(tmp_path):
    """The table is read from a file."""
    script = "import sys; from flowrl.cli import app; app(['pipelines', 'list'], standalone_mode=False)"
    script += "; sys.exit(bool({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
