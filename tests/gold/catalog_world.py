"""The shop in a lake without a path: managed tables of a catalog.

The process ``python -m tests.gold.catalog_world FOLDER`` walks through the shop, and reports success at the
end.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Catalog
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.sql import literal
from tests.gold.shop import SHAPES
from tests.gold.world import Model, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop

CATALOG: Final = "spark_catalog"
LAYERS: Final = ("bronze", "silver", "gold", "control", "quality")
DONE: Final = "as PostgreSQL has it, without deltalake"

CUSTOMER: Final = """\
document: customer
root: public.customers
where: "deleted_at is null"
fields:
  - id
  - email: {sql: "lower(trim(email))"}
  - orders:
      many: public.orders
      on: {customer_id: id}
      order_by: [placed_at desc]
      fields: [id, total, status]
  - order_count: {count: public.orders, on: {customer_id: id}}
"""
RESHAPED: Final = CUSTOMER.replace("[id, total, status]", "[id, placed_at]").replace(
    "order_count", "number_of_orders"
)
"""A further field, a further element: columns come, go, and change their type."""


@contextmanager
def lake_in_catalog(spark: SparkSession, folder: Path) -> Iterator[Lake]:
    """Yield an empty lake in the session's own catalog; drop its schemas at the end.

    `folder` is an empty folder for the tables' files, because other tests may have left files in the
    session's own.
    """
    _drop(spark)
    for layer in LAYERS:
        spark.sql(f"CREATE SCHEMA {CATALOG}.{layer} LOCATION {literal((folder / layer).as_uri())}")
    try:
        place = Catalog(CATALOG)
        place.serve(lambda: spark)
        yield Lake(catalog=CATALOG, known=place)
    finally:
        _drop(spark)
        # Sibling sessions wrote the rows, and each became the active session.
        spark.createDataFrame([], "nothing INT")


def _drop(spark: SparkSession) -> None:
    for layer in (*LAYERS, "deltasmelt_scratch"):
        spark.sql(f"DROP SCHEMA IF EXISTS {CATALOG}.{layer} CASCADE")


def shop_in(spark: SparkSession, lake: Lake, *, history: bool) -> World:
    """Return customers and orders, with a document of both."""
    shapes = {name: SHAPES[name] for name in ("public.customers", "public.orders")}
    settings = SilverSettings(history=["public.orders"] if history else [])
    return World(spark, lake, [CUSTOMER], Model(shapes=shapes, tiny=True, silver=settings))


def arrive(shop: Shop) -> None:
    """Add only new rows."""
    shop.put("customers", id=77, email="New@x", tier="vip")
    shop.put("orders", id=901, customer_id=77, status="paid")
    shop.put("orders", id=902, customer_id=77, status="placed")


def change_and_move(shop: Shop) -> None:
    """Make an update, a key change, and a delete."""
    shop.put("customers", id=77, email="Other@x")
    shop.rekey("orders", (901,), id=903)
    shop.remove("orders", 902)


def main(folder: str) -> None:
    """Walk through the shop without loading `deltalake`."""
    spark = spark_session(
        {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.sql.warehouse.dir": folder}
    )
    with lake_in_catalog(spark, Path(folder)) as lake:
        world = shop_in(spark, lake, history=False)
        world.first()
        world.step(arrive)
        world.step(change_and_move)
        world.define([RESHAPED])
        world.step(lambda shop: shop.put("orders", id=904, customer_id=77), full={"customer": "definition"})
        if "deltalake" in sys.modules:
            raise RuntimeError("deltalake was imported")
        sys.stdout.write(DONE + "\n")
        sys.stdout.flush()
    os._exit(0)  # Spark's own end takes seconds


if __name__ == "__main__":
    main(sys.argv[1])
