"""Finds the parts that a folder of source files holds, without importing them.

So a new reward, objective or advantage is one file: what it is called stands in it and nowhere else, and a list of the
known names costs no import of torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

FUNCTION_GROUPS = frozenset({"advantages", "shapings"})
"""Kinds of plug-in that are functions: each public function of a file is one. The others are classes with a name."""


@lru_cache(maxsize=16)
def parts_of(package: str, group: str) -> dict[str, str]:
    """The parts in the files of a package, or in a module, as name -> ``module:object``.

    A part is a class whose body says ``name = "..."``; in the groups of :data:`FUNCTION_GROUPS`, a public function.
    Files and names that begin with an underscore are left out.

    Args:
        package: such as ``flowrl.rewards``; its parent packages are imported, it is not.
        group: of :data:`flowrl.plugins.GROUPS`.

    Raises:
        ModuleNotFoundError: there is no such package.
        ValueError: two parts have one name.

    >>> parts_of("flowrl.rewards", "rewards")["shapes"]
    'flowrl.rewards.shapes:ShapesReward'
    """
    names = _functions if group in FUNCTION_GROUPS else _named_classes
    parts: dict[str, str] = {}
    for module, path in _files(package):
        for name, attribute in names(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if name in parts:
                raise ValueError(f"two {group} of {package} are called {name!r}: {parts[name]} and {module}")
            parts[name] = f"{module}:{attribute}"
    return parts


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """Module name and source file of a module, or of every public module of a package."""
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if spec.submodule_search_locations is None:
        assert spec.origin is not None, f"{package} has no source"
        yield package, Path(spec.origin)
        return
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.py")):
            if not path.stem.startswith("_"):
                yield f"{package}.{path.stem}", path


def _functions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node.name


def _named_classes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (name := _name_of(node)):
            yield name, node.name


def _name_of(node: ast.ClassDef) -> str | None:
    """The string that the body of a class gives to ``name``."""
    for line in node.body:
        if not isinstance(line, ast.Assign | ast.AnnAssign) or not isinstance(line.value, ast.Constant):
            continue
        targets = line.targets if isinstance(line, ast.Assign) else [line.target]
        if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
            return line.value.value if isinstance(line.value.value, str) else None
    return None
