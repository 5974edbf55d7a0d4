"""The output of `smelt status --output json`, and its promised schema."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.progress import SnapshotView
from deltasmelt.bronze.setup.slot import SlotState
from deltasmelt.bronze.store.retention import Boundary, Holder
from deltasmelt.pipelines.health.clustering import ClusteringHint
from deltasmelt.pipelines.health.lake_half import TableStatus
from deltasmelt.pipelines.health.status import Rung, Status
from deltasmelt.pipelines.health.status_json import plain_status, status_schema
from tests.pipelines.in_process import smelt_here
from tests.pipelines.monitor.statuses import ILL, WELL

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = status_schema()


def fields(schema: dict[str, Any], *path: str) -> set[str]:
    """Return the keys of the object at a path of keys, through lists and optional values."""
    for key in path:
        schema = schema["properties"][key]
        schema = schema.get("items", schema)
        schema = next((member for member in schema.get("anyOf", ()) if member != {"type": "null"}), schema)
    assert schema["required"] == list(schema["properties"]), "each key is always there"
    return set(schema["properties"])


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Status, ()), (Rung, ("ladder",)), (SlotState, ("slot",)), (SnapshotView, ("snapshot",)),
        (TableStatus, ("tables",)), (TableStatus, ("documents",)), (OpenError, ("errors",)),
        (ClusteringHint, ("clustering",)), (Boundary, ("retention",)), (Holder, ("retention", "holders")),
    ],
)  # fmt: skip
def test_schema_has_exact_keys_of_status(kind: Any, path: tuple[str, ...]) -> None:
    assert fields(SCHEMA, *path) == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("status", [WELL, ILL])
def test_statuses_keep_to_the_schema(status: Status) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(json.dumps(plain_status(status))), SCHEMA)


@pytest.mark.parametrize("changed", [{"ladder": None}, {"slot": {}}, {"pipeline": 1}, {"tables": [{}]}])
def test_the_schema_refuses_what_it_is_not(changed: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**plain_status(WELL), **changed}, SCHEMA)


def test_the_command_prints_it_without_a_lake(tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: 127.0.0.1, port: 1, database: d, user: u, slot: s, publication: p}\n"
        "lake: {path: lake}\n"
    )
    process = smelt_here("status", file, "--output", "json", folder=tmp_path)
    jsonschema.validate(json.loads(process.stdout), SCHEMA)
    assert json.loads(process.stdout)["source_error"]
    assert json.loads(smelt_here("status", file, "--schema", folder=tmp_path).stdout) == SCHEMA
