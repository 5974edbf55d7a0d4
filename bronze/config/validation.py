"""Check a YAML file against a model: pydantic's errors become problems at their lines, without secrets."""

from __future__ import annotations

import re
import types
import typing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from deltasmelt.bronze.config.problems import Problem, problems_error
from deltasmelt.bronze.config.sections import FROM_A_FILE
from deltasmelt.bronze.config.suggestions import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic_core import ErrorDetails

    from deltasmelt.bronze.config.yaml_file import PathStep, YamlFile, YamlPath

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], file: YamlFile) -> M:
    """Return a file's values as `model`.

    Raises:
        ConfigurationError: ``file:line: …`` for each problem.
    """
    try:
        return model.model_validate(file.data, context=FROM_A_FILE)
    except ValidationError as error:
        problems = [_problem(model, file, details) for details in error.errors(include_url=False)]
        raise problems_error(file.path, problems, code="yaml-content") from None


_KINDS: Final[dict[type, str]] = {
    dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number",
    type(None): "nothing",
}  # fmt: skip


_EXPECTED: Final = {
    "string_type": "text", "path_type": "a path",
    "dict_type": "a mapping", "model_type": "a mapping", "model_attributes_type": "a mapping",
    "list_type": "a list", "tuple_type": "a list", "set_type": "a list",
    "bool_type": "true or false", "bool_parsing": "true or false",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number",
}  # fmt: skip


_BOUNDS: Final = {
    "greater_than": ("more than", "gt"), "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"), "less_than_equal": ("at most", "le"),
}  # fmt: skip
"""Pydantic's kinds of a number outside of its bounds: words, and the key of the bound."""


def _problem(model: type[BaseModel], file: YamlFile, details: ErrorDetails) -> Problem:
    place, missing = _locate(file, details["loc"])
    kind = details["type"]
    name = ".".join(str(step) for step in place if isinstance(step, str)) or "the file"
    if kind == "extra_forbidden":
        key = str(place[-1])
        keys = _known_keys(model, place[:-1])
        return Problem(file.line(place, key=True), f"unknown key {key!r}{suggestion(key, keys)}")
    if kind == "missing":
        return Problem(file.line(place, key=True), f"{missing!r} is missing" + _inside(place))
    value = details["input"]
    type_name = _KINDS.get(type(value), "something else")
    if kind in _EXPECTED:
        message = f"{name}: expected {_EXPECTED[kind]}, found {type_name}"
        if kind == "string_type" and isinstance(value, bool | int | float):
            message += " (put it in quotes)"
    elif kind == "literal_error":
        message = f"{name}: expected {details['ctx']['expected']}"
        shown = isinstance(value, str) and place not in file.expanded
        message += f", found {value!r}" if shown else ""
    elif kind in {"value_error", "assertion_error"}:
        message = f"{name}: {details['ctx']['error']}" if "ctx" in details else f"{name}: {details['msg']}"
    elif kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        message = f"{name}: must be {word} {details['ctx'][key]:g}"
        message += f", found {value}" if place not in file.expanded else ""
    elif kind == "string_too_short" and not value:
        message = f"{name}: expected text, found nothing"
    else:
        message = f"{name}: {details['msg'][:1].lower()}{details['msg'][1:]}"
    return Problem(file.line(place), _without_secrets(message, file, place))


def _locate(file: YamlFile, loc: Sequence[PathStep]) -> tuple[YamlPath, str | None]:
    """Return the part of pydantic's location that the file contains, and the first missing step.

    Pydantic's locations also name union members. deltasmelt's tags of union members are in ``<…>``, and no
    key has this form.
    """
    place: YamlPath = ()
    missing_key: str | None = None
    for step in loc:
        if (*place, step) in file.values:
            place = (*place, step)
        elif missing_key is None and not (isinstance(step, str) and re.search(r"[<\[(]", step)):
            missing_key = str(step)
    return place, missing_key


def _inside(place: YamlPath) -> str:
    names = [str(step) for step in place if isinstance(step, str)]
    return f" in {names[-1]!r}" if names else ""


def _without_secrets(message: str, file: YamlFile, place: YamlPath) -> str:
    for path, values in file.expanded.items():
        if path[: len(place)] == place:
            for value, written in values:
                if value:
                    message = message.replace(value, written)
    return message


def _known_keys(model: type[BaseModel], place: YamlPath) -> list[str]:
    """Return the field names of all models that are possible at `place`."""
    models: list[Any] = [model]
    for step in place:
        models = [inner for outer in models for inner in _descend(outer, step)]
    return list(dict.fromkeys(name for type_ in models if _is_model(type_) for name in _field_names(type_)))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _field_names(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


def _descend(annotation: Any, step: PathStep) -> Iterator[Any]:
    """Yield annotations of the value under `step` of a value of `annotation`."""
    if _is_model(annotation):
        for name, info in annotation.model_fields.items():
            if step == (info.alias or name):
                yield from _members(info.annotation)
        return
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {list, tuple, set} and isinstance(step, int) and arguments:
        yield from _members(arguments[0])
    elif origin is dict and isinstance(step, str) and len(arguments) == 2:
        yield from _members(arguments[1])


def _members(annotation: Any) -> Iterator[Any]:
    """Yield an annotation without Annotated, aliases and Optional; each member of a union."""
    if isinstance(annotation, typing.TypeAliasType if hasattr(typing, "TypeAliasType") else ()):
        annotation = annotation.__value__
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif origin in {typing.Union, types.UnionType}:
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation
