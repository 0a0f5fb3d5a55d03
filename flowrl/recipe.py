"""YAML files and dotted overrides, checked against a pydantic schema, with errors that a person can act on.

Knows no particular schema: `flowrl.config` has the one of a run. Pydantic's errors are said again in one line each:
where (file and line, or the override), which field, what was wanted, what came, and the nearest known name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .errors import UserError
from .plugins import nearest

M = TypeVar("M", bound=BaseModel)
Keys = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where the values of a recipe come from.

    Attributes:
        name: the file, or what else to call the source.
        lines: line of each key of the file.
        overrides: each dotted override and the keys that it sets.
    """

    name: str
    lines: Mapping[Keys, int] = field(default_factory=dict)
    overrides: Sequence[tuple[str, Keys]] = ()

    def where(self, keys: Keys) -> str:
        """The override or the file and line that a field comes from.

        >>> Source("a.yaml", {("policy",): 3}).where(("policy", "steps"))
        'a.yaml:3'
        """
        for text, target in reversed(self.overrides):
            if keys[: len(target)] == target:
                return f"override {text!r}"
        for depth in range(len(keys), 0, -1):
            if keys[:depth] in self.lines:
                return f"{self.name}:{self.lines[keys[:depth]]}"
        return self.name


def load(schema: type[M], path: Path, overrides: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> M:
    """Read a YAML file, apply dotted overrides and validate.

    Args:
        schema: the pydantic model.
        path: the YAML file; OmegaConf's ``${...}`` interpolations are resolved.
        overrides: ``section.field=value``, the value in YAML.
        defaults: values for keys that neither the file nor an override sets.

    Raises:
        UserError: the file or an override cannot be read, or breaks the schema.
    """
    text = _read(path)
    try:
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader)))
        recipe = OmegaConf.create(text) if text.strip() else OmegaConf.create({})
    except yaml.YAMLError as error:
        raise UserError(f"{_yaml_place(path, error)}: not valid YAML: {_yaml_problem(error)}.") from error
    if not isinstance(recipe, DictConfig) or (not lines and text.strip()):
        raise UserError(f"{path}: wanted keys and values such as 'max_steps: 100', got {text.strip()[:60]!r}.")
    for key, value in (defaults or {}).items():
        recipe.setdefault(key, value)
    return build(schema, recipe, overrides, Source(str(path), lines))


def build(schema: type[M], data: Mapping[Any, Any] | DictConfig, overrides: Sequence[str], source: Source) -> M:
    """Apply dotted overrides to keys and values, and validate.

    >>> from flowrl.config import LoraConfig
    >>> build(LoraConfig, {"rank": 4}, ["alpha=8"], Source("defaults"))
    LoraConfig(rank=4, alpha=8.0, targets=None)

    Raises:
        UserError: an override cannot be read, or the result breaks the schema.
    """
    recipe = data if isinstance(data, DictConfig) else OmegaConf.create(dict(data))
    targets: list[tuple[str, Keys]] = []
    for override in overrides:
        change = _override(override)
        targets += [(override, keys) for keys in _leaves(change)]
        _make_way(recipe, change)
        recipe.merge_with(change)
    try:
        merged = OmegaConf.to_container(recipe, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{source.name}: {str(error).splitlines()[0]}.") from error
    return validate(schema, cast("dict[str, Any]", merged), replace(source, overrides=targets))


def validate(schema: type[M], data: Mapping[str, Any], source: Source) -> M:
    """A valid ``schema``, or every mistake in one `UserError`, a line each.

    >>> from flowrl.config import LoraConfig
    >>> validate(LoraConfig, {"ranks": 4}, Source("a.yaml"))
    Traceback (most recent call last):
    flowrl.errors.UserError: a.yaml: unknown key 'ranks'. Did you mean 'rank'? Known: rank, alpha, targets.
    """
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        by_field: dict[Keys, list[ErrorDetails]] = {}
        for detail in error.errors():
            by_field.setdefault(_keys(detail, data), []).append(detail)
        problems = [_problem(schema, keys, details, source) for keys, details in by_field.items()]
        raise UserError("\n".join(problems)) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"no recipe at {path}; wanted the path of a YAML file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a text file that can be read ({error}); wanted a YAML file.") from error


