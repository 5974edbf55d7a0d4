"""Columns and rows that never arrive: stream and snapshot of a real server, and every byte of the lake."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from deltasmelt.bronze.catalog import publication, ruled_tables
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.checks.recorded_rules import select_recorded
from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.blockers import Wait
from deltasmelt.bronze.postgres.connection import connect, identify
from deltasmelt.bronze.reader import carried_tables
from deltasmelt.bronze.reader.carried_tables import CarriedTables
from deltasmelt.bronze.reader.changed_tables import record_comments
from deltasmelt.bronze.reader.polled_rules import PolledRules
from deltasmelt.bronze.reader.table_errors import TableErrors
from deltasmelt.bronze.rules import hashed
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import gap_marks, gap_of, request_snapshots
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from deltasmelt.bronze.store.sink import DeltaSink
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    current_lsn,
    execute,
    fetch,
    read_all,
    read_snapshot,
    replay,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

KEY = "the key of the hashes"
CUSTOMERS, ORDERS, EVENTS, PEOPLE = (
    TableName("public", name) for name in ("customers", "orders", "events", "people")
)
CLEAR = "CLEAR"
"""Part of each value that must not arrive."""

COLUMNS = {
    "public.customers": {"email": "hash", "notes": "exclude", "phone": "mask", "*_token": "exclude"},
    "public.orders": {"customer_email": "hash"},
    "public.people": {"email": "hash"},
}
WHERE = {"public.events": "tenant_id < 100 -- of the test"}
TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, email text, notes text, phone text,
        api_token text, city text);
    ALTER TABLE customers ALTER email SET STORAGE EXTERNAL;
    CREATE TABLE orders (id int PRIMARY KEY, customer_email text);
    CREATE TABLE people (email text PRIMARY KEY, name text);
    CREATE TABLE events (tenant_id int, id int, body text, PRIMARY KEY (tenant_id, id))
        PARTITION BY RANGE (tenant_id);
    CREATE TABLE events_low PARTITION OF events FOR VALUES FROM (0) TO (50);
    CREATE TABLE events_high PARTITION OF events FOR VALUES FROM (50) TO (1000);
"""
ROWS = """
    INSERT INTO customers SELECT
        n, 'CLEAR' || n || '@x', 'CLEAR notes ' || n, 'CLEAR +49 ' || n, 'CLEAR', 'Bonn'
        FROM generate_series({0}, {1}) n;
    INSERT INTO orders SELECT n, 'CLEAR' || n || '@x' FROM generate_series({0}, {1}) n;
    INSERT INTO people SELECT 'CLEAR' || n || '@x', 'name ' || n FROM generate_series({0}, {1}) n;
    INSERT INTO events SELECT t, n, CASE WHEN t < 100 THEN 'seen' ELSE 'CLEAR' END
        FROM generate_series({0}, {1}) n, unnest('{{1, 99, 100, 700}}'::int[]) t;
"""


def ruled(dsn: str, **more: Any) -> SourceSettings:
    timing = Timing(catalog_poll=0.3, member_lock=0.5)
    settings = {"columns": COLUMNS, "where": WHERE, "hash_key": SecretStr(KEY), "timing": timing, **more}
    return source_of(dsn, **settings)


def texts(lake_path: str) -> Iterator[tuple[str, str]]:
    """Yield each file of the lake: its bytes, and the values of a Parquet file, which are compressed."""
    for file in Path(lake_path).rglob("*"):
        if file.is_file():
            yield str(file), file.read_bytes().decode(errors="replace")
            if file.suffix == ".parquet":
                yield str(file), str(pq.read_table(file).to_pylist())


def assert_nothing_clear(lake_path: str, *clear: str) -> None:
    files = list(texts(lake_path))
    assert len(files) > 10
    assert [name for name, text in files for word in (CLEAR, KEY, *clear) if word in text] == []


def rows(source: SourceSettings, query: str) -> list[dict[str, str | None]]:
    with psycopg.connect(str(source.dsn.get_secret_value() if source.dsn else "")) as connection:
        cursor = connection.execute(query.encode())
        names = [column.name for column in cursor.description or ()]
        return [
            {name: None if value is None else str(value) for name, value in zip(names, row, strict=True)}
            for row in cursor
        ]


def expected_customers(source: SourceSettings, more: str = "") -> list[dict[str, str | None]]:
    listed = rows(source, f"SELECT id, email, phone, city{more} FROM customers ORDER BY id")
    for row in listed:
        email, phone = row["email"], row["phone"]
        row["email"] = None if email is None else hashed(email, KEY.encode())
        row["phone"] = (
            None if phone is None else phone.translate(str.maketrans("CLEAR123456789", "xxxxx000000000"))
        )
    return listed


def assert_lake_equals_source(source: SourceSettings, lake_path: str, more: str = "") -> None:
    changes = bronze_rows(lake_path)

    def by_id(table: TableName, key: str) -> list[dict[str, str | None]]:
        found = replay(lake_path, table, changes)
        return sorted(found, key=lambda row: (row.get("tenant_id") or "", int(row[key] or 0)))

    assert by_id(CUSTOMERS, "id") == expected_customers(source, more)
    orders = rows(source, "SELECT id, customer_email FROM orders ORDER BY id")
    assert by_id(ORDERS, "id") == [
        {**row, "customer_email": hashed(str(row["customer_email"]), KEY.encode())} for row in orders
    ]
    events = rows(
        source, 'SELECT * FROM events WHERE tenant_id < 100 ORDER BY tenant_id::text COLLATE "C", id'
    )
    assert by_id(EVENTS, "id") == events
    people = {
        (hashed(str(r["email"]), KEY.encode()), r["name"]) for r in rows(source, "SELECT * FROM people")
    }
    assert {(r["email"], r["name"]) for r in replay(lake_path, PEOPLE, changes)} == people


