"""Updates of rows that silver lacks: silver repairs or reports the rows, whenever the process ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.step_runner import StepRunner
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import signed
from tests.silver.histories import INT, TEXT, BronzeWriter, relation, update
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


PLAIN = (("id", INT), ("note", TEXT))
WIDE = relation("wide", PLAIN, ["id"], relation_id=3)
WIDER = relation("wide", [*PLAIN, ("more", TEXT)], ["id"], relation_id=3, from_lsn=24)
TAKEN, UNSENT = (
    relation(name, PLAIN, ["id"], relation_id=at) for at, name in enumerate(["taken", "unsent"], 1)
)


class EndedError(BaseException):
    """The end of the process."""


@pytest.mark.spark
def test_window_with_missing_rows_is_not_done(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"))
    bronze, control = BronzeWriter(lake), ControlTables(lake)

    def begun() -> Silver:
        return Silver(spark, lake, SilverSettings(), control)

    def rows(name: str, columns: str = "id, note") -> list[tuple[Any, ...]]:
        return cells_at(spark, lake, name, columns)

    first = begun()
    bronze.relations([TAKEN, UNSENT, WIDE])
    for shape in (TAKEN, UNSENT, WIDE):
        bronze.snapshot(shape, 10, [["1", "a"], ["2", "b"]])
    bronze.commit(20)
    first.cycle()

    for name in ("taken", "wide"):
        with signed(spark):
            spark.sql(f"DELETE FROM {lake.sql('silver', name)} WHERE id = 2")
    bronze.add(22, [update(WIDE, "1", "before the column")])
    bronze.relations([WIDER])
    bronze.add(24, [update(WIDER, "1", "after it", "m"), update(WIDER, "2", "B", "n")])
    bronze.add(
        25, [update(TAKEN, "1", "A"), update(TAKEN, "2", "B"), update(UNSENT, "7", None, toast="note")]
    )
    bronze.commit(30)
    with patch.object(StepRunner, "_lacks_rows", side_effect=EndedError), pytest.raises(EndedError):
        first.cycle()  # after the MERGE, and before the one that mends it
    first.close()

    for _ in range(2):  # a process that starts again must not take the mark for the rows
        second_start = begun()
        cut = second_start.cycle() or control.latest_cut("silver")
        second_start.close()
        assert rows("taken") == [(1, "A"), (2, "B")]
        assert rows("wide", "id, note, more") == [(1, "after it", "m"), (2, "B", "n")]
        assert cut is not None
        assert set(cut.tables) == {"taken", "wide"}
        assert [error.code for error in control.open_errors()] == ["value-missing"]

    bronze.snapshot(UNSENT, 35, [["7", "known"]])
    bronze.add(45, [update(TAKEN, "2", "C")])
    bronze.commit(50)
    healed = begun()
    cut = healed.cycle()
    healed.close()
    assert cut is not None
    assert set(cut.tables) == {"taken", "unsent", "wide"}
    assert (rows("taken"), rows("unsent")) == ([(1, "A"), (2, "C")], [(7, "known")])
