"""Names in three forms, and what a user reads when one of them finds nothing."""

import importlib.metadata
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from flowrl import plugins
from flowrl.errors import UserError

BUILT_IN = {
    "advantages": {"gdpo", "group"},
    "objectives": {"grpo", "nft"},
    "rewards": {"jpeg", "jpeg_incompressibility", "shapes", "shapes_partial"},
}


@pytest.fixture
def entry_points(monkeypatch):
    """A list that stands in for the installed entry points of every group."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [point for point in points if point.group == group]
    )
    return points


@pytest.fixture
def folder(tmp_path: Path, monkeypatch):
    """An empty current folder; what a test imports from it is forgotten again, and leaves no bytecode."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in BUILT_IN for name in sorted(BUILT_IN[group])])
def test_built_in_names_are_known(group, name):
    """A built-in part is found in the folder that an entry point of the package names, and can be called."""
    assert name in plugins.known(group)
    assert callable(plugins.load(group, name))


def test_known_is_sorted_and_without_doubles(entry_points):
    """Two packages that offer one name give one entry."""
    for name in ("b", "a", "b"):
        entry_points.append(EntryPoint(name, "math:pi", "flowrl.rewards"))
    entry_points.append(EntryPoint("c", "math:pi", "flowrl.objectives"))
    assert plugins.known("rewards") == ["a", "b"]


def test_entry_point_of_another_package(entry_points):
    """Any installed package may offer a plug-in; its object may be an attribute of a class."""
    entry_points.append(EntryPoint("join", "os:path.join", "flowrl.rewards"))
    assert plugins.load("rewards", "join")("a", "b") == str(Path("a", "b"))


def test_unknown_name_lists_the_known_and_the_nearest(entry_points):
    """A misspelt name is answered with the nearest one, all known ones and the two other forms."""
    for name in ("shapes", "jpeg"):
        entry_points.append(EntryPoint(name, "math:pi", "flowrl.rewards"))
    with pytest.raises(UserError) as caught:
        plugins.load("rewards", "shaeps")
    assert str(caught.value) == (
        "unknown reward 'shaeps'. Did you mean 'shapes'? Known: jpeg, shapes. "
        "Your own is named 'module:object' or 'path/to/file.py:object'."
    )


def test_unknown_name_without_any_known(entry_points):
    """An empty group says so, and suggests nothing."""
    with pytest.raises(UserError, match=r"unknown objective 'nft'\. Known: none\."):
        plugins.load("objectives", "nft")


def test_one_name_from_two_packages_is_refused(entry_points):
    """Which of two objects a name means is for the user to say."""
    entry_points.append(EntryPoint("pi", "math:pi", "flowrl.rewards"))
    entry_points.append(EntryPoint("pi", "cmath:pi", "flowrl.rewards"))
    with pytest.raises(UserError, match="two packages offer a reward 'pi': math:pi, cmath:pi"):
        plugins.load("rewards", "pi")


def test_the_same_object_declared_twice_is_fine(entry_points):
    """A package that is installed twice does not make its names ambiguous."""
    entry_points.extend([EntryPoint("pi", "math:pi", "flowrl.rewards")] * 2)
    assert plugins.load("rewards", "pi") == pytest.approx(3.14159, abs=1e-5)


def test_entry_point_with_a_missing_package_names_it(entry_points):
    """A plug-in whose optional package is missing says which package that is."""
    entry_points.append(EntryPoint("ocr", "no_such_package.ocr:Ocr", "flowrl.rewards"))
    with pytest.raises(UserError, match=r"'ocr': there is no module 'no_such_package'"):
        plugins.load("rewards", "ocr")


def test_unknown_group_is_our_mistake():
    """A group that does not exist is a ValueError with the groups, not a UserError."""
    with pytest.raises(ValueError, match="unknown plug-in group 'reward'; known: advantages, objectives") as caught:
        plugins.load("reward", "shapes")
    assert not isinstance(caught.value, UserError)


def test_module_form_finds_modules_of_the_current_folder(folder):
    """``module:object`` works for a module beside the recipe, whatever started Python."""
    (folder / "scores_here.py").write_text("def bright(images, prompts, metadata):\n    return 7\n")
    before = list(sys.path)
    assert plugins.load("rewards", "scores_here:bright")(None, None, None) == 7
    assert sys.path == before


def test_module_form_works_for_the_installed_command(folder):
    """The path need not hold the current folder: a script's has the script's own folder in its place."""
    (folder / "scores_there.py").write_text("answer = 42\n")
    (folder / "bin").mkdir()
    script = folder / "bin" / "command.py"
    script.write_text("from flowrl import plugins\nprint(plugins.load('rewards', 'scores_there:answer'))\n")
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "42\n", done.stderr


def test_missing_module(folder):
    """A module that is nowhere is told apart from one that fails."""
    with pytest.raises(UserError, match=r"'nowhere\.at_all:f': there is no module 'nowhere', neither in the current"):
        plugins.load("rewards", "nowhere.at_all:f")