def test_ruled_values_never_reach_a_file(dsn: str, lake_path: str) -> None:
    """Snapshot and stream, rows that enter and leave the filter, new columns, and unchanged TOAST values."""
    source = ruled(dsn)
    execute(source, TABLES, ROWS.format(1, 20))
    read_all(source, lake_path)
    assert_lake_equals_source(source, lake_path)
    execute(
        source,
        ROWS.format(21, 40),
        "INSERT INTO customers VALUES (50, repeat('CLEAR TOAST', 1000), 'CLEAR', NULL, 'CLEAR', 'Kiel')",
        "UPDATE customers SET city = 'Ulm', notes = 'CLEAR again' WHERE id IN (3, 25, 50)",
        "UPDATE customers SET id = 60 WHERE id = 50",
        "UPDATE people SET email = 'CLEAR moved' WHERE name = 'name 7'",
        "DELETE FROM people WHERE name = 'name 8'",
        "DELETE FROM customers WHERE id = 4",
        "UPDATE events SET tenant_id = 70, body = 'seen' WHERE tenant_id = 700 AND id = 3",
        "UPDATE events SET body = 'CLEAR', tenant_id = 150 WHERE tenant_id = 99 AND id = 4",
        "UPDATE events SET tenant_id = 20, body = 'seen' WHERE tenant_id = 100 AND id = 5",
        "UPDATE events SET body = 'CLEAR' WHERE tenant_id = 700",
        "DELETE FROM events WHERE id = 9",
    )
    read_all(source, lake_path)
    assert_lake_equals_source(source, lake_path)
    assert_nothing_clear(lake_path)
    secret = [row for row in bronze_rows(lake_path) if row["table_name"] == "customers"]
    assert any(row["unchanged"] == ["email"] for row in secret)
    assert {name for row in secret for name in row["columns"]} == {"id", "email", "phone", "city"}
    shapes = [shape for shape in read_relations(Lake(lake_path)) if shape.table == CUSTOMERS]
    assert {column.type_text for column in shapes[-1].columns if column.name in ("email", "phone")} == {
        "text"
    }


def test_a_new_column_joins_the_list_with_rows(dsn: str, lake_path: str) -> None:
    source = ruled(dsn)
    execute(source, TABLES, ROWS.format(1, 9))
    with Running(source, lake_path):
        first = read_snapshot(Lake(lake_path), CUSTOMERS)
        wait_for(lambda: read_snapshot(Lake(lake_path), CUSTOMERS) is not None)
        first = read_snapshot(Lake(lake_path), CUSTOMERS)
        execute(
            source,
            "ALTER TABLE customers ADD COLUMN new_token text DEFAULT 'CLEAR default', "
            "ADD COLUMN nick text DEFAULT 'none'",
            "UPDATE customers SET nick = 'n' || id WHERE id < 5",
        )
        wait_for(lambda: read_snapshot(Lake(lake_path), CUSTOMERS) != first)
        execute(source, "UPDATE customers SET nick = 'm' || id, new_token = 'CLEAR' WHERE id < 3")
    read_all(source, lake_path)
    assert_lake_equals_source(source, lake_path, ", nick")
    assert_nothing_clear(lake_path)


