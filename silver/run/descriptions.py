"""Takes the source's comments over into silver's tables, apart from their rows.

A comment stops no rows. One that a catalog or Spark refuses is said once with its reason, and tried again
after growing pauses, or as soon as it is another one. What is to be done follows from the table itself
(`silver.schema.comments`); where the process ends in between, the next one finds the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bronze.lake.leases import still_writing
from silver.run.pauses import Pauses
from silver.schema.comments import described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake
    from silver.run.stored import Stored
    from silver.run.table_log import SilverLog
    from silver.schema.catalog import SilverTable

_LOGGER: Final = logging.getLogger("deltasmelt.silver")


class Descriptions:
    """The comments of one lake's silver tables. Any thread may call any method, each for tables of its own.

    Args:
        lake: whose.
        log: is told of each statement, which is a commit of its own.
    """

    def __init__(self, lake: Lake, log: SilverLog) -> None:
        self._lake = lake
        self._log = log
        self._pauses: Pauses[str] = Pauses()
        self._refused: dict[str, list[str]] = {}

    def due(self, table: SilverTable, stored: Stored | None) -> list[str]:
        """Statements that are to be run on a table now; none of one whose rows are another relation's."""
        if stored is None or stored.relation not in (None, str(table.relation.relation_id)):
            return []
        target = self._lake.sql("silver", table.name)
        statements = described(target, table, stored.fields, stored.description)
        if statements and self._refused.get(table.name) == statements and self._pauses.rests(table.name):
            return []
        return statements

    def take_over(self, session: SparkSession, table: SilverTable, stored: Stored) -> bool:
        """Run what is due; returns whether anything was.

        Args:
            session: the thread's own session.
            table: the wanted shape.
            stored: the table as it is.
        """
        statements = self.due(table, stored)
        if not statements:
            return False
        still_writing(self._lake, "silver")
        self._log.expect(table.name)
        try:
            for statement in statements:
                session.sql(statement)
        except Exception:
            known = self._refused.get(table.name) == statements
            self._refused[table.name] = statements
            seconds = self._pauses.failed(table.name)
            _LOGGER.log(
                logging.DEBUG if known else logging.WARNING,
                "silver.%s does not get the comments of %s; will try again in %.0f s",
                table.name, table.table, seconds,
                exc_info=True,
            )  # fmt: skip
        else:
            self._refused.pop(table.name, None)
            self._pauses.passed(table.name)
        return True
