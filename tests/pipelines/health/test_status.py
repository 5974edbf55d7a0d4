"""What status says of tables, from a real server and a real lake, without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest

from pipelines.health.status import read_status
from pipelines.health.status_json import plain_status, status_schema
from pipelines.settings import load_pipeline
from tests.bronze.replaying import execute, read_all, source_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.postgres
def test_a_table_that_the_source_dropped_is_said_to_be(database: str, tmp_path: Path) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE kept (id int PRIMARY KEY)", "CREATE TABLE gone (id int PRIMARY KEY)")
    read_all(source, str(tmp_path / "lake"))
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt, "
        "tables: [public.*]}\nlake: {path: ./lake}\n"
    )
    pipeline = load_pipeline(file)
    status = read_status(pipeline)
    jsonschema.validate(json.loads(json.dumps(plain_status(status))), status_schema())
    states = {table.name: table.state for table in status.tables}
    assert states == {"public.kept": "waiting", "public.gone": "waiting"}
    execute(source, "DROP TABLE gone")
    states = {table.name: table.state for table in read_status(pipeline).tables}
    assert states == {"public.kept": "waiting", "public.gone": "dropped"}
