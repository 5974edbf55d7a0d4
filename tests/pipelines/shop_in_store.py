"""A pipeline of two tables and a document with a lake in an object store, run as a user runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Self

from tests.object_store import lake_text
from tests.pipelines.processes import Command, Turns

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DOCUMENT: Final = """
document: customer
root: public.customers
fields:
  - id
  - name
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, total]}
"""
_JOB: Final = """
import json, sys
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.spark.session import spark_session
root, options, settings = map(json.loads, sys.argv[1:])
spark = spark_session(settings, lake=in_store(root, options), brief=True)
spark.range(1).count()
def append(table, who, number):
    rows = spark.sql("SELECT '%s' AS who, %s AS number" % (who, number))
    rows.write.format("delta").mode("append").save(table)
works = {"append": append}
print("\\n0 is how it ended", flush=True)
"""
"""A program with a session. The command ``append TABLE WHO NUMBER`` commits one row."""


def pipeline_file(
    folder: Path, database: str, slot: str, options: Mapping[str, str], *, more: str = ""
) -> Path:
    """Write the pipeline file, with leases of four seconds."""
    (folder / "customer.yml").write_text(DOCUMENT)
    file = folder / "shop.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {slot}, publication: smelt}}\n"
        f"{lake_text('s3://lake/shop', options, lease=4)}gold: {{documents: [customer.yml]}}\n{more}"
    )
    return file


def smelt(folder: Path, *arguments: str | Path) -> str:
    """Return the output of a command that must succeed."""
    with Command(*arguments, folder=folder) as command:
        assert command.wait() == 0, command.text()
        return command.text()


class Job(Turns):
    """A process with a session for commands on the lake in a store.

    Args:
        options: the store's options.
        settings: settings of the session.
    """

    def __init__(self, folder: Path, options: Mapping[str, str], settings: Mapping[str, str]) -> None:
        super().__init__(folder, _JOB, *map(json.dumps, ("s3://lake/shop", dict(options), dict(settings))))

    def __enter__(self) -> Self:
        self.answer()
        return self