def test_a_later_rule_hides_the_unread_log(
    dsn: str, lake_path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules reach changes from before the rules, and a changed rule or key requests a snapshot.

    The reader treats server 16 as one that may forget a new filter.
    """
    monkeypatch.setattr(
        "deltasmelt.bronze.reader.carried_tables.may_forget", lambda version: version < 170000
    )
    plain = ruled(dsn, columns={}, where={})
    execute(plain, TABLES, "INSERT INTO customers VALUES (1, 'known@x', 'known', '1', 'known', 'Bonn')")
    read_all(plain, lake_path)
    # The log from before the rules has clear values, and an open transaction commits after the rules.
    execute(plain, ROWS.format(2, 9))
    with psycopg.connect(str(plain.dsn.get_secret_value() if plain.dsn else "")) as writer:
        writer.execute("INSERT INTO events VALUES (300, 1, 'CLEAR')")
        writer.execute("INSERT INTO customers VALUES (90, 'CLEAR open', 'CLEAR', 'CLEAR', 'CLEAR', 'Ulm')")
        source = ruled(dsn)
        with Running(source, lake_path):
            wait_for(lambda: bool(list_of(source)))
            writer.commit()
            wait_for(lambda: needs_none(source, lake_path))
    read_all(source, lake_path)
    assert_lake_equals_source(source, lake_path)
    assert_nothing_clear(lake_path)
    before = read_snapshot(Lake(lake_path), ORDERS)
    other = ruled(dsn, hash_key=SecretStr(KEY + " two"))
    read_all(other, lake_path)
    assert read_snapshot(Lake(lake_path), ORDERS) != before
    assert "public.orders is resnapshotted: source.hash_key is another key" in caplog.text
    assert "public.events is resnapshotted: source.hash_key" not in caplog.text
    orders = replay(lake_path, ORDERS, bronze_rows(lake_path))
    assert hashed("CLEAR2@x", f"{KEY} two".encode()) in {row["customer_email"] for row in orders}
    assert_nothing_clear(lake_path)


def read_gap(lake_path: str, table: TableName) -> Lsn | None:
    changes = delta.open_table(f"{lake_path}/bronze/changes")
    return None if changes is None else gap_of(changes, table)


def list_of(source: SourceSettings) -> list[dict[str, str | None]]:
    return rows(
        source,
        "SELECT tablename, attnames, rowfilter FROM pg_publication_tables WHERE rowfilter IS NOT NULL",
    )


def needs_none(source: SourceSettings, lake_path: str) -> bool:
    snapshot = read_snapshot(Lake(lake_path), CUSTOMERS)
    return snapshot is not None and any(
        row["op"] == "snapshot" and row["table_name"] == "customers" and "90" in (row["new"] or ())
        for row in bronze_rows(lake_path)
    )


def errors(lake_path: str) -> dict[str, str]:
    return {error.name: error.code for error in ControlTables(Lake(lake_path)).open_errors()}


def open_codes(lake_path: str) -> set[tuple[str, str]]:
    return {(error.name, error.code) for error in ControlTables(Lake(lake_path)).open_errors()}


def test_wrong_rules_stop_their_table_alone(dsn: str, lake_path: str) -> None:
    source = ruled(
        dsn,
        columns={
            "public.customers": {"emial": "hash"},
            "public.orders": {"id": "mask"},
            "public.people": {"email": "exclude"},
            "public.whole": {"secret": "exclude"},
        },
        where={
            "public.events": "body = 'seen'",
            "public.a": "nope > 1",
            "public.b": "random() < 2",
            "public.c": "true); DROP TABLE c; --",
        },
    )
    bare = "".join(f"CREATE TABLE {name} (id int PRIMARY KEY);" for name in "abcd")
    whole = "CREATE TABLE whole (id int PRIMARY KEY, secret text); ALTER TABLE whole REPLICA IDENTITY FULL;"
    execute(source, TABLES, ROWS.format(1, 3), bare, whole, "INSERT INTO d VALUES (1)")
    read_all(source, lake_path)
    assert errors(lake_path) == {
        "public.customers": "column-rule-unknown",
        "public.orders": "column-rule-key",
        "public.people": "column-rule-key",
        "public.whole": "column-rule-key",
        "public.events": "row-filter-columns",
        "public.a": "row-filter-invalid",
        "public.b": "row-filter-invalid",
        "public.c": "row-filter-invalid",
    }
    messages = {error.name: error for error in ControlTables(Lake(lake_path)).open_errors()}
    assert "write email if" in str(messages["public.customers"].remedy)
    assert {row["table_name"] for row in bronze_rows(lake_path)} == {"d"}
    execute(
        source,
        "UPDATE people SET name = 'x'",
        "UPDATE events SET body = 'y'",
        "UPDATE whole SET secret = 'z'",
    )


def test_another_key_leaves_the_application_working(dsn: str, lake_path: str) -> None:
    """A new primary key outside of the list or the filter: the list grows, or the table leaves."""
    source = ruled(
        dsn, columns={"public.customers": {"notes": "exclude"}}, where={"public.events": "tenant_id < 5"}
    )
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, notes text NOT NULL)",
        "CREATE TABLE events (tenant_id int PRIMARY KEY, id int NOT NULL)",
        "INSERT INTO customers VALUES (1, 'CLEAR'); INSERT INTO events VALUES (1, 1), (9, 9)",
    )
    with Running(source, lake_path):
        wait_for(lambda: read_snapshot(Lake(lake_path), EVENTS) is not None)
        execute(
            source,
            "ALTER TABLE customers ADD COLUMN code int NOT NULL DEFAULT 7, DROP CONSTRAINT customers_pkey, "
            "ADD PRIMARY KEY (code)",
            "ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id)",
        )
        wait_for(lambda: works(source, "UPDATE customers SET id = 2"))
        wait_for(lambda: works(source, "UPDATE events SET tenant_id = 2"))
        wait_for(lambda: errors(lake_path) == {"public.events": "row-filter-columns"})
        execute(source, "ALTER TABLE customers DROP CONSTRAINT customers_pkey, ADD PRIMARY KEY (notes)")
        wait_for(lambda: works(source, "UPDATE customers SET id = 3"))
        wait_for(lambda: errors(lake_path).get("public.customers") == "column-rule-key")
    assert_nothing_clear(lake_path)


def lost_by_record(source: SourceSettings, lake_path: str) -> set[str]:
    with connect(source) as connection:
        tables = select_recorded(connection, source, Lake(lake_path))
    return {str(table.table) for table in tables for p in table.problems if p.code == "column-rule-lost"}


def works(source: SourceSettings, statement: str) -> bool:
    try:
        execute(source, statement)
    except psycopg.errors.InvalidColumnReference:
        return False
    return True


def test_renamed_columns_and_tables_keep_their_rules(dsn: str, lake_path: str) -> None:
    source = ruled(dsn)
    execute(source, TABLES, ROWS.format(1, 3))
    with Running(source, lake_path) as running:
        wait_for(lambda: read_snapshot(Lake(lake_path), CUSTOMERS) is not None)
        execute(
            source,
            "ALTER TABLE customers RENAME email TO mail; UPDATE customers SET mail = 'CLEAR renamed'",
            "ALTER TABLE orders RENAME TO sales; UPDATE sales SET customer_email = 'CLEAR table'",
            "ALTER TABLE customers RENAME notes TO remarks; UPDATE customers SET remarks = 'CLEAR remarks'",
        )
        expected = {("public.customers", "column-rule-unknown"), ("public.sales", "column-rule-lost")}
        wait_for(lambda: open_codes(lake_path) >= expected)
        tables = running.reader._copies.tables  # type: ignore[union-attr]
        before, polls = tables.newest, set[int]()

        def polled_twice() -> bool:
            polls.add(id(tables.newest))
            return len(polls) > 2

        wait_for(polled_twice)
        assert tables.newest is not before
        execute(source, "UPDATE sales SET customer_email = 'CLEAR later'")
        assert ("public.sales", "column-rule-lost") in open_codes(lake_path)
    assert_nothing_clear(lake_path)
    patterns = {"*_token": "exclude", "m*": "hash", "remarks": "exclude", "phone": "mask"}
    columns = {"public.customers": patterns, "public.sales": {"customer_email": "hash"}, "public.people": {}}
    right = ruled(dsn, columns={**columns, "public.people": {"email": "hash"}})
    with Running(right, lake_path):
        before = read_snapshot(Lake(lake_path), CUSTOMERS)
        wait_for(lambda: errors(lake_path) == {} and read_snapshot(Lake(lake_path), CUSTOMERS) != before)
        # No exact name, so only the columns' numbers reveal this rename.
        execute(
            right, "ALTER TABLE customers RENAME mail TO email; UPDATE customers SET email = 'CLEAR again'"
        )
        wait_for(lambda: errors(lake_path) == {"public.customers": "column-rule-lost"})
    assert_nothing_clear(lake_path)


def test_former_names_in_the_log_bring_nothing_clear(dsn: str, lake_path: str) -> None:
    """The log has renamed, dropped and reused names, and partitions that left or came."""
    visits = "CREATE TABLE visits (id int PRIMARY KEY, body text);"
    columns = {**COLUMNS, "public.visits": {"body": "hash"}}
    execute(dsn, TABLES, ROWS.format(1, 3), visits, "INSERT INTO visits VALUES (1, 'CLEAR')")
    read_all(ruled(dsn, columns=columns), lake_path)
    execute(
        dsn,
        ROWS.format(4, 6),
        "INSERT INTO visits VALUES (2, 'CLEAR')",
        "ALTER TABLE customers RENAME TO clients; DROP TABLE orders; ALTER TABLE people RENAME TO folk",
        "CREATE TABLE people (email text PRIMARY KEY, name text); INSERT INTO people VALUES ('seen', 'x')",
        "ALTER TABLE events DETACH PARTITION events_high; UPDATE events_high SET body = 'CLEAR detached'",
        "CREATE TABLE ledger (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
        "ALTER TABLE ledger ATTACH PARTITION visits FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO ledger VALUES (3, 'CLEAR attached')",
        "CREATE TABLE archive (LIKE events INCLUDING INDEXES) PARTITION BY RANGE (tenant_id)",
        "ALTER TABLE events DETACH PARTITION events_low; UPDATE events_low SET body = 'CLEAR moved'",
        "ALTER TABLE archive ATTACH PARTITION events_low FOR VALUES FROM (0) TO (50)",
    )
    columns = {
        "public.clients": COLUMNS["public.customers"],
        "public.folk": {"email": "hash"},
        "public.visits": {"body": "hash"},
    }
    lost = dict.fromkeys(("public.archive", "public.events_high", "public.ledger"), "column-rule-lost")
    assert lost_by_record(ruled(dsn, columns=columns), lake_path) == lost.keys()
    # The second start has the record of the first, in which the partition is no partition.
    for start in (1, 2):
        read_all(ruled(dsn, columns=columns), lake_path)
        assert_nothing_clear(lake_path)
        assert errors(lake_path) == lost
        remedies = {error.name: str(error.remedy) for error in ControlTables(Lake(lake_path)).open_errors()}
        assert "public.events_high: {} to state" in remedies["public.events_high"]
        assert lost_by_record(ruled(dsn, columns=columns), lake_path) == lost.keys()
        execute(dsn, f"INSERT INTO clients VALUES ({start + 70}, 'CLEAR', 'CLEAR', 'CLEAR', 'CLEAR', 'Ulm')")
    columns |= {"public.ledger": {"body": "hash"}}
    columns |= {name: {"body": "mask"} for name in ("public.events_high", "public.archive")}
    read_all(ruled(dsn, columns=columns), lake_path)
    assert errors(lake_path) == {}
    assert_nothing_clear(lake_path)
    held = {row["table_name"] for row in bronze_rows(lake_path)}
    assert held >= {"clients", "folk", "people", "ledger", "events_high", "archive"}


def test_first_rules_hide_former_names_in_the_log(dsn: str, lake_path: str) -> None:
    """The first rules come with a rename: known, unknown and reused names, and a start that dies."""
    visits = "CREATE TABLE visits (id int PRIMARY KEY, body text);"
    execute(dsn, TABLES, visits, ROWS.format(1, 3).replace("CLEAR", "seen"))
    read_all(ruled(dsn, columns={}, where={}), lake_path)
    execute(
        dsn,
        ROWS.format(4, 6),
        "ALTER TABLE customers RENAME TO clients; ALTER TABLE orders RENAME TO sales",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_email text); INSERT INTO orders VALUES (1, 'own')",
        "CREATE TABLE fresh (id int PRIMARY KEY, body text); INSERT INTO fresh VALUES (1, 'CLEAR')",
        "ALTER TABLE fresh RENAME TO stale",
    )
    source = ruled(
        dsn,
        columns={
            "public.clients": COLUMNS["public.customers"],
            "public.sales": {"customer_email": "hash"},
            "public.people": {"email": "hash"},
            "public.stale": {"body": "hash"},
        },
    )

    def die(point: str) -> None:
        if point == "stream-starting":
            raise RuntimeError(point)

    with pytest.raises(RuntimeError):
        read_all(source, lake_path, reached=die)
    read_all(source, lake_path)
    assert_nothing_clear(lake_path)
    assert errors(lake_path) == {}
    emails = {
        row["email"] for row in replay(lake_path, TableName("public", "clients"), bronze_rows(lake_path))
    }
    assert emails >= {hashed(f"CLEAR{n}@x", KEY.encode()) for n in (4, 5, 6)}
    assert_bronze_equals_source(source, lake_path, "public.orders", "public.visits")


def test_a_partition_with_rules_is_refused_at_once(dsn: str, lake_path: str) -> None:
    """No poll sees a partition come before its first row, nor a partition that lost its rules."""
    columns = {"public.visits": {"body": "hash"}}
    source = ruled(dsn, columns=columns, timing=Timing(catalog_poll=60, watch=60))
    execute(
        source,
        TABLES,
        "CREATE TABLE visits (id int PRIMARY KEY, body text); INSERT INTO visits VALUES (1, 'CLEAR')",
        "CREATE TABLE ledger (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
        "CREATE TABLE ledger_old PARTITION OF ledger FOR VALUES FROM (1000) TO (2000)",
        "CREATE TABLE archive (LIKE events INCLUDING INDEXES) PARTITION BY RANGE (tenant_id)",
    )
    for name in ("ledger", "archive"):
        with Running(source, lake_path):
            wait_for(lambda: read_snapshot(Lake(lake_path), TableName("public", "visits")) is not None)
            wait_for(lambda: read_snapshot(Lake(lake_path), TableName("public", name)) is not None)  # noqa: B023
            if name == "ledger":
                execute(
                    source,
                    "INSERT INTO ledger VALUES (1000, 'before')",
                    "ALTER TABLE ledger ATTACH PARTITION visits FOR VALUES FROM (0) TO (1000); "
                    "INSERT INTO ledger VALUES (2, 'CLEAR attached'), (1001, 'also left out')",
                    "CREATE TABLE ledger_new PARTITION OF ledger FOR VALUES FROM (2000) TO (3000); "
                    "INSERT INTO ledger VALUES (3, 'CLEAR again'), (2000, 'also left out')",
                )
            else:
                execute(
                    source,
                    "ALTER TABLE events DETACH PARTITION events_low; UPDATE events_low SET body = 'CLEAR'",
                    "ALTER TABLE archive ATTACH PARTITION events_low FOR VALUES FROM (0) TO (50)",
                    "INSERT INTO archive VALUES (7, 7, 'CLEAR moved')",
                )
            wait_for(lambda: (f"public.{name}", "column-rule-lost") in open_codes(lake_path))  # noqa: B023
            assert_nothing_clear(lake_path, "also left out")
    held = {(row["table_name"], str(row["new"])) for row in bronze_rows(lake_path)}
    assert ("ledger", "['1000', 'before']") in held


def test_copies_refuse_partitions_unknown_to_their_poll(dsn: str, lake_path: str) -> None:
    """A root without an entry may get plain tables, and no table with rules, as partitions meanwhile."""
    execute(
        dsn,
        "CREATE TABLE visits (id int PRIMARY KEY, body text); INSERT INTO visits VALUES (1, 'CLEAR')",
        "CREATE TABLE ledger (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
        "CREATE TABLE metrics (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE day (LIKE metrics)",
        "ALTER TABLE day ADD PRIMARY KEY (id)",
    )
    rules, ledger = {"public.visits": {"body": "hash"}}, {"public.ledger": {"body": "hash"}}
    sources = [ruled(dsn, columns=columns, where={}) for columns in (rules, {**rules, **ledger}, {})]
    with connect(sources[0]) as connection:
        sink = DeltaSink(Lake(lake_path), "shop", identify(connection))
        selected = [select_tables(connection, source, storage=True) for source in sources]
    execute(dsn, "ALTER TABLE ledger ATTACH PARTITION visits FOR VALUES FROM (0) TO (1000)")
    execute(dsn, "ALTER TABLE metrics ATTACH PARTITION day DEFAULT")
    landing = Landing(sink, ShapeLog(sink.relations(), sink.add_relations))
    failures = []
    for source, tables in zip(sources, selected, strict=True):
        roots = [table for table in tables if table.table.name in ("ledger", "metrics")]
        hides = PolledRules(source, landing).hides
        outcome = Snapshot(source, SnapshotSettings(), landing, hides=hides).take(roots, threading.Event())
        failures.append([error.code for error in outcome.failed])
    assert failures == [["table-changed"], [], []]
    bodies = [str(row["new"]) for row in bronze_rows(lake_path) if row["op"] == "snapshot"]
    assert bodies == [f"['1', '{hashed('CLEAR', KEY.encode())}']", "['1', 'CLEAR']"]


def test_rules_of_unpublished_columns_lose_nothing(dsn: str, lake_path: str) -> None:
    """A generated column, and a column that a person's list leaves out, never arrive anyway."""
    execute(
        dsn,
        "CREATE TABLE customers (id int PRIMARY KEY, email text, secret text "
        "GENERATED ALWAYS AS (email) STORED)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_email text)",
        "CREATE PUBLICATION smelt FOR TABLE customers, orders (id) WITH (publish_via_partition_root = true)",
    )
    source = ruled(
        dsn,
        columns={"public.customers": {"secret": "hash"}, "public.orders": {"customer_email": "mask"}},
        where={},
    )

    def write(point: str) -> None:
        if point == "first-place-committed":  # before the first shape is recorded
            execute(dsn, "INSERT INTO customers VALUES (1, 'x')", "INSERT INTO orders VALUES (1, 'CLEAR')")

    read_all(source, lake_path, reached=write)
    execute(dsn, "INSERT INTO customers VALUES (2, 'y')", "INSERT INTO orders VALUES (2, 'CLEAR')")
    read_all(source, lake_path)
    assert errors(lake_path) == {}
    changes = bronze_rows(lake_path)
    ends = [row["table_name"] for row in changes if row["op"] == "snapshot_end"]
    assert sorted(ends) == ["customers", "orders"]
    assert [row["id"] for row in replay(lake_path, ORDERS, changes)] == ["1", "2"]
    assert_nothing_clear(lake_path)


def test_first_rules_request_no_rows_without_snapshots(dsn: str, lake_path: str) -> None:
    """Without snapshots a table with rules starts empty, after the changes from before its rules."""
    never = SnapshotSettings(mode="never")
    source = ruled(dsn)
    execute(source, TABLES, ROWS.format(1, 3))
    read_all(source, lake_path, snapshot=never)
    assert {row["op"] for row in bronze_rows(lake_path)} == {"snapshot_end"}
    execute(source, ROWS.format(4, 5))
    read_all(source, lake_path, snapshot=never)
    changes = bronze_rows(lake_path)
    assert len([row for row in changes if row["op"] == "snapshot_end"]) == 4
    assert {row["id"] for row in replay(lake_path, CUSTOMERS, changes)} == {"4", "5"}
    assert_nothing_clear(lake_path)
    # Later rules request the rows.
    columns = {**COLUMNS, "public.orders": {"customer_email": "mask"}}
    read_all(ruled(dsn, columns=columns), lake_path, snapshot=never)
    assert len(replay(lake_path, ORDERS, bronze_rows(lake_path))) == 5


def test_a_locked_filter_is_read_at_each_start(dsn: str, lake_path: str) -> None:
    source = ruled(dsn)
    execute(source, TABLES, "ALTER TABLE events DROP body, ADD body text", ROWS.format(1, 3))
    read_all(source, lake_path)
    before = read_snapshot(Lake(lake_path), EVENTS)
    publication._PRINTS.clear()
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")  # as VACUUM FULL
        read_all(source, lake_path)
        assert errors(lake_path) == {}
    read_all(source, lake_path)
    assert read_snapshot(Lake(lake_path), EVENTS) == before


def test_without_manage_the_exact_sql_is_printed(dsn: str, lake_path: str) -> None:
    source = ruled(
        dsn, manage=False, where={}, columns={"public.customers": {"notes": "exclude", "*_token": "exclude"}}
    )
    execute(
        source,
        TABLES,
        "CREATE PUBLICATION smelt FOR TABLE ONLY customers WITH (publish_via_partition_root = true)",
        f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
    )
    execute(source, ROWS.format(1, 3))
    read_all(source, lake_path)
    assert errors(lake_path)["public.customers"] == "publication-rules"
    (remedy,) = [
        error.remedy
        for error in ControlTables(Lake(lake_path)).open_errors()
        if error.name == "public.customers"
    ]
    assert bronze_rows(lake_path) == []
    execute(source, str(remedy).removeprefix("as owner, run: "))
    assert fetch(source, "SELECT attnames::text FROM pg_publication_tables") == "{id,email,phone,city}"
    read_all(source, lake_path)
    assert "public.customers" not in errors(lake_path)
    assert {row["table_name"] for row in bronze_rows(lake_path)} == {"customers"}


def test_what_a_person_limited_stays_limited(dsn: str, lake_path: str) -> None:
    """A misspelt table, lists and filters that a rule would widen, and a schema that ends a filter."""
    execute(
        dsn,
        TABLES,
        ROWS.format(1, 3),
        "CREATE PUBLICATION smelt FOR TABLE customers (id, city), orders, people, "
        "events WHERE (tenant_id < 50) WITH (publish_via_partition_root = true)",
    )
    limits = "SELECT string_agg(concat(prattrs, pg_get_expr(prqual, prrelid)), ',') FROM pg_publication_rel"
    before = fetch(dsn, limits)
    hashes = {"public.orders": {"customer_email": "hash"}, "public.people": {"email": "hash"}}
    misspelt = ruled(dsn, columns={**hashes, "public.custmers": {"email": "hash"}})
    with pytest.raises(DefiniteError) as refused:
        read_all(misspelt, lake_path)
    assert (refused.value.code, "write public.customers" in str(refused.value.remedy)) == (
        "rule-table-unknown",
        True,
    )
    read_all(ruled(dsn, columns={**hashes, "public.customers": {"city": "hash"}}), lake_path)
    assert errors(lake_path) == {"public.events": "publication-rules"}
    changes = bronze_rows(lake_path)
    columns = {name for row in changes if row["table_name"] == "customers" for name in row["columns"]}
    assert (columns, fetch(dsn, limits)) == ({"id", "city"}, before)
    narrow = {"public.events": "tenant_id < 50"}
    read_all(
        ruled(dsn, columns={**hashes, "public.customers": {"email": "exclude"}}, where=narrow), lake_path
    )
    assert errors(lake_path) == {"public.customers": "publication-rules"}
    assert fetch(dsn, limits) == before
    execute(
        dsn,
        "ALTER PUBLICATION smelt DROP TABLE customers",
        "ALTER PUBLICATION smelt ADD TABLES IN SCHEMA public",
    )
    read_all(ruled(dsn, columns=hashes, where=narrow), lake_path)
    assert errors(lake_path) == {"public.events": "publication-rules"}
    assert not any(
        row["table_name"] == "events" and "700" in str(row["new"]) for row in bronze_rows(lake_path)
    )


def test_an_empty_entry_removes_list_and_filter(dsn: str, lake_path: str) -> None:
    """Without any entry the publication stays as it is: a person may have limited the publication."""
    execute(dsn, TABLES, ROWS.format(1, 3).replace("CLEAR", "seen"))
    read_all(ruled(dsn), lake_path)
    none = ruled(dsn, columns={}, where={})
    read_all(none, lake_path)
    assert errors(lake_path) == {"public.events": "publication-row-filter"}
    query = "SELECT count(*) FROM pg_publication_rel WHERE prattrs IS NOT NULL OR prqual IS NOT NULL"
    assert fetch(none, query) == 2
    empty = ruled(dsn, columns={"public.customers": {}}, where={"public.events": ""})
    before = read_snapshot(Lake(lake_path), CUSTOMERS)
    read_all(empty, lake_path)
    assert (errors(lake_path), fetch(none, query)) == ({}, 0)
    assert read_snapshot(Lake(lake_path), CUSTOMERS) != before
    assert_bronze_equals_source(empty, lake_path, "public.customers", "public.orders", "public.events")


def test_old_lists_and_locks_leave_no_way_around(
    dsn: str, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person limits the publication otherwise, a lock delays the correction, and a poll fails after it."""
    source = ruled(dsn)
    execute(source, TABLES, ROWS.format(1, 3))
    read_all(source, lake_path)
    execute(
        source,
        "ALTER PUBLICATION smelt DROP TABLE ONLY customers, ONLY events",
        "ALTER PUBLICATION smelt ADD TABLE ONLY customers, ONLY events",
        "INSERT INTO customers VALUES (70, 'CLEAR', 'CLEAR', 'CLEAR', 'CLEAR', 'Kiel')",
        "INSERT INTO events VALUES (500, 70, 'CLEAR')",
    )
    with psycopg.connect(str(source.dsn.get_secret_value() if source.dsn else "")) as holder:
        holder.execute("LOCK TABLE events, customers IN SHARE UPDATE EXCLUSIVE MODE")
        with Running(source, lake_path):
            locked = {("public.customers", "publication-rules"), ("public.events", "publication-rules")}
            wait_for(lambda: open_codes(lake_path) == locked)
            execute(source, "INSERT INTO events VALUES (501, 70, 'CLEAR')")
            holder.rollback()
            wait_for(lambda: open_codes(lake_path) == set())
    with (
        Running(source, lake_path) as running,
        psycopg.connect(str(source.dsn.get_secret_value() if source.dsn else "")) as writer,
    ):
        # A transaction wrote between a person's change and the correction, and commits afterwards.
        connections = running.reader.progress.read()["connections"]
        failures: list[int] = []

        def fail_once(*given: Any) -> None:
            if not failures and read_gap(lake_path, EVENTS) != gap:
                failures.append(1)
                raise TransientError("the lake is away", code="lake-unwritable", where="the lake", remedy="")
            record_comments(*given)

        gap = read_gap(lake_path, EVENTS)
        monkeypatch.setattr(carried_tables, "record_comments", fail_once)
        writer.execute("SELECT txid_current()")
        execute(
            source,
            "ALTER PUBLICATION smelt DROP TABLE ONLY events",
            "ALTER PUBLICATION smelt ADD TABLE ONLY events",
        )
        writer.execute("INSERT INTO events VALUES (502, 70, 'CLEAR')")
        wait_for(lambda: running.reader.progress.read()["connections"] > connections)
        assert failures
        writer.commit()
    read_all(source, lake_path)
    assert_lake_equals_source(source, lake_path)
    assert_nothing_clear(lake_path)


def test_an_older_server_refuses_what_it_cannot_do(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL 14 has neither column lists nor row filters; hashes need neither."""
    monkeypatch.setattr(ruled_tables, "SINCE_SCHEMAS", 990000)
    source = ruled(dsn)
    execute(source, TABLES)
    with connect(source) as connection:
        tables = select_tables(connection, source)
        problems = {table.table.name: [problem.code for problem in table.problems] for table in tables}
        findings = inspect(connection, ruled(dsn, where={"public.evnts": "true", "public.events": ""}))
    assert problems == {
        "customers": ["rules-need-15"], "events": ["rules-need-15"], "orders": [], "people": []
    }  # fmt: skip
    unknown = [finding for finding in findings if finding.code == "rule-table-unknown"]
    assert ["write public.events" in str(finding.remedy) for finding in unknown] == [True]


def test_a_table_without_copies_waits_for_its_filter(
    role: tuple[str, str], dsn: str, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that may forget the new filter sends former rows, also of a table that cannot be copied."""
    monkeypatch.setattr(carried_tables, "may_forget", lambda _: True)
    (name, of_role), a = role, TableName("public", "a")
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a OWNER TO {name}")
    execute(
        dsn, f"DO $$ BEGIN EXECUTE 'GRANT CREATE ON DATABASE ' || current_database() || ' TO {name}'; END $$"
    )
    with connect(source_of(dsn)) as connection:
        sink = DeltaSink(Lake(lake_path), "shop", identify(connection))
    control = ControlTables(Lake(lake_path))

    def polled(source: SourceSettings) -> bool | None:
        landing = Landing(sink, ShapeLog(sink.relations(), sink.add_relations))
        tables = CarriedTables(source, landing, TableErrors(control, source.timing), Wait())
        return tables.poll(threading.Event()).carried.get(a)

    assert polled(source_of(of_role))
    execute(dsn, f"REVOKE SELECT ON a FROM {name}")
    ruled_source = source_of(of_role, where={"public.a": "id < 5"})
    with psycopg.connect(dsn) as writer:
        writer.execute("INSERT INTO a VALUES (7)")
        assert polled(ruled_source) is False
    assert open_codes(lake_path) == {("public.a", "table-privilege")}


def test_rows_that_enter_without_values_are_copied(dsn: str, lake_path: str) -> None:
    """PostgreSQL sends an UPDATE into the filter as an insert without its unchanged out-of-line value."""
    where, slow = {"public.events": "tenant_id < 100"}, Timing(catalog_poll=60)
    source = ruled(dsn, columns={}, where=where, timing=slow)
    execute(
        source,
        "CREATE TABLE events (tenant_id int, id int, body text, PRIMARY KEY (tenant_id, id))",
        "ALTER TABLE events ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO events VALUES (700, 1, repeat('large', 2000)), (1, 2, repeat('other', 2000))",
    )
    with Running(source, lake_path) as running:
        wait_for(lambda: read_snapshot(Lake(lake_path), EVENTS) is not None)
        before = read_snapshot(Lake(lake_path), EVENTS)
        execute(source, "UPDATE events SET tenant_id = 2 WHERE id = 2")
        execute(source, "UPDATE events SET tenant_id = 7 WHERE id = 1")
        wait_for(lambda: read_snapshot(Lake(lake_path), EVENTS) != before)
        assert errors(lake_path) == {}
        # The next such row waits for the end of a pause, or for the request of a person.
        after, gap = read_snapshot(Lake(lake_path), EVENTS), read_gap(lake_path, EVENTS)
        execute(source, "UPDATE events SET tenant_id = 700 WHERE id = 1")
        execute(source, "UPDATE events SET tenant_id = 8 WHERE id = 1")
        wait_for(lambda: read_gap(lake_path, EVENTS) != gap)
        wait_for(lambda: not running.reader._copies.tables.newest.due)  # type: ignore[union-attr]
        assert read_snapshot(Lake(lake_path), EVENTS) == after
        with connect(source) as connection:
            request_snapshots(f"{lake_path}/bronze/changes", [EVENTS], current_lsn(connection))
        wait_for(lambda: read_snapshot(Lake(lake_path), EVENTS) != after)
        after = read_snapshot(Lake(lake_path), EVENTS)
    read_all(source, lake_path)
    assert read_snapshot(Lake(lake_path), EVENTS) == after
    replayed = replay(lake_path, EVENTS, bronze_rows(lake_path))
    assert {(row["id"], len(row["body"] or "")) for row in replayed} == {("1", 10000), ("2", 10000)}


def test_a_lost_filter_ends_the_running_session(dsn: str, lake_path: str) -> None:
    """A session that has announced the table must not go on after the poll has stopped the table."""
    execute(dsn, TABLES, ROWS.format(1, 3))
    read_all(ruled(dsn), lake_path)
    source = ruled(dsn, manage=False)
    with Running(source, lake_path) as running:
        connections = running.reader.progress.read()["connections"]
        execute(
            source,
            "ALTER PUBLICATION smelt DROP TABLE ONLY events; ALTER PUBLICATION smelt ADD TABLE ONLY events; "
            "INSERT INTO events VALUES (1, 500, 'announced')",
        )
        wait_for(lambda: ("public.events", "publication-rules") in open_codes(lake_path))
        wait_for(lambda: running.reader.progress.read()["connections"] > connections)
        execute(source, "INSERT INTO events VALUES (700, 501, 'CLEAR')", "INSERT INTO orders VALUES (502)")
        wait_for(lambda: any("'502'" in str(row["new"]) for row in bronze_rows(lake_path)))
    assert_nothing_clear(lake_path)


def test_a_gap_beyond_the_log_drops_nothing(dsn: str, lake_path: str) -> None:
    """The server lost the end of its log; a session that began before the next poll has the lost gap."""
    source = ruled(dsn, timing=Timing(catalog_poll=4, watch=60))
    execute(source, TABLES, ROWS.format(1, 3))
    read_all(source, lake_path)
    events, place = TableName("public", "events"), Lake(lake_path)
    before = read_snapshot(place, events)
    with Running(source, lake_path) as running:
        wait_for(lambda: running.reader.progress.read()["connections"] == 1)
        changes = delta.open_existing(place.uri("bronze", CHANGES))
        commit_marks(changes, gap_marks([events], Lsn(2**40))[:1])
        execute(source, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        wait_for(lambda: read_snapshot(place, events) != before)
        execute(source, "INSERT INTO events VALUES (1, 600, 'after the copy')")
        wait_for(lambda: any("'600'" in str(row["new"]) for row in bronze_rows(lake_path)))


def test_partitions_outside_the_patterns_stay_known(dsn: str, lake_path: str) -> None:
    """A detached partition is in no pattern and, after the root's next copy, in no record."""
    columns = {"public.events": {"body": "mask"}}
    more = {"columns": columns, "where": {}, "tables": ["public.events", "public.archive", "public.later"]}
    source = ruled(dsn, **more)
    execute(
        source,
        TABLES,
        "CREATE TABLE archive (LIKE events INCLUDING INDEXES) PARTITION BY RANGE (tenant_id)",
        "CREATE TABLE later (LIKE events INCLUDING INDEXES) PARTITION BY RANGE (tenant_id)",
        "INSERT INTO events VALUES (1, 1, 'CLEAR'), (60, 1, 'CLEAR')",
    )
    read_all(source, lake_path)
    execute(source, "ALTER TABLE events DETACH PARTITION events_low")
    execute(source, "ALTER TABLE events DETACH PARTITION events_high")
    read_all(source, lake_path)
    execute(source, "ALTER TABLE archive ATTACH PARTITION events_low FOR VALUES FROM (0) TO (50)")
    assert lost_by_record(source, lake_path) == {"public.archive"}
    # A copy by a poll from before ATTACH asks after the next poll of a new process.
    with connect(source) as connection:
        sink = DeltaSink(Lake(lake_path), "shop", identify(connection))
        polled = PolledRules(source, Landing(sink, ShapeLog(sink.relations(), sink.add_relations)))
        polled.note(polled.selected(connection), {})
        (oid,) = connection.execute("SELECT 'public.events_low'::regclass::oid::int").fetchone() or ()
        assert polled.hides(connection, oid, TableName("public", "events_low"))
    read_all(source, lake_path)
    assert errors(lake_path) == {"public.archive": "column-rule-lost"}
    with Running(ruled(dsn, timing=Timing(catalog_poll=60, watch=60), **more), lake_path):
        execute(
            source,
            "ALTER TABLE later ATTACH PARTITION events_high FOR VALUES FROM (50) TO (100); "
            "INSERT INTO later VALUES (61, 2, 'CLEAR'), (62, 2, 'CLEAR')",
        )
        wait_for(lambda: ("public.later", "column-rule-lost") in open_codes(lake_path))
    assert_nothing_clear(lake_path)


def test_partitions_of_stopped_roots_stay_known(dsn: str, lake_path: str) -> None:
    """A root with a wrong rule has no record; its partitions leave between starts and within one."""
    source = ruled(dsn, columns={"public.events": {"bdy": "hash"}}, where={})
    execute(source, TABLES, "INSERT INTO events VALUES (1, 1, 'CLEAR'), (60, 1, 'CLEAR')")
    read_all(source, lake_path)
    execute(source, "ALTER TABLE events DETACH PARTITION events_low; UPDATE events_low SET id = 2")
    read_all(source, lake_path)
    with Running(source, lake_path):
        execute(source, "CREATE TABLE events_top PARTITION OF events FOR VALUES FROM (1000) TO (2000)")
        execute(source, "INSERT INTO events VALUES (1001, 1, 'CLEAR')")
        execute(source, "ALTER TABLE events DETACH PARTITION events_high; UPDATE events_high SET id = 2")
        wait_for(lambda: ("public.events_high", "column-rule-lost") in open_codes(lake_path))
    assert errors(lake_path) == {
        "public.events": "column-rule-unknown",
        "public.events_high": "column-rule-lost",
        "public.events_low": "column-rule-lost",
    }
    assert_nothing_clear(lake_path)


def test_new_leaves_of_an_attached_root_are_refused(dsn: str, lake_path: str) -> None:
    """pgoutput names the leaf and the topmost root, and not the partition with rules between them."""
    source = ruled(
        dsn, columns={"public.visits": {"body": "hash"}}, where={}, timing=Timing(catalog_poll=60, watch=60)
    )
    execute(
        source,
        TABLES,
        "CREATE TABLE visits (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
        "CREATE TABLE ledger (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
    )
    with Running(source, lake_path):
        for name in ("visits", "ledger"):
            wait_for(lambda: read_snapshot(Lake(lake_path), TableName("public", name)) is not None)  # noqa: B023
        execute(
            source,
            "ALTER TABLE ledger ATTACH PARTITION visits FOR VALUES FROM (0) TO (1000); "
            "CREATE TABLE visits_new PARTITION OF visits FOR VALUES FROM (0) TO (10); "
            "INSERT INTO ledger VALUES (2, 'CLEAR attached')",
        )
        wait_for(lambda: ("public.ledger", "column-rule-lost") in open_codes(lake_path))
    assert_nothing_clear(lake_path)
