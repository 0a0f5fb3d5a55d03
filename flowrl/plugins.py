"""Turns a name in a config into the object that it names.

Every interchangeable part of a run (a reward, an advantage, an objective, a pipeline loader) is named in one of three
ways, and built-in parts are found in the same way as a user's own:

=============================  ==========================================================================
form                           finds
=============================  ==========================================================================
``shapes``                     an entry point, of flowrl or of any installed package (``flowrl.rewards``, ...); one that
                               names a package and no object stands for all parts of its files (:mod:`.catalogue`)
``my_package.scores:sharp``    an object of a module; the current folder is searched first
``path/to/file.py:sharp``      an object of a file; relative paths start at the current folder
=============================  ==========================================================================
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from .catalogue import parts_of
from .errors import UserError

GROUPS = ("advantages", "objectives", "pipelines", "presets", "rewards", "selections", "shapings")
"""The kinds of plug-in; the entry points of kind X lie in the group ``flowrl.X``."""


def load(group: str, name: str) -> Any:
    """Find the object that ``name`` stands for, and import it.

    Args:
        group: one of :data:`GROUPS`.
        name: an entry-point name, ``module:object`` or ``path/to/file.py:object``; ``object`` may have dots.

    Raises:
        UserError: nothing has that name, or its module cannot be imported.

    >>> load("rewards", "math:sqrt")(9.0)
    3.0
    """
    if ":" not in name:
        return _load_entry_point(group, name)
    source, _, attribute = name.rpartition(":")
    module = _import_file(source, name) if source.endswith(".py") else _import_module(source, name)
    return _find(module, attribute, name)


def known(group: str) -> list[str]:
    """The entry-point names of a group, sorted.

    Raises:
        ValueError: the group is none of :data:`GROUPS`.
    """
    return sorted({entry.name for entry in _entry_points(group)})


def nearest(word: str, names: Iterable[str]) -> str:
    """The end of an error message about an unknown ``word``: the nearest of ``names``, or nothing if none is near.

    >>> nearest("shaeps", ["jpeg", "shapes"])
    " Did you mean 'shapes'?"
    >>> nearest("brightness", ["jpeg", "shapes"])
    ''
    """
    close = difflib.get_close_matches(word, list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_options(target: Callable[..., Any], options: Mapping[str, Any], label: str, *, given: int = 0) -> None:
    """Make sure that ``target(*arguments, **options)`` is a valid call, before anything expensive happens.

    Args:
        target: a function, or a class (its constructor is checked).
        options: the keyword arguments that a user wrote.
        label: what the options belong to; opens the message.
        given: how many positional arguments the caller adds itself.

    Raises:
        UserError: an option is unknown (the known ones are listed), or a required one is missing.

    >>> check_options(sorted, {"revers": True}, "sorted", given=1)
    Traceback (most recent call last):
        ...
    flowrl.errors.UserError: sorted: unknown option 'revers'. Did you mean 'reverse'? Known: key, reverse.
    """
    signature = inspect.signature(target)
    parameters = list(signature.parameters.values())
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named = [p.name for p in parameters[given:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        for option in options:
            if option not in named:
                names = ", ".join(named) or "none"
                raise UserError(f"{label}: unknown option {option!r}.{nearest(option, named)} Known: {names}.")
    try:
        signature.bind(*[None] * given, **options)
    except TypeError as error:
        raise UserError(f"{label}: it is called as {_signature(target)}: {error}.") from error


def _signature(target: Callable[..., Any]) -> str:
    return f"{getattr(target, '__name__', type(target).__name__)}{inspect.signature(target)}"


def _entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    if group not in GROUPS:
        raise ValueError(f"unknown plug-in group {group!r}; known: {', '.join(GROUPS)}")
    return [
        part for entry in importlib.metadata.entry_points(group=f"flowrl.{group}") for part in _expanded(entry, group)
    ]


def _expanded(entry: importlib.metadata.EntryPoint, group: str) -> list[importlib.metadata.EntryPoint]:
    """The entry point itself, or those of all parts of the package that it names."""
    if ":" in entry.value:
        return [entry]
    parts = parts_of(entry.value, group)
    return [importlib.metadata.EntryPoint(name, value, entry.group) for name, value in parts.items()]


def _load_entry_point(group: str, name: str) -> Any:
    kind, names = group.removesuffix("s"), known(group)
    found = {entry.value: entry for entry in _entry_points(group) if entry.name == name}
    if not found:
        raise UserError(
            f"unknown {kind} {name!r}.{nearest(name, names)} Known: {', '.join(names) or 'none'}. "
            "Your own is named 'module:object' or 'path/to/file.py:object'."
        )
    if len(found) > 1:
        raise UserError(f"two packages offer a {kind} {name!r}: {', '.join(found)}. Write the one that you mean.")
    (entry,) = found.values()
    with _explained(name, entry.module):
        module = importlib.import_module(entry.module)
    return _find(module, entry.attr, name)


def _import_module(source: str, name: str) -> ModuleType:
    # `python -m flowrl` has the current folder on its path, the `flowrl` command has not: make them alike.
    with _explained(name, source), _on_path(Path.cwd()):
        return importlib.import_module(source)


def _import_file(source: str, name: str) -> ModuleType:
    """The module of a file, imported once a process under a name that no other module has."""
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"{name!r}: there is no file {source!r} (the current folder is {Path.cwd()}).")
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    unique = f"flowrl_plugin_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec is not None, f"no spec for {path}"
    assert spec.loader is not None, f"no loader for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # before it runs: dataclasses look their module up
    try:
        with _explained(name, source), _on_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _find(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            names = [public for public in vars(found) if not public.startswith("_")]
            listed = ", ".join(names) or "none"
            raise UserError(f"{name!r}: there is no {part!r}.{nearest(part, names)} It has: {listed}.") from error
    return found


@contextmanager
def _explained(name: str, source: str) -> Iterator[None]:
    """Turn whatever an import raises into a :class:`UserError` that says which plug-in it was, and why."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if source == missing or source.startswith(f"{missing}."):
            where = f"neither in the current folder ({Path.cwd()}) nor among the installed packages"
            raise UserError(f"{name!r}: there is no module {missing!r}, {where}.") from error
        raise UserError(f"{name!r}: {source} needs the package {missing!r}, which is not installed.") from error
    except Exception as error:
        raise UserError(f"{name!r}: importing {source} failed: {type(error).__name__}: {error}") from error


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    """``folder`` first on ``sys.path``, as Python puts a script's own, for the length of an import."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)
