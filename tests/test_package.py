"""The package as a whole: what the wheel holds, what an import costs, which way imports point, sizes, documentation."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from flowrl import plugins
from flowrl.catalogue import parts_of

if sys.version_info >= (3, 11):
    import tomllib
else:  # 3.10 has no TOML reader of its own; pytest brings this one there
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]
CODE = ("flowrl", "pipelines", "rewards")
SOURCES = [path.relative_to(ROOT).as_posix() for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
RECIPES = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
SLOW_IMPORTS = ("open_clip", "transformers", "diffusers", "wandb", "matplotlib", "tensorboard", "scipy")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(source: str) -> ast.Module:
    """The syntax tree of a file of ours."""
    return ast.parse((ROOT / source).read_text(encoding="utf-8"), filename=source)


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """Every function and method, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def public_of(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """The public classes, functions and methods, with their dotted names."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public_of(child, f"{prefix}{child.name}.")


def untyped_arguments(function: Function) -> list[str]:
    """The arguments without a type, ``self`` and ``cls`` aside."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return [item.arg for item in named if item.annotation is None and item.arg not in ("self", "cls")]


def imports_of(source: str) -> Iterator[str]:
    """The absolute name of every module that a file imports, ``from a import b`` as ``a.b``."""
    package = source.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parent = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{parent}.{alias.name}" for alias in node.names)


def python(*arguments: str, executable: str | Path = sys.executable, cwd: Path) -> str:
    """What a fresh interpreter prints; its error output is shown when it fails."""
    done = subprocess.run([executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy: a build inside the tree could pick up what an earlier build left there."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in sorted(set(FOLDERS.values())):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source), cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel, and sees today's dependencies but no editable install.

    The dependencies come by a ``.pth`` line: a folder named in one is searched, but its own ``.pth`` files, where an
    editable install hooks in, are not run.
    """
    folder = tmp_path_factory.mktemp("environment")
    python("-m", "venv", "--without-pip", str(folder / "venv"), cwd=folder)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    dependencies = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join(dependencies), encoding="utf-8")
    executable = folder / "venv" / "bin" / "python"
    # `--target`, not `pip --python`: Python 3.10 may bring a pip that is too old for the latter.
    python("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=folder)
    return executable


def test_every_file_of_the_tree_is_in_the_wheel(wheel: Path) -> None:
    """The wheel holds each source file, prompt list, recipe and model file, below ``flowrl``, and nothing else."""
    wanted = {
        (Path(package.replace(".", "/")) / path.relative_to(ROOT / folder)).as_posix()
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".png"  # the README's pictures
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert wanted - held == set(), "not in the wheel: add their pattern to package-data in pyproject.toml"
    assert held - wanted == set()


def test_wheel_works_outside_the_tree(clean: Path, tmp_path: Path) -> None:
    """In a clean environment the packages import from the wheel, and the bundled data files can be read."""
    script = """
import pathlib, sys
from importlib.resources import files
import flowrl, flowrl.rewards.shapes, flowrl.pipelines.shapes.world, flowrl.configs, flowrl.assets
for module in (flowrl, flowrl.rewards.shapes, flowrl.pipelines.shapes.world, flowrl.configs, flowrl.assets):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
from flowrl.data import load_prompts
print(len(load_prompts("shapes_train")), len(load_prompts("shapes_heldout")))
from flowrl.config import load_config
for recipe in sorted(files("flowrl.configs").iterdir()):
    if recipe.name.endswith(".yaml"):
        load_config(pathlib.Path(str(recipe)), [])
from flowrl import plugins
for group in ("rewards", "pipelines", "objectives", "advantages"):
    assert plugins.known(group), group
    for name in plugins.known(group):
        plugins.load(group, name)
model = pathlib.Path(str(files("flowrl.assets") / "shapes-sd3"))
assert (model / "model_index.json").is_file() and list(model.rglob("*.safetensors")), model
"""
    train, heldout = python("-c", script, executable=clean, cwd=tmp_path).split()
    assert int(train) > 0
    assert int(heldout) > 0


def test_wheel_command_line_works_outside_the_tree(clean: Path, tmp_path: Path) -> None:
    """``python -m flowrl --help`` names the commands, even from a folder with a ``rewards/`` of the user's own."""
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "__init__.py").write_text("raise RuntimeError('this is the user's own package')")
    shown = python("-m", "flowrl", "--help", executable=clean, cwd=tmp_path)
    assert all(command in shown for command in ("train", "sample", "compare", "report", "doctor", "demo", "bench"))


def test_packages_are_listed() -> None:
    """Each folder with an ``__init__.py`` is in pyproject's list of packages, so a new one cannot miss the wheel."""
    found = {
        ".".join([package, *init.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert found == set(PYPROJECT["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("group", sorted(PYPROJECT["project"]["entry-points"]))
def test_entry_points_load(group: str) -> None:
    """Each name that pyproject.toml promises is installed, and loads."""
    installed = {point.name: point for point in entry_points(group=group)}
    for name, target in PYPROJECT["project"]["entry-points"][group].items():
        assert name in installed, f"{name}: run `pip install -e .` again after a change of pyproject.toml"
        assert installed[name].value == target
        kind = group.removeprefix("flowrl.")
        names = [name] if ":" in target else parts_of(target, kind)
        assert names
        for part in names:
            assert callable(plugins.load(kind, part))


@pytest.mark.parametrize(
    ("arguments", "barred"),
    [
        pytest.param(("-c", "import flowrl"), SLOW_IMPORTS, id="import"),
        pytest.param(("-m", "flowrl", "--help"), ("torch", "numpy", *SLOW_IMPORTS), id="help"),
    ],
)
def test_slow_packages_are_imported_late(arguments: tuple[str, ...], barred: tuple[str, ...], tmp_path: Path) -> None:
    """Neither ``import flowrl`` nor ``flowrl --help`` imports a package that only some runs need."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COVERAGE_PROCESS_START": ""},
    )
    # A line of the report: "import time:   self [us] | cumulative | imported package", children indented.
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "flowrl" in imported
    assert imported.isdisjoint(barred), f"imported too early: {sorted(imported.intersection(barred))}"


@pytest.mark.parametrize("source", SOURCES)
def test_public_names_are_documented_and_typed(source: str) -> None:
    """Each module and public name has a docstring, each public function a type for every argument and its result."""
    tree = tree_of(source)
    missing = [] if ast.get_docstring(tree) else ["the module: docstring"]
    for name, node in public_of(tree):
        if not ast.get_docstring(node) and not is_override(node):
            missing.append(f"{name}: docstring")
        if isinstance(node, Function):
            missing += [f"{name}: type of {argument}" for argument in untyped_arguments(node)]
            missing += [] if node.returns else [f"{name}: type of the result"]
    assert not missing


def is_override(node: ast.AST) -> bool:
    """Whether a function carries one of typing's marks that its documentation lies elsewhere."""
    marks = {ast.unparse(mark).rsplit(".", 1)[-1] for mark in getattr(node, "decorator_list", ())}
    return not marks.isdisjoint({"overload", "override"})


@pytest.mark.parametrize("source", [source for source in SOURCES if source.startswith("flowrl/")])
def test_imports_point_one_way(source: str) -> None:
    """``flowrl`` imports neither ``flowrl.pipelines`` nor ``flowrl.rewards``: it finds them as it finds a user's."""
    barred = tuple(prefix + name for prefix in ("", "flowrl.") for name in ("pipelines", "rewards"))
    assert [name for name in imports_of(source) if f"{name}.".startswith(tuple(f"{bar}." for bar in barred))] == []


@pytest.mark.parametrize("source", SOURCES)
def test_sizes(source: str) -> None:
    """No file is longer than 500 lines, and no function body longer than 80."""
    assert len((ROOT / source).read_text(encoding="utf-8").splitlines()) <= 500
    for function in functions_of(tree_of(source)):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = function.end_lineno - body[0].lineno + 1 if body else 0
        assert lines <= 80, f"{function.name}: a body of {lines} lines"


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_load_and_open_with_their_command(recipe: str) -> None:
    """Each recipe passes the schema, and its first comment holds the command that runs it."""
    from flowrl.config import load_config

    path = ROOT / "configs" / recipe
    load_config(path, [])
    lines = path.read_text(encoding="utf-8").splitlines()
    header = "\n".join(takewhile(lambda line: line.startswith("#"), lines))
    assert f"-m flowrl train configs/{recipe}" in header


def test_there_are_recipes() -> None:
    """The two recipes that the README names exist; without any, the test above would test nothing."""
    assert {"shapes_grpo.yaml", "shapes_nft.yaml"} <= set(RECIPES)
