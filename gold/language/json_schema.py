"""Build JSON Schemas: of document files, for editors, and of the documents themselves. Pure.

A document's schema describes the JSON that `to_json` writes (`gold.compile`) and `smelt preview` shows. Every
field is present, NULL is `null`, DECIMAL is a number with all its digits, binary is base64.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.language.model import Definition

if TYPE_CHECKING:
    from collections.abc import Sequence

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_NOT_A_NUMBER: Final = ["NaN", "Infinity", "-Infinity"]
_PLAIN: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "byte": {"type": "integer"},
    "short": {"type": "integer"},
    "integer": {"type": "integer"},
    "long": {"type": "integer"},
    "float": {"anyOf": [{"type": "number"}, {"enum": _NOT_A_NUMBER}]},
    "double": {"anyOf": [{"type": "number"}, {"enum": _NOT_A_NUMBER}]},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string", "description": "date and time without a zone"},
    "binary": {"type": "string", "contentEncoding": "base64"},
}


def document_schema(name: str, described: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema of a document.

    `described` is Spark's own description of the document's columns (`StructType.jsonValue`). The fields in
    `required` are never NULL, even if Spark knows them as nullable.
    """
    schema = _described(described)
    for field in required:
        schema["properties"][field] = _never_null(schema["properties"][field])
    return {"$schema": DIALECT, "title": name, **schema}


def _described(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a Spark type."""
    if isinstance(kind, str):
        return dict(_PLAIN.get(kind, {"type": "number"} if kind.startswith("decimal") else {}))
    if kind["type"] == "struct":
        properties = {
            field["name"]: _nullable(_described(field["type"]), nullable=field["nullable"])
            for field in kind["fields"]
        }
        return {
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }
    if kind["type"] == "array":
        items = _nullable(_described(kind["elementType"]), nullable=kind["containsNull"])
        return {"type": "array", "items": items}
    values = _nullable(_described(kind["valueType"]), nullable=kind["valueContainsNull"])
    return {"type": "object", "additionalProperties": values}


def _nullable(schema: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    if not nullable or not schema:
        return schema
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [*schema["anyOf"], {"type": "null"}]}


def _never_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), list):
        return {**schema, "type": schema["type"][0]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [kind for kind in schema["anyOf"] if kind != {"type": "null"}]}
    return schema


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of document files.

    The models that read the files give the schema, so both refuse the same. Only `smelt check` can check what
    depends on tables and columns.
    """
    schema = _tidied(Definition.model_json_schema())
    schema["title"] = "a document of deltasmelt"
    return {"$schema": DIALECT, **schema}


def _tidied(schema: Any) -> Any:
    """Remove titles that repeat names, and nulls, which no user writes; add a text for each key."""
    if isinstance(schema, list):
        return [_tidied(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {key: value for key, value in schema.items() if key not in {"title", "default"}}
    if "anyOf" in tidied:
        kinds = [kind for kind in tidied.pop("anyOf") if kind != {"type": "null"}]
        tidied |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    texts: dict[str, str] = {}
    if "description" in tidied:
        tidied["description"], texts = _documented(tidied["description"])
    properties = tidied.pop("properties", None)
    complete = {key: _tidied(value) for key, value in tidied.items()}
    if properties is not None:
        complete["properties"] = {
            name: {**_tidied(value), **({"description": texts[name]} if name in texts else {})}
            for name, value in properties.items()
        }
    return complete


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's text, and the text of each attribute."""
    head, _, listed = inspect.cleandoc(text).partition("Attributes:\n")
    flowing = re.sub(r"\n {6,}", " ", listed)
    texts = dict(re.findall(r"^ {4}(\w+): (.+)$", flowing, re.MULTILINE))
    return " ".join(head.split()), texts
