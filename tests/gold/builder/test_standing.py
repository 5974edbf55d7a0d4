"""Which documents a cut leaves as they are, told by logs alone, and which are left to Spark. Needs none."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from bronze.errors import ConfigurationError
from bronze.lake import delta
from bronze.lake.control import Cut, OpenError, Run
from bronze.lake.control_tables import ControlTables
from bronze.lake.location import Lake
from bronze.lsn import Lsn
from gold.builder.definition import PROVEN, proof
from gold.builder.gold_table import DEFINITION_PROPERTY
from gold.builder.spark_settings import GOLD_APP
from gold.builder.standing import Standing
from gold.cycle import Gold
from gold.tree.check import resolved
from silver.run.lazy_session import LazySession
from silver.run.table_log import SilverLog
from tests.gold.shop import catalog
from tests.gold.shop_documents import document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from silver.schema.catalog import SilverTable
    from tests.gold.shop import Shapes

SHAPES: Final[Shapes] = {
    "public.orders": ({"id": "int8", "status": "text"}, ("id",)),
    "public.order_items": ({"order_id": "int8", "line": "int2", "sku": "text"}, ("order_id", "line")),
}
LINES: Final = """
document: lines
root: public.orders
fields:
  - id
  - items: {many: public.order_items, on: {order_id: id}, fields: [line, sku]}
"""
MEANING: Final = "Spark 4"
STARTED: Final = ConfigurationError("Spark was started", code="java-missing")


class Built:
    """A lake in which the document `lines` was built from silver's cut at LSN 20; silver is at LSN 30."""

    def __init__(self, path: str) -> None:
        self.lake, self.text, self.meaning, self.starts = Lake(path), LINES, str(MEANING), 0
        self.control, self.shapes = ControlTables(self.lake), dict(SHAPES)
        for name in ("orders", "order_items"):
            self.append(name)
        tables = {"orders": 0, "order_items": 0}
        self.control.record_cut(Cut("silver", Lsn(20), None, tables))
        self.write_gold(20)
        self.control.record_cut(Cut("gold", Lsn(20), None, {"lines": 1}))
        definition = proof(self.document, resolved(self.document, self.catalog()), "d", MEANING)
        self.run(details={PROVEN: definition})
        self.control.record_cut(Cut("silver", Lsn(30), None, tables))

    @property
    def document(self) -> Any:
        return document(self.text)

    def catalog(self) -> Mapping[TableName, SilverTable]:
        return catalog(self.shapes)

    def append(self, name: str) -> None:
        write_deltalake(self.lake.uri("silver", name), pa.table({"id": [1]}), mode="append")

    def write_gold(self, lsn: int, definition: str = "d") -> None:
        uri, rows = self.lake.uri("gold", "lines"), pa.table({"id": [1]})
        delta.open_or_create(uri, rows.schema, description="", properties={DEFINITION_PROPERTY: definition})
        mark = CommitProperties(app_transactions=[Transaction(GOLD_APP, lsn)])
        write_deltalake(uri, rows, mode="append", commit_properties=mark)

    def run(self, details: dict[str, object]) -> None:
        self.control.record_runs([Run("gold", "lines", "full", None, Lsn(20), details=details)])

    def cut(self, **tables: int) -> None:
        self.control.record_cut(Cut("silver", Lsn(40), None, tables))

    def cycle(self) -> Cut | None:
        def start() -> SparkSession:
            self.starts += 1
            raise STARTED

        lazy = LazySession(start, meaning=self.meaning or None)
        return Gold(lazy, self.lake, [self.document], self.catalog, self.control).cycle()


@pytest.fixture
def built(lake_path: str) -> Built:
    return Built(lake_path)


def test_a_cut_that_changed_no_row_is_recorded_and_an_error_that_has_healed_is_closed(built: Built) -> None:
    built.control.open_error(OpenError("document", "lines", "document-waits", "m"))
    for lsn in (30, 40):
        cut = built.cycle()
        assert cut is not None
        assert (cut.commit_lsn, cut.tables) == (Lsn(lsn), {"lines": 1})
        run = built.control.runs("gold", "lines", limit=1)[0]
        assert (run.mode, run.from_lsn, run.to_lsn, run.delta_version) == ("none", lsn - 10, lsn, 1)
        built.cut(orders=0, order_items=0)
    assert built.control.open_errors() == []
    assert built.starts == 0


