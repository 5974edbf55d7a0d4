"""Record what real servers send: ``python -m tests.bronze.record_messages`` writes recorded/pg16.bin and recorded/pg18.bin.

A file is zlib over all XLogData messages, each behind its length (4 bytes, big-endian). Keepalives are left out.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from pipelines.embedded import EmbeddedServer, ServerVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER: Final = Path(__file__).parent / "recorded"
PUBLICATION_OPTIONS: Final = "proto_version '1', publication_names 'p', messages 'true'"

SCHEMA: Final = [
    "CREATE SCHEMA sales",
    "CREATE SCHEMA \"Weird \"\"schema\"",
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)",
    "CREATE TYPE address AS (street text, city text)",
    """CREATE TABLE kinds (
        id bigint PRIMARY KEY, b boolean, i2 smallint, i4 int, f4 real, f8 double precision, n numeric, np numeric(12,3),
        t text, v varchar(40), c char(8), by bytea, d date, ts timestamp, tz timestamptz, ti time, tt timetz, iv interval,
        u uuid, j json, jb jsonb, ar int[], ta text[], m mood, p price, a address, r int4range, l pg_lsn, ip inet)""",
    "CREATE TABLE by_default (id int PRIMARY KEY, v text)",
    "CREATE TABLE by_full (id int PRIMARY KEY, v text, n int)",
    "ALTER TABLE by_full REPLICA IDENTITY FULL",
    "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code_key",
    "CREATE TABLE by_nothing (id int, v text)",
    "ALTER TABLE by_nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE pairs (a int, b text, v text, PRIMARY KEY (a, b))",
    "CREATE TABLE toasted (id int PRIMARY KEY, big text, n int, other text)",
    "ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
    "CREATE TABLE toasted_full (id int PRIMARY KEY, big text, n int)",
    "ALTER TABLE toasted_full ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
    'CREATE TABLE "Weird ""schema"."Täble .x" ("Id" int PRIMARY KEY, "a ""quoted"" cölumn" text, "数" text)',
    "CREATE TABLE no_columns ()",
    "CREATE TABLE sales.parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "CREATE TABLE sales.parts_1 PARTITION OF sales.parts FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')",
    "CREATE TABLE sales.parts_2 (v text, at date NOT NULL, id int NOT NULL)",
    "ALTER TABLE sales.parts ATTACH PARTITION sales.parts_2 FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')",
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (id int PRIMARY KEY, parent_id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE generated (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED)",
    "CREATE TABLE wide (id int PRIMARY KEY, " + ", ".join(f"c{i} int" for i in range(1, 1000)) + ")",
    "CREATE TABLE shaped (id int PRIMARY KEY, a int, b text)",
    "CREATE TABLE excluded (id int PRIMARY KEY, v text)",
    "CREATE TABLE bulk (id int PRIMARY KEY, a int, t text, n numeric)",
    "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)",
]  # fmt: skip

Transaction = list[str]
BIG: Final = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 100) i)"

HISTORY: Final[list[Transaction]] = [
    ["""INSERT INTO kinds VALUES
        (1, true, -7, 42, 1.5, 0.1, 123456789012345678901234567890.123, 7.25, 'täxt, "quoted" \\ {x}', '', 'pad', '\\x00ff',
         '2024-02-29', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56+02', '24:00', '12:00+02', '1 year -2 days',
         '00000000-0000-0000-0000-000000000001', '{"a": null}', '{"a": [1, "x"]}', '{1,NULL,3}', '{"a,b",NULL,"NULL",""}',
         'happy', 9.99, '("a, street",)', '[1,5)', '0/16B3748', '10.0.0.1/8'),
        (2, false, 0, 0, 'NaN', '-Infinity', 'NaN', 0, '', 'null', '', '', '0044-03-15 BC', 'infinity', '-infinity',
         '00:00', '00:00+00', 'P0D', NULL, 'null', 'null', '{{1,2},{3,4}}', '{}', 'sad', 0, '(,)', 'empty', NULL, '::1')""",
     "INSERT INTO kinds (id) VALUES (3)"],
    ["INSERT INTO by_default VALUES (1, 'a'), (2, NULL), (3, '')", "INSERT INTO by_full VALUES (1, 'a', NULL), (2, NULL, 2)",
     "INSERT INTO by_index VALUES (1, 'x', 'a'), (2, 'y', NULL)", "INSERT INTO pairs VALUES (1, 'x', 'a'), (1, 'y', NULL)",
     "INSERT INTO by_nothing VALUES (1, 'a')"],
    ["UPDATE by_default SET v = 'b' WHERE id = 1", "UPDATE by_default SET id = 10 WHERE id = 2",
     "UPDATE by_full SET v = NULL WHERE id = 1", "UPDATE by_full SET id = 20 WHERE id = 2",
     "UPDATE by_index SET v = 'b' WHERE id = 1", "UPDATE by_index SET code = 'z' WHERE id = 2",
     "UPDATE by_index SET id = 30 WHERE id = 2", "UPDATE pairs SET b = 'z', v = 'c' WHERE b = 'x'"],
    ["UPDATE by_default SET id = -id", "UPDATE by_default SET id = 1 - id"],
    ["DELETE FROM by_default", "DELETE FROM by_full WHERE id = 1", "DELETE FROM by_index WHERE id = 30", "DELETE FROM pairs"],
    [f"INSERT INTO toasted VALUES (1, {BIG}, 1, {BIG}), (2, {BIG}, 2, 'small')",
     f"INSERT INTO toasted_full VALUES (1, {BIG}, 1)"],
    ["UPDATE toasted SET n = n + 1", "UPDATE toasted SET id = 100 WHERE id = 1", "UPDATE toasted SET other = NULL",
     "UPDATE toasted_full SET n = 2", "DELETE FROM toasted_full", "DELETE FROM toasted WHERE id = 2"],
    ["""INSERT INTO "Weird ""schema"."Täble .x" VALUES (1, 'ä "q" \\', '数'), (2, E'a\\nb\\tc', '')""",
     """DELETE FROM "Weird ""schema"."Täble .x" WHERE "Id" = 2"""],
    ["INSERT INTO no_columns DEFAULT VALUES", "INSERT INTO no_columns DEFAULT VALUES"],
    ["INSERT INTO sales.parts VALUES (1, '2024-05-01', 'first'), (2, '2025-05-01', 'second')",
     "UPDATE sales.parts SET at = '2025-06-01' WHERE id = 1", "DELETE FROM sales.parts WHERE id = 2"],
    ["INSERT INTO child VALUES (1, 1)", "INSERT INTO parent VALUES (1)"],
    ["INSERT INTO parent VALUES (2)", "TRUNCATE parent, child RESTART IDENTITY CASCADE", "INSERT INTO parent VALUES (3)",
     "TRUNCATE by_full, by_index, excluded", "TRUNCATE sales.parts", "TRUNCATE parent CASCADE"],
    ["INSERT INTO generated (id, a) VALUES (1, 2)", "UPDATE generated SET a = 3"],
    ["INSERT INTO wide (id, c1, c999) VALUES (1, 1, 999), (2, NULL, 0)", "UPDATE wide SET c500 = 5"],
    ["SELECT pg_logical_emit_message(true, 'outbox', 'in a transaction')",
     "INSERT INTO excluded VALUES (1, 'a')", "SELECT pg_logical_emit_message(true, 'deltasmelt', 'heartbeat')"],
    ["SELECT pg_logical_emit_message(true, 'deltasmelt', '')"],
    ["SELECT pg_logical_emit_message(false, 'outside', 'first')", "SELECT pg_logical_emit_message(false, 'outside', '')",
     "SELECT pg_logical_emit_message(false, 'deltasmelt', 'dropped')"],
    ["INSERT INTO parent VALUES (40)", "SELECT pg_logical_emit_message(false, 'outside', '\\xff00'::bytea)"],
    ["INSERT INTO excluded VALUES (2, 'a')"],
    ["INSERT INTO shaped VALUES (1, 1, 'a')", "ALTER TABLE shaped ADD c int DEFAULT 5", "INSERT INTO shaped VALUES (2, 2, 'b', 2)",
     "ALTER TABLE shaped RENAME a TO z", "UPDATE shaped SET z = 7 WHERE id = 1",
     "ALTER TABLE shaped DROP b", "INSERT INTO shaped VALUES (3, 3, 3)"],
    ["ALTER TABLE shaped ALTER z TYPE numeric(8,2)", "INSERT INTO shaped VALUES (4, 4, 4)"],
    ["ALTER TABLE shaped RENAME TO reshaped", "UPDATE reshaped SET c = 0"],
    ["ALTER TABLE reshaped REPLICA IDENTITY FULL", "DELETE FROM reshaped WHERE id = 1"],
    ["ALTER TABLE reshaped DROP CONSTRAINT shaped_pkey", "ALTER TABLE reshaped ADD PRIMARY KEY (z)",
     "ALTER TABLE reshaped REPLICA IDENTITY DEFAULT", "UPDATE reshaped SET z = z + 10 WHERE z = 2"],
    ["INSERT INTO bulk SELECT i, i % 7, 'text ' || i, CASE WHEN i % 5 > 0 THEN i / 8.0 END FROM generate_series(1, 1500) i",
     "UPDATE bulk SET a = NULL WHERE id % 10 = 0", "DELETE FROM bulk WHERE id % 100 = 0"],
    ["SAVEPOINT a", "INSERT INTO by_default VALUES (100, 'rolled back')", "ROLLBACK TO a",
     "SAVEPOINT b", "INSERT INTO by_default VALUES (101, 'kept')", "RELEASE b"],
    *([f"INSERT INTO by_default VALUES ({i}, 'v{i}')", f"INSERT INTO excluded VALUES ({i}, 'v{i}')"] for i in range(200, 260)),
    *([f"UPDATE by_default SET v = 'w{i}' WHERE id = {i}"] for i in range(200, 300)),
    ["SELECT pg_logical_emit_message(true, 'end', 'of the recording')"],
]  # fmt: skip


def record(dsn: str, history: Sequence[Sequence[str]], *, slot: str = "recorder") -> list[bytes]:
    """Run the history, one transaction per item, and return the XLogData messages up to the one with prefix ``end``.

    The publication ``p`` exists already. The last transaction of the history emits that message.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        for statements in history:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
    messages = read_slot(dsn, slot)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    return messages