def test_module_that_needs_a_missing_package(folder):
    """The package that the user's module needs is named, not the user's module."""
    (folder / "needy.py").write_text("import no_such_package\n")
    with pytest.raises(UserError, match="needy needs the package 'no_such_package', which is not installed"):
        plugins.load("rewards", "needy:f")


def test_module_that_fails_keeps_its_error(folder):
    """The error of the user's own code is in the message and in the chain."""
    (folder / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UserError, match=r"importing broken failed: ZeroDivisionError: division by zero") as caught:
        plugins.load("rewards", "broken:f")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_missing_object_lists_what_is_there(folder):
    """A misspelt object is answered with the nearest public name of its module."""
    (folder / "two.py").write_text("def sharpness(): ...\ndef hue(): ...\n_private = 1\n")
    with pytest.raises(UserError, match=r"there is no 'sharpnes'\. Did you mean 'sharpness'\? It has: sharpness, hue"):
        plugins.load("rewards", "two.py:sharpnes")


def test_file_form_with_a_sibling(folder):
    """A file may import its neighbours, and leaves ``sys.path`` as it was."""
    nested = folder / "rewards"
    nested.mkdir()
    (nested / "helper_of_mine.py").write_text("FACTOR = 3\n")
    (nested / "mine.py").write_text("from helper_of_mine import FACTOR\n\ndef score():\n    return FACTOR\n")
    before = list(sys.path)
    assert plugins.load("rewards", "rewards/mine.py:score")() == 3
    assert plugins.load("rewards", f"{nested / 'mine.py'}:score")() == 3
    assert sys.path == before


def test_file_runs_once(folder):
    """Two objects of one file share its module, so weights that it loads are loaded once."""
    (folder / "heavy.py").write_text("weights = object()\ndef a():\n    return weights\ndef b():\n    return weights\n")
    assert plugins.load("rewards", "heavy.py:a")() is plugins.load("rewards", "./heavy.py:b")()


def test_files_of_one_name_are_two_modules(folder):
    """Files in two folders do not meet, and a file called like a library does not shadow it."""
    for number, name in enumerate(("one", "two")):
        (folder / name).mkdir()
        (folder / name / "json.py").write_text(f"number = {number}\n")
    assert plugins.load("rewards", "one/json.py:number") == 0
    assert plugins.load("rewards", "two/json.py:number") == 1
    assert hasattr(sys.modules["json"], "loads")


def test_file_may_define_dataclasses(folder):
    """The module is registered before it runs, because dataclasses with postponed annotations look it up."""
    (folder / "own-rewards.v2.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass A:\n    x: int\n"
    )
    assert plugins.load("rewards", "own-rewards.v2.py:A")(3).x == 3


def test_file_that_fails_can_be_mended(folder):
    """A file that failed to import is not remembered, so the next try reads it again."""
    path = folder / "mend.py"
    path.write_text("import no_such_package\n")
    with pytest.raises(UserError, match=r"mend\.py needs the package 'no_such_package'"):
        plugins.load("rewards", "mend.py:x")
    path.write_text("x = 1\n")
    assert plugins.load("rewards", "mend.py:x") == 1


def test_missing_file_says_where_it_was_looked_for(folder):
    """A missing file comes with the current folder, the usual reason."""
    with pytest.raises(UserError) as caught:
        plugins.load("rewards", "none/mine.py:f")
    assert "there is no file 'none/mine.py'" in str(caught.value)
    assert str(folder) in str(caught.value)


def options_taken(images, prompts, metadata, scale, *, shift=0.0):
    """A target for the tests of ``check_options``."""


@pytest.mark.parametrize("options", [{"scale": 1}, {"scale": 1, "shift": 2}])
def test_valid_options_pass(options):
    """Required and optional keyword arguments are accepted."""
    plugins.check_options(options_taken, options, "reward 'x'", given=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scal": 1}, r"reward 'x': unknown option 'scal'\. Did you mean 'scale'\? Known: scale, shift\."),
        ({"images": 1}, r"reward 'x': unknown option 'images'\..* Known: scale, shift\."),
        ({"shift": 1}, r"reward 'x': .*missing a required argument: 'scale'"),
    ],
)
def test_wrong_options_are_named(options, message):
    """Unknown, reserved and missing options are each told before the call."""
    with pytest.raises(UserError, match=message):
        plugins.check_options(options_taken, options, "reward 'x'", given=3)


def test_too_few_positional_arguments_show_the_signature():
    """A function that cannot take the caller's arguments is shown as it is."""

    def short(images):
        """Takes one argument."""

    with pytest.raises(UserError, match=r"it is called as short\(images\): too many positional arguments"):
        plugins.check_options(short, {}, "reward 'x'", given=3)


def test_any_option_goes_where_keywords_are_open():
    """A target with ``**options`` takes every name."""
    plugins.check_options(lambda *arguments, **options: None, {"anything": 1}, "x", given=3)


def test_torch_is_not_imported():
    """Names can be looked up, and prompts read, without the seconds that torch takes to import."""
    code = "import sys, flowrl.plugins, flowrl.data; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
