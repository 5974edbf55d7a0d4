"""One gold cycle in a separate process, to be killed: ``python -m tests.gold.cycle_process LAKE``."""

from __future__ import annotations

import sys

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.cycle import Gold
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE, document


def main() -> None:
    lake = Lake(path=sys.argv[1])
    spark = spark_session({"spark.driver.memory": "1g", "spark.master": "local[2]"}, brief=True)
    documents = [document(PARCEL_LINE), document(COUNTRY)]
    gold = Gold(
        spark,
        lake,
        documents,
        lambda: silver_catalog(read_relations(lake), SilverSettings()),
        ControlTables(lake),
    )
    print("cycle", flush=True)  # noqa: T201 - the test waits for it
    gold.cycle()
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
