"""`smelt verify` finds each kind of silent fault that is made by hand in silver's tables.

No comparison by Spark finds the physical type of a timestamp in a Parquet file (INT96): `tests/readers` reads
files by other readers. Faults of gold's compiler are in `test_made_on_purpose`, damaged rows of gold in
`tests/gold/damage.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fix_postgres import drop_database, make_database
from tests.pipelines.in_process import smelt_here
from tests.pipelines.proof.test_against_source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

OWN = "_commit_lsn, _commit_ts, _unrepresentable"

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b int);
CREATE TABLE typed (id int PRIMARY KEY, m mood, p pair, a int, b int, n numeric(12,3), code text);
INSERT INTO typed SELECT i, 'sad', ROW(i, -i)::pair, i, -i, i + 0.125, NULL FROM generate_series(1, 20) i;
CREATE TABLE until (id int PRIMARY KEY, d date, f numeric(8,2), t timestamptz);
INSERT INTO until SELECT i, 'infinity', 'NaN', '-infinity' FROM generate_series(1, 20) i;
CREATE TABLE parted (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
INSERT INTO parted SELECT i, 1, 'v' FROM generate_series(1, 20) i;
CREATE TABLE history (id int PRIMARY KEY, v text);
INSERT INTO history SELECT i, 'v' FROM generate_series(1, 20) i;
CREATE TABLE restored (id int PRIMARY KEY, v text);
INSERT INTO restored SELECT i, 'v' FROM generate_series(1, 20) i;
CREATE TABLE lacking (id int PRIMARY KEY, v text, w text);
INSERT INTO lacking SELECT i, 'v', 'w' FROM generate_series(1, 20) i;
CREATE TABLE astext (id int PRIMARY KEY, n numeric(8,2));
INSERT INTO astext SELECT i, i FROM generate_series(1, 20) i;
"""

LATER = "UPDATE restored SET v = 'w' WHERE id < 5; DELETE FROM restored WHERE id > 15;"


@pytest.fixture(scope="module")
def source(
    spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Source]:
    dsn = make_database(server_dsn)
    yield Source(spark, tmp_path_factory.mktemp("faults"), dsn, (TABLES, LATER), "")
    drop_database(server_dsn, dsn)


def verify(source: Source, *more: str) -> tuple[int, dict[str, Any]]:
    done = smelt_here("verify", source.file, *more, "--output", "json", folder=source.folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_each_silent_fault_is_found(source: Source) -> None:
    """One comparison shows everything that is wrong at once."""
    source.carry()
    source.harm("UPDATE {history} SET v = 'of another history' WHERE id = 1")
    source.harm("DELETE FROM {history} WHERE id = 2")
    source.harm(f"INSERT INTO {{history}} SELECT 21, v, {OWN} FROM {{history}} WHERE id = 3")
    source.harm(f"INSERT INTO {{parted}} SELECT id, 2, v, {OWN} FROM {{parted}} WHERE id < 4")
    source.harm(
        "UPDATE {typed} SET m = IF(id = 1, 'happy', m), p = IF(id = 2, named_struct('a', p.b, 'b', p.a), p),"
        " a = IF(id = 3, b, a), b = IF(id = 3, a, b), n = IF(id = 4, round(n, 2), n),"
        " code = IF(id = 5, 'a', code) WHERE id <= 5"
    )
    source.harm(
        "UPDATE {until} SET _unrepresentable = CASE id WHEN 1 THEN NULL"
        " WHEN 2 THEN map_filter(_unrepresentable, (k, v) -> k <> 'd')"
        " WHEN 3 THEN map_filter(_unrepresentable, (k, v) -> k <> 'f') ELSE _unrepresentable END,"
        " d = IF(id = 4, DATE'9999-12-31', d) WHERE id <= 4"
    )
    source.harm("RESTORE TABLE {restored} TO VERSION AS OF 1")
    for name in ("lacking", "astext"):
        source.harm(f"ALTER TABLE {{{name}}} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    source.harm("ALTER TABLE {lacking} DROP COLUMN w")
    source.harm("ALTER TABLE {astext} DROP COLUMN n")
    source.harm("ALTER TABLE {astext} ADD COLUMN n STRING")
    source.harm("UPDATE {astext} SET n = CAST(id AS STRING) || '.00'")
    code, found = verify(source, "--table", "public.*")
    assert code == 1
    wrong = {one["name"]: one["counts"] for one in found["tables"] if not one["equal"]}
    left = {one["name"]: one["reason"] for one in found["not_compared"]}
    assert wrong["history"] == {"missing": 1, "surplus": 1, "differs": 1}
    assert wrong["parted"] == {"surplus": 3}
    assert wrong["typed"] == {"differs": 5}
    assert wrong["until"] == {"differs": 4}
    assert "restored" in wrong | left
    assert "lacking" in wrong | left
    assert "astext" in wrong | left
