"""Silver's own sessions do not inherit settings of the owner's session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.semantics import PINNED
from deltasmelt.silver.spark.tuning import mark_settings, settings
from tests.fix_spark import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_owner_commit_mark_is_not_own(spark: SparkSession, tmp_path: Path) -> None:
    """With the owner's mark, Delta would skip every commit after the first."""
    with settings(spark, mark_settings("theirs", Lsn(7))):
        session = access_of(spark).child()
    target = f"delta.`{tmp_path / 't'}`"
    session.sql(f"CREATE TABLE {target} (id INT) USING DELTA")
    for number in (1, 2):
        session.sql(f"INSERT INTO {target} VALUES ({number})")
    assert rows_of(session, f"SELECT id FROM {target} ORDER BY id") == [(1,), (2,)]


@pytest.mark.spark
def test_settings_unknown_to_spark_are_restored(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta registers its settings when its classes load, which may be after the session was borrowed."""
    name = "spark.deltasmelt.unregistered"
    monkeypatch.setitem(PINNED, name, "ours")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with access_of(spark).borrow({}) as (session, _):
            assert (session.conf.get(name), session.conf.get("spark.sql.ansi.enabled")) == ("ours", "true")
        assert spark.conf.get(name, None) is None
        assert spark.conf.get("spark.sql.ansi.enabled") == "false"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
