"""COMMENT ON at a real source, in silver: one flow, from the first snapshot through all changes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.comments import commented
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.silver.run.step_runner import Descriptions
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.schema.fields import is_of_source
from deltasmelt.silver.settings import SilverSettings
from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

ODD = 'it\'s "odd" \\ in\ncents 😀 ${HOME} -- ;'
LONG = "ä" * 2000


def described(source: RealSource, name: str) -> dict[str, str]:
    """Return Spark's DESCRIBE of a table and its columns; silver's comments without their attnum."""
    rows = source.spark.sql(f"DESCRIBE EXTENDED {source.lake.sql('silver', name)}").collect()
    end = next(at for at, row in enumerate(rows) if row["col_name"].startswith("# "))
    by_column = {row["col_name"]: row["comment"] for row in rows[:end] if is_of_source(row["comment"] or "")}
    by_column = {
        column: comment.rpartition("(attribute ")[0].rstrip() for column, comment in by_column.items()
    }
    whole = next(row["data_type"] for row in rows[end:] if row["col_name"] == "Comment")
    return {"": whole, **by_column}


def refused(source: RealSource) -> list[bool]:
    """Return whether statements ran, were due, and ran again, on a table that Spark does not find."""
    elsewhere = Lake(path=f"{source.lake.path}/elsewhere")
    log = SilverLog(source.lake).read("plain")
    comments = {
        relation.relation_id: Comments(relation.relation_id, "x") for relation in read_relations(source.lake)
    }
    shapes = silver_catalog(commented(read_relations(source.lake), comments), SilverSettings())
    table = shapes[TableName("public", "plain")]
    descriptions = Descriptions(elsewhere, SilverLog(elsewhere))
    assert log is not None
    ran = descriptions.take_over(source.spark, table, log)
    return [ran, bool(descriptions.due(table, log)), descriptions.take_over(source.spark, table, log)]


def versions(source: RealSource, *names: str) -> list[int]:
    return [DeltaTable(source.lake.uri("silver", name)).version() for name in names]


def test_silver_follows_source_comments(
    spark: SparkSession, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = RealSource(spark, database, f"{tmp_path}/lake", history=["orders"])
    source.play(
        "CREATE TABLE orders (id int PRIMARY KEY, total int, note text, hidden text);"
        "CREATE TABLE plain (id int PRIMARY KEY);"
        f"COMMENT ON TABLE orders IS $${ODD}$$;"
        f"COMMENT ON COLUMN orders.total IS $${ODD}$$; COMMENT ON COLUMN orders.note IS $${LONG}$$;"
        "COMMENT ON COLUMN orders.id IS 'attribute 9; rows before it: 1';"
        "INSERT INTO orders VALUES (1, 1, 'a', 'b'); INSERT INTO plain VALUES (1)"
    )
    source.read()
    source.fold()
    try:
        follows(source, caplog)
    finally:
        source.close()


def follows(source: RealSource, caplog: pytest.LogCaptureFixture) -> None:
    """Run the parts in order; each part continues from the state that the previous part left."""
    first = {"": ODD, "id": '"attribute 9; rows before it: 1"', "total": ODD, "note": LONG, "hidden": ""}
    assert described(source, "orders") == first
    of_history = described(source, "orders__history")
    assert of_history == {**first, "": f"{ODD} (versions of rows of public.orders)"}
    assert described(source, "plain") == {"": "Rows of public.plain", "id": ""}
    assert versions(source, "orders", "orders__history", "plain") == [2, 2, 1]  # the 😀 clusters apart

    # A mere change of a comment: one version, no row, and a cut with the version.
    source.play("COMMENT ON COLUMN orders.total IS 'in cents'")
    source.play("COMMENT ON COLUMN orders.note IS NULL")
    source.read()
    source.fold()
    assert described(source, "orders") == {**first, "total": "in cents", "note": ""}
    assert versions(source, "orders", "orders__history", "plain") == [3, 3, 1]
    assert source.cut is not None
    assert source.cut.tables == {"orders": 3, "orders__history": 3, "plain": 1}
    source.read()
    source.fold()
    assert versions(source, "orders", "orders__history", "plain") == [3, 3, 1]

    # Silver is behind: the comments are the present comments, on columns with their present names.
    source.play("INSERT INTO orders VALUES (2, 2, 'c', 'd')")
    source.play("ALTER TABLE orders RENAME total TO swapped", "ALTER TABLE orders RENAME note TO total")
    source.play("ALTER TABLE orders RENAME swapped TO note", "COMMENT ON COLUMN orders.note IS 'was total'")
    source.play("ALTER TABLE orders ADD added int DEFAULT 7", "COMMENT ON COLUMN orders.added IS 'new'")
    source.play("INSERT INTO orders VALUES (3, 3, 'e', 'f', 8)", "COMMENT ON TABLE orders IS 'Orders'")
    source.read()
    source.play("COMMENT ON COLUMN orders.added IS 'newer'")
    source.read()
    source.fold()
    now = {"": "Orders", "id": first["id"], "note": "was total", "total": "", "hidden": "", "added": "newer"}
    assert described(source, "orders") == now
    assert described(source, "orders__history") == {**now, "": "Orders (versions of rows of public.orders)"}
    assert source.differences(["orders", "plain"]) == {}

    # Dropped and recreated: the table inherits nothing, and comments missing at the source are removed.
    # Silver keeps columns that the source no longer has, with their comments.
    source.play("DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, total int)")
    source.play("INSERT INTO orders VALUES (5, 5)", "COMMENT ON COLUMN orders.total IS 'anew'")
    source.read()
    source.fold()
    expected = {"total__3": "", "hidden": "", "added": "newer"}
    anew = {"": "Rows of public.orders", "id": "", "total": "anew", **expected}
    assert described(source, "orders") == anew
    assert source.differences(["orders", "plain"]) == {}

    # A lake of an earlier release has no comments, and gets the comments from the reader's next catalog poll.
    source.play("COMMENT ON TABLE plain IS 'Plain'")
    shutil.rmtree(f"{source.lake.path}/control/comments")
    source.read()
    source.fold()
    assert described(source, "plain") == {"": "Plain", "id": ""}
    assert described(source, "orders") == anew
    assert source.errors() == {}
    assert refused(source) == [True, False, False]
    assert (
        sum(
            "silver.plain could not get the comments of its source" in record.getMessage()
            for record in caplog.records
        )
        == 1
    )
