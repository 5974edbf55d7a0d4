"""`smelt drop` of a pipeline whose lake lies in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from bronze.errors import DefiniteError
from bronze.lake import objects
from bronze.lake.leases import leased
from pipelines.commands.drop import run_drop
from pipelines.settings import load_pipeline
from pipelines.terminal.output import Format, Output
from tests.object_store import lake_text

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.settings import Pipeline
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process


def pipeline(folder: Path, dsn: str, store: ObjectStore, lake: str) -> Pipeline:
    """With a slot at the source."""
    slot = f"drop_{folder.name}"[-60:].lower().replace("-", "_")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {slot}, publication: p}}\n"
        f"{lake_text(lake, store.options(), lease=2)}"
    )
    return load_pipeline(file)


def slots(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        ).fetchone()
    return 0 if row is None else int(row[0])


def test_it_is_refused_while_the_reader_runs_and_frees_the_lease_afterwards(
    tmp_path: Path, database: str, store: ObjectStore
) -> None:
    shop = pipeline(tmp_path, database, store, "s3://lake/dropped")
    with leased("s3://lake/dropped", "bronze", command="smelt bronze", wait=False):
        with pytest.raises(DefiniteError) as raised:
            run_drop(shop, Output(Format.TEXT))
        assert raised.value.code == "already-running"
        assert slots(database) == 1
    run_drop(shop, Output(Format.TEXT))
    assert slots(database) == 0
    run_drop(shop, Output(Format.TEXT))


@pytest.mark.parametrize("lake", ["s3://lake/never-made", "s3://nobodys/lake"])
def test_without_a_lake_nothing_is_made_in_the_store(
    lake: str, tmp_path: Path, database: str, store: ObjectStore
) -> None:
    shop = pipeline(tmp_path, database, store, lake)
    store.forget()
    run_drop(shop, Output(Format.TEXT))
    assert slots(database) == 0
    assert store.requests("PUT") == []
    if lake == "s3://lake/never-made":
        assert not objects.any_below(lake)
