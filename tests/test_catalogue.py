"""Parts are found in source files by what stands there, and nothing is imported."""

import sys
from pathlib import Path

import pytest

from flowrl import plugins
from flowrl.catalogue import parts_of


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    """An empty package called ``parts``, in a folder that Python imports from."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "__init__.py").touch()
    parts_of.cache_clear()
    yield folder
    parts_of.cache_clear()
    sys.modules.pop("parts", None)


def test_classes_with_a_name_are_parts(package):
    """A file may hold several; a class without a name, or with an empty or a computed one, is none."""
    (package / "one.py").write_text(
        "class A:\n    name = 'a'\n\nclass B:\n    '''Text.'''\n    name: str = 'b'\n\nclass Base:\n    name: str\n\n"
        "class Empty:\n    name = ''\n\nclass Computed:\n    name = A.name + 'x'\n\ndef a_function(): ...\n"
    )
    (package / "two.py").write_text("class C(object):\n    other = 'x'\n    name = 'c'\n")
    assert parts_of("parts", "rewards") == {"a": "parts.one:A", "b": "parts.one:B", "c": "parts.two:C"}


def test_functions_are_parts_in_their_groups(package):
    """Public functions at the top of a file; neither private nor nested ones, nor what was imported."""
    (package / "one.py").write_text(
        "from os.path import join\n\ndef f(scores, weights):\n    def inner(): ...\n\n"
        "def _g(): ...\n\nclass A:\n    name = 'a'\n"
    )
    assert parts_of("parts", "advantages") == {"f": "parts.one:f"}
    assert parts_of("parts.one", "advantages") == {"f": "parts.one:f"}  # a module is a package of one file


def test_nothing_is_imported(package):
    """A file that needs a missing package is listed all the same, and says so when it is asked for."""
    (package / "needy.py").write_text("import no_such_package\n\nclass A:\n    name = 'a'\n")
    assert parts_of("parts", "rewards") == {"a": "parts.needy:A"}
    assert "parts.needy" not in sys.modules


def test_private_files_are_left_out(package):
    """A file that begins with an underscore is shared code of its neighbours."""
    (package / "_shared.py").write_text("class A:\n    name = 'a'\n")
    assert parts_of("parts", "rewards") == {}


def test_one_name_twice_is_refused(package):
    """Two files of a package cannot both mean a name."""
    for file in ("one", "two"):
        (package / f"{file}.py").write_text("class A:\n    name = 'a'\n")
    with pytest.raises(ValueError, match=r"two rewards of parts are called 'a': parts\.one:A and parts\.two"):
        parts_of("parts", "rewards")


def test_missing_package():
    """A package that is not there is named."""
    with pytest.raises(ModuleNotFoundError, match="no_such_parts"):
        parts_of("no_such_parts", "rewards")


@pytest.mark.parametrize("group", ["advantages", "objectives", "rewards"])
def test_names_of_classes_are_the_names_that_find_them(group):
    """What a config writes is what the part calls itself."""
    for name in plugins.known(group):
        part = plugins.load(group, name)
        assert getattr(part, "name", getattr(part, "__name__", None)) == name
