"""`smelt drop` of a lake in an object store, and of slots outside the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.leases import leased
from deltasmelt.pipelines.commands.drop import run_drop
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Format, Output
from tests.bronze.replaying import execute, read_all, source_of
from tests.object_store import lake_text

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline
    from tests.object_store import ObjectStore

pytestmark = [pytest.mark.process, pytest.mark.postgres]


def pipeline_of(folder: Path, dsn: str, store: ObjectStore, lake: str) -> Pipeline:
    """Create a pipeline with a slot at the source."""
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


def test_drop_is_refused_while_reader_runs(tmp_path: Path, database: str, store: ObjectStore) -> None:
    """The command frees its lease at the end."""
    shop = pipeline_of(tmp_path, database, store, "s3://lake/dropped")
    with leased(shop.lake_address().root, "bronze", command="smelt bronze", wait=False):
        with pytest.raises(DefiniteError) as raised:
            run_drop(shop, Output(Format.TEXT))
        assert raised.value.code == "already-running"
        assert slots(database) == 1
    run_drop(shop, Output(Format.TEXT))
    assert slots(database) == 0
    run_drop(shop, Output(Format.TEXT))


@pytest.mark.parametrize("lake", ["s3://lake/never-made", "s3://nobodys/lake"])
def test_drop_without_lake_creates_nothing_in_store(
    lake: str, tmp_path: Path, database: str, store: ObjectStore
) -> None:
    shop = pipeline_of(tmp_path, database, store, lake)
    store.forget()
    run_drop(shop, Output(Format.TEXT))
    assert slots(database) == 0
    assert store.requests("PUT") == []
    if lake == "s3://lake/never-made":
        assert not objects.any_below(shop.lake_address().root)


def local(folder: Path, dsn: str, slot: str) -> Pipeline:
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {slot}, publication: smelt}}\nlake: {{path: lake}}\n"
    )
    return load_pipeline(file)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ("pg_create_physical_replication_slot('{}')", "slot-physical"),
        ("pg_create_logical_replication_slot('{}', 'pgoutput')", "slot-other-database"),
    ],
)
def test_foreign_kind_or_database_of_slot_is_rejected(
    made: str, code: str, tmp_path: Path, database: str
) -> None:
    slot = source_of(database).slot
    with psycopg.connect(make_conninfo(database, dbname="postgres"), autocommit=True) as connection:
        connection.execute(f"SELECT {made.format(slot)}".encode())
        try:
            with pytest.raises(DefiniteError) as raised:
                run_drop(local(tmp_path, database, slot), Output(Format.TEXT))
            assert raised.value.code == code
        finally:  # fails where it was dropped
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def test_a_publication_that_another_pipeline_reads_stays(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE items (id int PRIMARY KEY)")
    read_all(source, str(tmp_path / "lake"))
    second_source = source.model_copy(update={"slot": f"{source.slot}_b"})
    read_all(second_source, str(tmp_path / "other"))
    run_drop(local(tmp_path, database, source.slot), Output(Format.TEXT))
    assert f"{second_source.slot} of another pipeline reads the publication" in capsys.readouterr().err
    assert slots(database) == 1
    read_all(second_source, str(tmp_path / "other"))
