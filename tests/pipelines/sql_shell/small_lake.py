"""A lake with two cuts of a small table and a document, created without a server and without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from tests.silver.histories import INT, NUMERIC, BronzeWriter, relation

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = Lsn(0x100), Lsn(0x200)
ROWS = 200


def make_small_lake(folder: Path) -> Path:
    """Create the lake and its pipeline file; return the file."""
    file = folder / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'host=127.0.0.1 port=1 dbname=x', slot: s, publication: p}\n"
        "lake: {path: ./lake}\ngold: {documents: [customer.yml]}\n"
        "spark: {spark.master: 'local[2]', spark.driver.memory: 1g}\n"
    )
    (folder / "customer.yml").write_text("document: customer\nroot: public.orders\nfields: [id]\n")
    lake = Lake(path=str(folder / "lake"))
    bronze = BronzeWriter(lake)
    bronze.relations([relation("orders", [("id", INT), ("total", NUMERIC)], ["id"], relation_id=1)])
    control = ControlTables(lake)
    for number, lsn in enumerate((FIRST, SECOND)):
        moment = datetime(2026, 1, 1, 12 + number, tzinfo=UTC)
        ids = pa.array(range(1, (number + 1) * ROWS + 1), pa.int32())
        total = pa.array([f"{order_id.as_py()}.50" for order_id in ids]).cast(pa.decimal128(10, 2))
        orders = pa.table({"id": ids, "total": total, "note, odd": pa.array(['say "a"\nb'] * len(ids))})
        write_deltalake(lake.uri("silver", "orders"), orders, mode="overwrite")
        write_deltalake(lake.uri("gold", "customer"), pa.table({"id": ids}), mode="overwrite")
        tables = {"orders": number}
        if number:
            write_deltalake(lake.uri("silver", "late"), pa.table({"id": ids}))
            tables["late"] = 0
        control.record_cut(Cut("silver", lsn, moment, tables))
        control.record_cut(Cut("gold", lsn, moment, {"customer": number}))
    return file
