"""Texts with conditional writes, and the leases built on them, in a catalog of a real session."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lake.catalog import lease_rows
from deltasmelt.bronze.lake.lease_objects import Found
from deltasmelt.bronze.lake.leases import leased, object_of, still_holding, still_writing, writing_of
from tests.fix_spark import rows_of
from tests.gold.catalog_world import CATALOG, lake_in_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with lake_in_catalog(spark, tmp_path_factory.mktemp("cells")) as lake_made:
        yield lake_made


def another(once: str) -> bytes:
    """Return the lease text of a remote process that renews its lease within a second."""
    content = {"holder": "x", "command": "smelt silver", "pid": 1, "host": "h", "put": "now", "seconds": 1}
    return json.dumps({**content, "once": once}).encode()


def test_of_concurrent_writes_one_succeeds(lake: Lake) -> None:
    root = lake.root
    assert lease_rows.read(root, "one") is None, "there is no table yet"
    with ThreadPoolExecutor(2) as pool:
        for over in (None, "what the first round left"):
            before = None if over is None else lease_rows.read(root, "one")
            bodies = [f"{over} it's {number} \\ ü".encode() for number in range(2)]
            put = list(
                pool.map(lambda body, before=before: lease_rows.put(root, "one", body, over=before), bodies)
            )
            (winner,) = [answer for answer in put if answer is not None]
            assert lease_rows.read(root, "one") == winner
            assert winner.body in bodies
        names = ["two", "three"]
        rows = list(pool.map(lambda name: lease_rows.put(root, name, b"{}", over=None), names))
    assert None not in rows, "each has a name of its own"
    assert lease_rows.put(root, "gone", b"{}", over=winner) is None


def test_a_concurrent_first_row_is_taken_back(spark: SparkSession, lake: Lake) -> None:
    mine = lease_rows.put(lake.root, "first", b"mine", over=None)
    assert mine is not None
    spark.sql(f"INSERT INTO {CATALOG}.control.leases VALUES ('first', 'theirs', '0')")
    assert lease_rows.read(lake.root, "first") == Found(b"theirs", "0")
    assert not lease_rows._is_first(lake.root, "first", mine)
    rows = rows_of(spark, f"SELECT body FROM {CATALOG}.control.leases WHERE name = 'first'")
    assert [row["body"] for row in rows] == ["theirs"]
    tags = ["a", "b"]
    values = ", ".join(f"('beside', 'x', '{tag}')" for tag in tags)
    spark.sql(f"INSERT INTO {CATALOG}.control.leases SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda tag: lease_rows._is_first(lake.root, "beside", Found(b"x", tag)), tags))
    assert first.count(True) <= 1, "each but the last one sees another"
    remaining = rows_of(spark, f"SELECT tag FROM {CATALOG}.control.leases WHERE name = 'beside'")
    assert [row["tag"] for row in remaining] == [tag for tag, alone in zip(tags, first, strict=True) if alone]


def test_a_lease_is_taken_lost_and_given_back(lake: Lake) -> None:
    root, name = lake.root, object_of("silver")
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        lease.check()
        mine = lease_rows.read(root, name)
        lease.renew()
        assert lease_rows.read(root, name) != mine
        assert lease_rows.put(root, name, another("1"), over=lease_rows.read(root, name)) is not None
        lease.renew()
        with pytest.raises(TransientError, match="taken over by `smelt silver`, process 1 on h"):
            lease.check()
        with pytest.raises(DefiniteError, match="no longer belongs to this process"):
            still_holding(lake, ["silver"])
    start = time.monotonic()
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        assert time.monotonic() - start > 1, "it may be alive"
        lease.check()
    start = time.monotonic()
    with leased(root, writing_of("silver"), command="smelt run", wait=True):
        still_writing(lake, "silver")
    assert time.monotonic() - start < 60, "else it would have waited for two minutes and more"


def test_a_foreign_table_of_leases_is_left_alone(spark: SparkSession, lake: Lake) -> None:
    spark.sql(f"DROP TABLE {CATALOG}.control.leases")
    lease_rows._known.clear()
    spark.sql(f"CREATE TABLE {CATALOG}.control.leases (name STRING, body STRING, tag STRING) USING DELTA")
    with (
        pytest.raises(DefiniteError, match="not a table of this pipeline") as raised,
        leased(lake.root, "gold", command="smelt gold", wait=False),
    ):
        pass
    assert raised.value.code == "catalog-name-taken"
    assert not rows_of(spark, f"SELECT * FROM {CATALOG}.control.leases")
