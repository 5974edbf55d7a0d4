"""JSON Schemas: the schema of document files agrees with the parser, a document's schema with its JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.gold.language.json_schema import document_schema, file_schema
from tests.gold import shop_documents
from tests.gold.shop_documents import document

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTS = [text for name, text in vars(shop_documents).items() if name.isupper() and isinstance(text, str)]
HEAD = "document: d\nroot: public.t\nfields:\n  - "


def complaints(text: str) -> list[Any]:
    validator = jsonschema.Draft202012Validator(file_schema())
    return list(validator.iter_errors(parse_yaml(text, Path("d.yml")).data))


def test_the_schema_of_files_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(file_schema())


@pytest.mark.parametrize("text", DOCUMENTS)
def test_what_the_reader_takes_the_schema_takes(text: str) -> None:
    assert complaints(text) == []


@pytest.mark.parametrize(
    "field",
    [
        "x: {mny: public.a, on: {id: id}, fields: [id]}",
        "x: {many: public.a, one: public.a}",
        "x: {many: public.a, on: {id: id}, fields: [id], limt: 5}",
        "x: {many: public.a, on: {id: id}}",
        "x: {many: public.a, fields: [id]}",
        "x: {many: a, on: {id: id}, fields: [id]}",
        "x: {many: public.a, on: {id: id}, fields: [id], limit: 0}",
        "x: {many: public.a, on: {id: id}, fields: [id], limit: 3, cap: 3}",
        "x: {many: public.a, on: {id: id}, fields: [id], recurse: {on: {up: id}, max_depth: 1}}",
        "x: {sum: public.a.b, avg: public.a.b, on: {id: id}}",
        "x y: {column: a}",
        "{x: {column: a}, y: {column: a}}",
        "5",
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(field: str) -> None:
    assert complaints(HEAD + field)
    with pytest.raises(ConfigurationError):
        document(HEAD + field)


def test_every_key_of_a_file_is_explained() -> None:
    schema = file_schema()
    objects = [schema, *schema["$defs"].values()]
    unexplained = [
        name
        for schema_object in objects
        for name, of in schema_object["properties"].items()
        if "description" not in of
    ]
    assert unexplained == []


def struct(**fields: Any) -> dict[str, Any]:
    listed = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": listed}


def test_document_schema_names_every_field_and_type() -> None:
    orders = {"type": "array", "elementType": struct(total="decimal(12,2)"), "containsNull": False}
    prices = {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True}
    schema = document_schema("d", struct(id="long", orders=orders, prices=prices, photo="binary"), ["id"])
    valid: Mapping[str, Any] = {
        "id": 1,
        "orders": [{"total": 1.5}, {"total": None}],
        "prices": {"EUR": "NaN"},
        "photo": None,
    }
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    validator.validate(valid)
    for name, wrong in (
        ("id", None),
        ("orders", [None]),
        ("orders", [{}]),
        ("prices", {"EUR": "much"}),
        ("more", 1),
    ):
        assert not validator.is_valid({**valid, name: wrong}), name
