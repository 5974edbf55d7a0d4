"""A table of silver behind the changes that bronze still has: which snapshot replaces what is gone. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.plan.activity import Activity
from deltasmelt.silver.run.worklist import check_kept
from deltasmelt.silver.schema.catalog import histories, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation

SHAPE = relation("orders", (("id", INT),), ["id"], relation_id=1)
PLAIN = silver_table(SHAPE, SilverSettings())
SOFT = silver_table(SHAPE, SilverSettings(deletes="soft"))
(HISTORY,) = histories([PLAIN], SilverSettings(history=["public.orders"]))
KEPT = Lsn(100)


def with_snapshot(lsn: int | None) -> Activity:
    return replace(Activity.none(), snapshot=None if lsn is None else Lsn(lsn))


def test_table_at_boundary_needs_no_snapshot() -> None:
    for table in (PLAIN, SOFT, HISTORY):
        for start in (99, 100, 150):
            check_kept(table, Lsn(start), None, KEPT, None)


def test_snapshot_replaces_only_current_rows() -> None:
    check_kept(PLAIN, Lsn(50), with_snapshot(100), KEPT, None)
    for table, activity, healed in (
        (PLAIN, with_snapshot(None), None),
        (PLAIN, with_snapshot(99), None),
        (PLAIN, None, Lsn(100)),
        (SOFT, with_snapshot(100), None),
        (HISTORY, with_snapshot(100), Lsn(99)),
    ):
        with pytest.raises(TableError) as raised:
            check_kept(table, Lsn(50), activity, KEPT, healed)
        assert raised.value.code == "changes-removed"
        assert ("smelt rebuild" in str(raised.value.remedy)) == table.versioned


def test_healed_gap_allows_versions_to_continue() -> None:
    for table in (SOFT, HISTORY):
        check_kept(table, Lsn(50), with_snapshot(120), KEPT, Lsn(120))
