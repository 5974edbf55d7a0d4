"""Constraints are read from the source's catalog, on the oldest and the newest server."""

from __future__ import annotations

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.rules import Rules
from deltasmelt.pipelines.quality.constraints import (
    Constraints,
    ForeignKeyConstraint,
    read_constraints,
    record_constraints,
    recorded_constraints,
)

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.rules import Action

pytestmark = pytest.mark.postgres

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
ALTER TYPE mood ADD VALUE 'happy' BEFORE 'ok';
CREATE DOMAIN code AS char(3);
CREATE SCHEMA "Sales";
CREATE TABLE parent (a int, b code, feeling mood NOT NULL, PRIMARY KEY (a, b));
CREATE TABLE "Sales"."child" (y code, x int, self int UNIQUE REFERENCES "Sales".child (self),
    CONSTRAINT pair FOREIGN KEY (x, y) REFERENCES parent (a, b));
CREATE TABLE late (x int, y code);
INSERT INTO late VALUES (9, 'zzz');
ALTER TABLE late ADD CONSTRAINT not_checked FOREIGN KEY (x, y) REFERENCES parent NOT VALID;
CREATE TABLE parted (id int, a int, b code, PRIMARY KEY (id), FOREIGN KEY (a, b) REFERENCES parent)
    PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE COLLATION loose FROM "C";
CREATE TABLE words (w text COLLATE loose PRIMARY KEY);
CREATE TABLE uses (w text COLLATE loose REFERENCES words);
CREATE TABLE money (amount numeric PRIMARY KEY);
CREATE TABLE paid (whole int REFERENCES money);
-- The embedded server has no ICU, which alone makes such collations.
UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose';
"""


def read(dsn: str, extra: str = "") -> Constraints:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute((SCHEMA + extra).encode())
        return read_constraints(connection)


def check(constraints: Constraints) -> None:
    keys = {key.name: key for key in constraints.foreign_keys}
    assert sorted(keys) == [
        "child_self_fkey", "not_checked", "paid_whole_fkey", "pair", "parted_a_b_fkey", "uses_w_fkey",
    ]  # fmt: skip
    pair = keys["pair"]
    assert (pair.child, pair.parent) == (TableName("Sales", "child"), TableName("public", "parent"))
    assert (pair.columns, pair.referenced, pair.types) == (("x", "y"), ("a", "b"), ("int4", "bpchar"))
    assert pair.referenced_types == ("int4", "bpchar")
    assert pair.weak is None
    paid = keys["paid_whole_fkey"]
    assert (paid.types, paid.referenced_types) == (("int4",), ("numeric",))
    assert keys["not_checked"].weak == "NOT VALID: PostgreSQL has not checked its older rows"
    assert keys["uses_w_fkey"].weak == "its collation takes different texts for equal"
    assert keys["parted_a_b_fkey"].child == TableName("public", "parted")
    assert list(constraints.enum_labels.values()) == [("sad", "happy", "ok")]
    assert frozenset({1, 2, 3}) in constraints.not_null.values()


def test_postgresql_16_gives_references_labels_and_not_null(database: str) -> None:
    check(read(database))


def test_postgresql_18_also_gives_unenforced_keys(database18: str) -> None:
    constraints = read(database18)
    check(constraints)
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE late ADD CONSTRAINT lax FOREIGN KEY (x, y) REFERENCES parent NOT ENFORCED"
        )
        (lax,) = [key for key in read_constraints(connection).foreign_keys if key.name == "lax"]
    assert lax.weak is not None


def test_keys_of_all_partitions_are_of_the_table(dsn: str) -> None:
    constraints = read(
        dsn,
        """
        CREATE TABLE days (id int PRIMARY KEY, a int, b code, t int) PARTITION BY RANGE (id);
        CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM (0) TO (10);
        CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
        CREATE TABLE days_2a PARTITION OF days_2 FOR VALUES FROM (10) TO (20);
        ALTER TABLE days_1 ADD FOREIGN KEY (a, b) REFERENCES parent, ADD FOREIGN KEY (t) REFERENCES parted_1;
        ALTER TABLE days_2 ADD FOREIGN KEY (a, b) REFERENCES parent;
        """,
    )
    days = [key for key in constraints.foreign_keys if key.child.name.startswith("days")]
    assert [(str(key.child), key.columns, str(key.parent)) for key in days] == [
        ("public.days", ("a", "b"), "public.parent")
    ], "one partition alone has the other key"


def test_constraints_are_recorded_again_only_after_change(tmp_path: Path, database: str) -> None:
    lake = Lake(path=str(tmp_path))
    assert recorded_constraints(lake) is None
    first = read(database)
    record_constraints(lake, first)
    assert recorded_constraints(lake) == first

    later = dataclasses.replace(first, read_at=datetime.now(UTC) + timedelta(hours=1))
    record_constraints(lake, later)
    assert recorded_constraints(lake) == first, "the same constraints are not written again"

    record_constraints(lake, dataclasses.replace(later, enum_labels={}))
    recorded = recorded_constraints(lake)
    assert recorded is not None
    assert (recorded.enum_labels, recorded.read_at) == ({}, later.read_at)


def test_constraints_of_concurrent_runs_are_recorded_once(tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path))
    record_constraints(lake, Constraints(datetime.now(UTC)))
    runs = 8
    begin = threading.Barrier(runs)

    def record(number: int) -> None:
        begin.wait()
        for turn in range(3):
            record_constraints(lake, Constraints(datetime.now(UTC), enum_labels={number: (str(turn),)}))

    with ThreadPoolExecutor(runs) as threads:
        list(threads.map(record, range(runs)))
    assert recorded_constraints(lake) is not None


def test_constraints_without_parent_types_are_read() -> None:
    key = ForeignKeyConstraint("k", TableName("a", "b"), ("x",), TableName("a", "c"), ("y",), ("int4",))
    plain = json.loads(Constraints(datetime.now(UTC), (key,)).to_json())
    del plain["foreign_keys"][0]["referenced_types"]
    assert Constraints.from_json(json.dumps(plain), datetime.now(UTC)).foreign_keys == (key,)


def test_rules_leave_out_keys_that_they_break() -> None:
    """Equal rules keep a foreign key: hashes of equal values are equal."""
    child, parent = TableName("public", "orders"), TableName("public", "people")
    key = ForeignKeyConstraint("k", child, ("email",), parent, ("email",), ("text",), None, ("varchar",))
    constraints = Constraints(datetime.now(UTC), (key,))

    def weak(columns: dict[str, dict[str, Action]], where: dict[str, str]) -> str | None:
        return constraints.under(Rules.of(columns, where, "k" * 16)).foreign_keys[0].weak

    hashed: dict[str, Action] = {"email": "hash"}
    assert weak({}, {}) is None
    assert weak({"public.orders": hashed, "public.people": hashed}, {"public.orders": "true"}) is None
    assert "different rules for email" in str(weak({"public.orders": hashed}, {}))
    both = Rules.of({"public.orders": hashed, "public.people": hashed}, {}, "k" * 16)
    types = {("int4", "int8"): True, ("uuid", "uuid"): True, ("numeric", "numeric"): False}
    types |= {("citext", "citext"): False, ("bpchar", "bpchar"): False, ("text", "name"): False}
    for (own, other), safe in types.items():
        typed = dataclasses.replace(
            constraints, foreign_keys=(dataclasses.replace(key, types=(own,), referenced_types=(other,)),)
        )
        assert (typed.under(both).foreign_keys[0].weak is None) == safe, (own, other)
    assert "leaves rows of public.people out" in str(weak({}, {"public.people": "id < 5"}))
