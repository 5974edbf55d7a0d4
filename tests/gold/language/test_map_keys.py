"""A map's keys are names in JSON, and gold compares documents as JSON; gold refuses keys without a text."""

from __future__ import annotations

import pytest

from deltasmelt.gold.language import types
from deltasmelt.gold.tree.check import checked_tree
from tests.gold.shop import SHAPES, catalog
from tests.gold.shop_documents import document


@pytest.mark.parametrize("kind", ["bytea", "hstore"])
def test_map_keyed_by_bytes_or_maps_names_line(kind: str) -> None:
    shapes = {**SHAPES, "public.tags": ({"id": "int4", "name": kind}, ("id",))}
    field = "n: {many: public.tags, on: {id: id}, key_by: name, values: id}"
    errors = checked_tree(
        document(f"document: d\nroot: public.tags\nfields:\n  - id\n  - {field}\n"), catalog(shapes)
    )[1]
    assert [error.where for error in errors] == ["document.yml:5"]
    assert "which cannot be the key of a map" in errors[0].message


def test_scalar_types_are_map_keys_unlike_composites() -> None:
    """Bytes and intervals are no map keys either."""
    for ddl in ("STRING", "BIGINT", "DECIMAL(12,2)", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        assert types.map_key(ddl)
    for ddl in ("BINARY", "ARRAY<INT>", "STRUCT<a: INT>", "MAP<STRING, INT>", "VARIANT", "interval day"):
        assert not types.map_key(ddl)
