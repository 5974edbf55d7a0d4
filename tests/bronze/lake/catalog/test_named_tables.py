"""Tables of a catalog in a real session: two writers, rows changed in place, names already in use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltasmelt.bronze.errors import DefiniteError, SmeltError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog import commit_marks, commits, files
from deltasmelt.bronze.lake.catalog.sql import TableChangedError, failures, run
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.place import SCRATCH
from deltasmelt.bronze.lake.staging import aside
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.bronze.store.marks import READER_APP
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.ddl import RELATION_PROPERTY
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake

pytestmark = pytest.mark.usefixtures("interpreted")

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("named")) as lake_made:
        yield lake_made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{number}" for number in ids]}, schema=SCHEMA)


def ids(spark: SparkSession, uri: str) -> list[int]:
    name = uri.rpartition("/")[2]
    return sorted(row[0] for row in rows_of(spark, f"SELECT id FROM {CATALOG}.bronze.{name}"))


def made(lake: Lake, name: str) -> str:
    uri = lake.uri("bronze", name)
    delta.open_or_create(uri, SCHEMA, description="")
    return uri


def test_of_two_writers_of_an_id_one_commits(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = made(lake, "two")
    first = CatalogTable(uri)
    commits.append(first, rows(1), {READER_APP: 7})
    first.update_incremental()
    commits.append(CatalogTable(uri), rows(2), {"other": 1})  # without the id: the handles' versions differ
    second = CatalogTable(uri)
    monkeypatch.setattr(commits, "_later", lambda *_: [])  # both looked before either wrote
    commits.append(first, rows(3), {READER_APP: 7})
    with pytest.raises(CommitFailedError):
        commits.append(second, rows(4), {READER_APP: 8})
    assert ids(spark, uri) == [1, 2, 3]
    monkeypatch.undo()
    with pytest.raises(CommitFailedError):
        commits.append(second, rows(4), {READER_APP: 8})
    second.update_incremental()
    assert second.transaction_version(READER_APP) == 7
    commits.append(second, rows(4), {READER_APP: 8})
    assert ids(spark, uri) == [1, 2, 3, 4]


def test_marks_of_two_processes_never_go_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = made(lake, "marks")
    first, second, third = CatalogTable(uri), CatalogTable(uri), CatalogTable(uri)
    commits.append(first, SCHEMA.empty_table(), {"gap": 500, "resnapshot": 500})
    looks, later = [0], commits._later

    def early(*args: object) -> object:  # at first as if nothing had come since
        looks[0] += 1
        return [] if looks[0] == 1 else later(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "_later", early)
    with pytest.raises(CommitFailedError):
        commits.append(second, SCHEMA.empty_table(), {"resnapshot": 400})
    looks[0] = 0
    commits.append(third, SCHEMA.empty_table(), {"other": 7})
    assert looks == [2]
    table = CatalogTable(uri)
    marks = {name: table.transaction_version(name) for name in ("gap", "resnapshot", "other")}
    assert marks == {"gap": 500, "resnapshot": 500, "other": 7}


def test_a_property_that_is_set_meanwhile_rejects_nothing(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, attempts_left = made(lake, "stated"), [2]
    table, whole = CatalogTable(uri), commits._commit
    commits.append(table, rows(1), {READER_APP: 7})
    table.update_incremental()
    CatalogTable(uri).create_checkpoint()

    def refused(*args: object, **more: object) -> None:
        attempts_left[0] -= 1
        if attempts_left[0] >= 0:
            raise TableChangedError("DELTA_METADATA_CHANGED")
        whole(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(commits, "_commit", refused)
    commits.append(table, rows(2), {READER_APP: 7})
    table.update_incremental()
    assert table.transaction_version(READER_APP) == 7
    assert table.transaction_version(commits.counter_of(READER_APP)) == 2
    assert ids(spark, uri) == [1, 2]


def test_rows_appended_while_rows_change_stay(lake: Lake) -> None:
    ours, second_control = ControlTables(lake), ControlTables(lake)
    ours.open_error(OpenError("table", "public.a", "table-failed", "one", "none"))
    change = ours._errors.update

    def late(how: object) -> None:
        second_control.open_error(OpenError("table", "public.b", "table-failed", "two", "none"))
        change(how)  # type: ignore[arg-type]

    ours._errors.update = late  # type: ignore[method-assign, assignment]
    ours.close_errors("table", "public.a")
    assert [error.name for error in ControlTables(lake).open_errors()] == ["public.b"]


def test_rows_read_before_an_append_leave_it_alone(spark: SparkSession, lake: Lake) -> None:
    from deltasmelt.bronze.lake.catalog.amend import amend  # noqa: PLC0415

    uri = made(lake, "amended")
    delta.open_existing(uri).append(rows(1, 2, 2, 3))
    before = CatalogTable(uri).rows().cast(SCHEMA)
    delta.open_existing(uri).append(rows(4))
    amend(uri, before, before.filter(pa.compute.not_equal(before["id"], 2)))
    assert ids(spark, uri) == [1, 3, 4]
    changed = before.set_column(1, "name", pa.array([None] * before.num_rows, pa.string()))
    amend(uri, before, changed)
    amend(uri, before, changed)
    stored_rows = rows_of(spark, f"SELECT id, name FROM {CATALOG}.bronze.amended")
    assert sorted((row[0], row[1]) for row in stored_rows) == [(1, None), (3, None), (4, "n4")]


def test_the_history_shows_a_merges_condition(spark: SparkSession, lake: Lake) -> None:
    spark.sql(f"CREATE TABLE {CATALOG}.silver.merged (id BIGINT, n STRING, _commit_lsn BIGINT) USING DELTA")
    uri = lake.uri("silver", "merged")
    text = "MERGE INTO {} AS t USING (SELECT 1L AS id) AS s ON %s "
    text += "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    marked = commit_marks.condition("t.`_commit_lsn`", 77)
    run(uri, text % f"{marked} AND t.id = s.id AND t.n <> 'x'").collect()
    assert CatalogTable(uri).transaction_version("deltasmelt.silver") == 77
    run(uri, text % "t.id = s.id AND t.n = 'NOT (_commit_lsn#1L <=> -99)'").collect()
    assert CatalogTable(uri).transaction_version("deltasmelt.silver") == 77
    run(uri, text % "t.n = 'NOT (_commit_lsn#1L <=> -99)' AND t.id = s.id").collect()
    assert CatalogTable(uri).transaction_version("deltasmelt.silver") == 77


def test_a_foreign_table_is_left_alone(spark: SparkSession, lake: Lake) -> None:
    for layer in ("silver", "control"):
        spark.sql(f"CREATE TABLE {CATALOG}.{layer}.taken (id BIGINT, name STRING) USING DELTA")
        spark.sql(f"INSERT INTO {CATALOG}.{layer}.taken VALUES (1, 'theirs')")
    with pytest.raises(DefiniteError) as caught:
        SilverLog(lake).read("taken")
    assert caught.value.code == "catalog-name-taken"
    for write in (
        lambda: delta.open_or_create(lake.uri("control", "taken"), SCHEMA, description=""),
        lambda: delta.overwrite(lake.uri("control", "taken"), rows(9)),
    ):
        with pytest.raises(DefiniteError) as caught:
            write()
        assert caught.value.code == "catalog-name-taken"
    assert [row["id"] for row in rows_of(spark, f"SELECT id FROM {CATALOG}.control.taken")] == [1]


def test_views_and_other_formats_are_foreign(spark: SparkSession, lake: Lake) -> None:
    spark.sql(f"CREATE VIEW {CATALOG}.silver.seen AS SELECT 1 AS id")
    spark.sql(f"CREATE TABLE {CATALOG}.silver.plain (id BIGINT) USING PARQUET")
    for name in ("seen", "plain"):
        for look in (
            lambda name=name: SilverLog(lake).read(name),
            lambda name=name: delta.open_or_create(lake.uri("silver", name), SCHEMA, description=""),
        ):
            with pytest.raises(DefiniteError) as caught:
                look()
            assert caught.value.code == "catalog-name-taken", name


def test_a_removed_table_is_noticed_before_a_step(spark: SparkSession, lake: Lake) -> None:
    """A cycle that already held the lease reads a table again only when a step begins."""

    def make(inserts: int) -> None:
        spark.sql(
            f"CREATE TABLE {CATALOG}.silver.held (id BIGINT) USING DELTA "
            f"TBLPROPERTIES ('{RELATION_PROPERTY}' = '1')"
        )
        for number in range(inserts):
            spark.sql(f"INSERT INTO {CATALOG}.silver.held VALUES ({number})")

    make(2)
    log = SilverLog(lake)
    log.begin(alone=False)
    state = log.read("held")
    log.begin(alone=True)
    log.confirm("held", reread=True)
    for removed in (True, False):
        spark.sql(f"DROP TABLE {CATALOG}.silver.held")
        if removed:
            make(1)
        assert state is not None
        assert log.read("held") == state, "what was seen last stands"
        with pytest.raises(SmeltError, match=rf"version {state.version} of silver\.held is missing") as lost:
            log.confirm("held", reread=True)
        assert (lost.value.code, lost.value.where) == ("table-put-back", CATALOG)
        state = log.read("held")
    assert state is None


def test_a_failing_task_is_an_error_of_io(spark: SparkSession, lake: Lake) -> None:
    uri = made(lake, "failing")
    with pytest.raises(OSError, match="bronze"), failures(uri):
        spark.sql("SELECT raise_error('deliberate')").collect()


@pytest.mark.parametrize("sees", [True, False], ids=["read from their files", "sent in pieces"])
def test_many_rows_are_one_commit(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, *, sees: bool
) -> None:
    uri = lake.uri("bronze", f"many_{sees}")
    delta.open_or_create(uri, CHANGES_SCHEMA, description="")
    now = datetime.now(UTC)
    change = dict.fromkeys(CHANGES_SCHEMA.names) | {
        "lsn": 90, "commit_ts": now, "op": "insert", "relation_id": 1, "table_schema": "public",
               "columns": ["a"], "new": ["é"], "table_name": "t", "commit_lsn": 90,
    }  # fmt: skip
    some = pa.Table.from_pylist([{**change, "seq": number} for number in range(3)], schema=CHANGES_SCHEMA)
    delta.open_existing(uri).append(some)
    monkeypatch.setattr(files, "_PIECE_BYTES", 1)
    monkeypatch.setattr(commits, "append", None)
    if not sees:
        monkeypatch.setattr(commits, "sees_local_files", lambda _: False)
    before = CatalogTable(uri).version()
    delta.open_existing(uri).append(some)
    assert CatalogTable(uri).version() == before + 1
    if not sees:
        remaining = rows_of(
            spark, f"SHOW TABLES IN {CATALOG}.{SCRATCH}"
        )  # views of the session are among them
        assert not [row for row in remaining if not row["isTemporary"]], "what was beside is gone"
    stored = CatalogTable(uri).rows().cast(CHANGES_SCHEMA).sort_by([("seq", "ascending")])
    assert stored.num_rows == 6
    assert stored.slice(0, 1) == stored.slice(1, 1)
    assert not any(aside(uri).iterdir())
