"""A refused comment or change feed of a table stays undone, each kind by itself, and stops no table."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.run.step_runner import Descriptions
from deltasmelt.silver.run.stored import Stored
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.schema.ddl import FEED
from deltasmelt.silver.schema.fields import DeltaColumn
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


class Refusing:
    """A session of a catalog that allows no user to set table properties."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def sql(self, statement: str) -> Any:
        self.ran.append(statement)
        if "TBLPROPERTIES" in statement:
            raise RuntimeError("PERMISSION_DENIED")
        return SimpleNamespace(collect=list)


def test_unavailable_feed_pauses_independently_of_comments(
    lake_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lake, session = Lake(lake_path), Refusing()
    shape = replace(relation("t", [("id", INT)], ["id"], relation_id=1), comments=Comments(1, "all"))
    (table,) = silver_catalog([shape], SilverSettings()).values()
    stored = Stored(3, Lsn(10), (DeltaColumn("id", 1, "INT", comment="attribute 1"),), 1)
    descriptions = Descriptions(lake, SilverLog(lake))
    assert descriptions.take_over(cast("SparkSession", session), table, stored)
    assert [FEED in statement for statement in session.ran] == [False, True]
    warning = "silver.t has its change feed disabled, and silver cannot enable it: gold builds in full"
    assert [warning in message for message in caplog.messages] == [True]
    described = replace(stored, description="all")
    assert not descriptions.due(table, described), "it rests"
    assert not descriptions.take_over(cast("SparkSession", session), table, described)
    assert len(descriptions.due(table, stored)) == 1, "a comment is due by itself"