def read_slot(dsn: str, slot: str) -> list[bytes]:
    """XLogData messages of the slot, from where it stands to the Commit behind a message with prefix ``end``."""
    link = pq.PGconn.connect(psycopg.conninfo.make_conninfo(dsn, replication="database").encode())
    assert link.status == pq.ConnStatus.OK, link.error_message
    started = link.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({PUBLICATION_OPTIONS})".encode())
    assert started.status == pq.ExecStatus.COPY_BOTH, link.error_message
    messages: list[bytes] = []
    ending = False
    while not (ending and messages[-1][25:26] == b"C"):
        size, data = link.get_copy_data(0)
        assert size > 0, link.error_message
        if data[:1] == b"w":
            messages.append(bytes(data))
            ending = ending or (data[25:26] == b"M" and bytes(data[35:39]) == b"end\0")
    link.finish()
    return messages


def save(path: Path, messages: Sequence[bytes]) -> None:
    """Write a recording."""
    path.write_bytes(zlib.compress(b"".join(len(one).to_bytes(4, "big") + one for one in messages), 9))


def load(path: Path) -> list[bytes]:
    """Read a recording."""
    data = zlib.decompress(path.read_bytes())
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return messages


def main() -> None:
    """Record from both servers."""
    versions: tuple[ServerVersion, ...] = (16, 18)
    for version in versions:
        with EmbeddedServer(version=version) as server:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                for statement in SCHEMA:
                    connection.execute(statement.encode())
            messages = record(server.dsn(), HISTORY)
            path = FOLDER / f"pg{version}.bin"
            save(path, messages)
            print(f"{path}: {len(messages)} messages, {path.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