def _override(text: str) -> DictConfig:
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"override {text!r}: wanted key=value, such as max_steps=20 or policy.steps=12.")
    try:
        return OmegaConf.from_dotlist([text])
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"override {text!r}: the value is not valid YAML; quote it for the shell and YAML.") from error


def _make_way(recipe: DictConfig, change: DictConfig) -> None:
    """Take out a list where a mapping comes, or a mapping where a list comes: OmegaConf does not exchange them."""
    for key in map(str, change):
        if key not in recipe or any(OmegaConf.is_interpolation(config, key) for config in (recipe, change)):
            continue
        old, new = recipe[key], change[key]
        if isinstance(old, DictConfig) and isinstance(new, DictConfig):
            _make_way(old, new)
        elif isinstance(old, (DictConfig, ListConfig)) and isinstance(new, (DictConfig, ListConfig)):
            del recipe[key]


def _leaves(config: DictConfig) -> list[Keys]:
    def walk(value: Any, keys: Keys) -> Iterator[Keys]:
        if not isinstance(value, dict) or not value:
            yield keys
            return
        for key, inner in value.items():
            yield from walk(inner, (*keys, str(key)))

    return list(walk(OmegaConf.to_container(config, resolve=False), ()))


def _lines(node: yaml.Node | None, keys: Keys = ()) -> Iterator[tuple[Keys, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = (*keys, str(key.value))
        yield inner, key.start_mark.line + 1
        yield from _lines(value, inner)


def _yaml_place(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}" if mark else str(path)


def _yaml_problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]


def _keys(detail: ErrorDetails, data: Any) -> Keys:
    """The field of an error, without the tags that pydantic adds for the branches of a union."""
    location = detail["loc"]
    if detail["type"] == "missing":
        return tuple(map(str, location))
    keys: list[str] = []
    for part in location:
        if not isinstance(data, Mapping) or part not in data:
            break
        keys.append(str(part))
        data = data[part]
    return tuple(keys)


def _problem(schema: type[BaseModel], keys: Keys, details: Sequence[ErrorDetails], source: Source) -> str:
    where, name, kind = source.where(keys), ".".join(keys), details[0]["type"]
    section = _section(schema, keys[:-1])
    if kind == "extra_forbidden":
        return (
            f"{where}: unknown key {name!r}.{_meant(schema, section, keys)} Known: {', '.join(section.model_fields)}."
        )
    if kind == "missing":
        about = section.model_fields[keys[-1]].description if keys[-1] in section.model_fields else None
        return f"{where}: {name} is missing. {about or ''}".rstrip()
    wanted = " or ".join(dict.fromkeys(_wanted(detail) for detail in details))
    if not keys:
        return f"{where}: {wanted}."
    value, shown = details[0]["input"], repr(details[0]["input"])
    choices = re.findall("'([^']+)'", details[0].get("ctx", {}).get("expected", ""))
    hint = nearest(value, choices) if isinstance(value, str) else ""
    return f"{where}: {name} is {shown if len(shown) < 80 else shown[:76] + ' ...'}: wanted {wanted}.{hint}"


_PLAINER = (
    (r"^(Value error, wanted |Value error, |Input should be )", ""),
    (r"a valid integer", "an integer"),
    (r"a valid ", "a "),
    (r"greater than or equal to", "at least"),
    (r"less than or equal to", "at most"),
    (r", unable to parse.*", ""),
    (r"dictionary( or instance of \w+)?", "mapping of keys to values"),
)


def _wanted(detail: ErrorDetails) -> str:
    text = detail["msg"]
    for pattern, plainer in _PLAINER:
        text = re.sub(pattern, plainer, text)
    return text


def _section(schema: type[BaseModel], keys: Keys) -> type[BaseModel]:
    for key in keys:
        inner = schema.model_fields[key].annotation if key in schema.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return schema
        schema = inner
    return schema


def _meant(schema: type[BaseModel], section: type[BaseModel], keys: Keys) -> str:
    """The place of a key that another section knows, else the nearest key of this section."""
    here, key = list(section.model_fields), keys[-1]
    for name in schema.model_fields:
        other = _section(schema, (name,))
        if section is schema and other is not schema and key in other.model_fields:
            return f" Did you mean '{name}.{key}'?"
    if section is not schema and key in schema.model_fields:
        return f" Did you mean {key!r} at the top level?"
    return nearest(key, here)