def test_a_cut_of_an_earlier_release_is_recorded_again_once_with_marks(built: Built) -> None:
    built.control.record_cut(Cut("gold", Lsn(30), None, {"lines": 1}))
    cut = built.cycle()
    assert cut is not None
    assert (cut.commit_lsn, cut.tables, cut.marks) == (Lsn(30), {"lines": 1}, {"lines": Lsn(20)})
    assert built.cycle() is None
    assert built.starts == 0


def test_versions_that_only_state_a_property_leave_a_document_as_it_is(built: Built) -> None:
    for layer, name in (("silver", "orders"), ("gold", "lines")):
        table = DeltaTable(built.lake.uri(layer, name))  # type: ignore[arg-type]
        table.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    built.cut(orders=1, order_items=0)
    cut = built.cycle()
    assert cut is not None
    assert cut.tables == {"lines": 2}


def changed_rows(built: Built) -> None:
    built.append("order_items")
    built.cut(orders=0, order_items=1)


def other_type(built: Built) -> None:
    built.shapes["public.orders"] = ({"id": "int4", "status": "text"}, ("id",))


def other_key(built: Built) -> None:
    built.shapes["public.order_items"] = (SHAPES["public.order_items"][0], ("order_id", "sku"))


def other_text(built: Built) -> None:
    built.text = LINES.replace("[line, sku]", "[line]")


def other_spark(built: Built) -> None:
    built.meaning = "Spark 5"


def unknown_spark(built: Built) -> None:
    built.meaning = ""


def no_table(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))


def no_silver_table(built: Built) -> None:
    shutil.rmtree(built.lake.uri("silver", "orders"))


def made_anew(built: Built) -> None:
    """Its log reaches the version of the cut again, with other rows."""
    shutil.rmtree(built.lake.uri("silver", "orders"))
    built.append("orders")


def another_definition(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))
    built.write_gold(20, "e")


def put_back(built: Built) -> None:
    shutil.rmtree(built.lake.uri("gold", "lines"))
    built.write_gold(10)
    built.control.record_cut(Cut("gold", Lsn(20), None, {"lines": 7}))


def others_wrote(built: Built) -> None:
    """A cut without marks excuses nothing: gold has always set a mark with each of its documents' commits."""
    DeltaTable(built.lake.uri("gold", "lines")).update({"id": "id + 1"})


def long_ago(built: Built) -> None:
    for _ in range(5):
        built.run({})


@pytest.mark.parametrize(
    "what",
    [
        changed_rows, other_type, other_key, other_text, other_spark, unknown_spark, no_table,
        no_silver_table, made_anew, another_definition, put_back, others_wrote,
        long_ago,
    ],
    ids=lambda what: what.__name__,
)  # fmt: skip
def test_whatever_is_not_sure_is_left_to_spark(built: Built, what: Callable[[Built], None]) -> None:
    what(built)
    last = built.control.latest_cut("gold")
    with pytest.raises(ConfigurationError, match="Spark was started"):
        built.cycle()
    assert built.starts == 1
    assert built.control.open_errors() == [], "it is no document's failure"
    assert built.control.latest_cut("gold") == last


def test_a_document_that_is_wrong_is_told_without_spark(built: Built) -> None:
    built.text = LINES.replace("sku", "skew")
    assert built.cycle() is not None, "the cut leaves it out"
    (error,) = built.control.open_errors()
    assert (error.name, error.code) == ("lines", "document-invalid")
    assert built.starts == 0


def test_a_document_whose_table_was_removed_is_named_by_no_cut_any_more(built: Built) -> None:
    standing = Standing(built.lake, built.document, SilverLog(built.lake), built.control)
    assert standing.written_by_others(standing.table.state()) is None
    assert [cut.tables for cut in built.control.cuts("gold")] == [{"lines": 1}]
    shutil.rmtree(built.lake.uri("gold", "lines"))
    assert standing.written_by_others(standing.table.state()) is None
    assert [cut.tables for cut in built.control.cuts("gold")] == [{}]
