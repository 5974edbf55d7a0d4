"""Test the marks in a commit, and tables whose names a catalog does not distinguish."""

from __future__ import annotations

from dataclasses import replace

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.errors import definite
from deltasmelt.silver.run.marks import KNOWN_AFTER, Mark, MarkWriter
from deltasmelt.silver.run.worklist import case_collisions
from deltasmelt.silver.schema.catalog import histories, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation


def test_known_row_merge_records_window_start_with_mark() -> None:
    mark = Mark("deltasmelt.silver", Lsn(20), Lsn(10), known_after=Lsn(10))
    marks = commit_marks.read({"operation": "MERGE", "userMetadata": mark.user_metadata})
    assert (marks.marks, marks.more) == ({"deltasmelt.silver": 20}, {KNOWN_AFTER: 10})
    assert mark.is_new
    assert not replace(mark, lsn=Lsn(10)).is_new


def test_mark_is_written_in_settings_or_condition() -> None:
    assert MarkWriter({"a": "b"}).conditions("t._commit_lsn") == ()
    assert MarkWriter({}, Lsn(7)).conditions("t._commit_lsn") == ("NOT (t._commit_lsn <=> -7L)",)


def test_case_colliding_names_are_both_rejected() -> None:
    shapes = [
        relation(name, [("id", INT)], ["id"], relation_id=at)
        for at, name in enumerate(("Orders", "orders", "items"), 1)
    ]
    errors = case_collisions([silver_table(shape, SilverSettings()) for shape in shapes])
    assert set(errors) == {TableName("public", "Orders"), TableName("public", "orders")}
    assert {error.code for error in errors.values()} == {"catalog-name"}


def test_history_name_counts_in_case_collisions() -> None:
    shapes = [
        relation(name, [("id", INT)], ["id"], relation_id=at)
        for at, name in enumerate(("Orders__History", "orders", "items", "items__history"), 1)
    ]
    settings = SilverSettings(history=["public.orders", "public.items"])
    tables = [silver_table(shape, settings) for shape in shapes]
    errors = {
        error.table.name: error for error in case_collisions([*tables, *histories(tables, settings)]).values()
    }
    assert set(errors) == {"Orders__History", "orders"}, "of names that are the same `check_table` tells"
    assert "silver.orders__history next to the table of public.Orders__History" in errors["orders"].message
    assert "next to the history of public.orders" in errors["Orders__History"].message


def test_catalog_name_errors_belong_to_table() -> None:
    table = TableName("public", "two words")
    said_by = [
        "[INVALID_SCHEMA_OR_RELATION_NAME] `two words` is not a valid name for tables/schemas. Valid names …",
        "org.apache.hadoop.hive.metastore.api.InvalidObjectException: two words is not a valid object name",
    ]
    for message in said_by:
        error = definite(table, RuntimeError(message))
        assert error is not None
        assert error.code == "catalog-name"
    assert definite(table, RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] no such table")) is None
