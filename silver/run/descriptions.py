"""Takes the source's comments over into silver's tables, apart from rows; switches change feeds on again.

Neither stops rows. Without a change feed, which somebody may switch off, gold builds in full each time; the
versions in between have none, so gold's next build is a full one anyway. A statement that a catalog or Spark
refuses is logged once with its reason, and tried again after growing pauses, or as soon as it is another one.
Comments and feeds rest apart. What is to be done follows from the table itself
(`silver.schema.comments`); where the process ends in between, the next one finds the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from bronze.lake.leases import still_writing
from silver.run.pauses import Pauses
from silver.schema.comments import described
from silver.schema.ddl import feed_again

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake
    from silver.run.stored import Stored
    from silver.run.table_log import SilverLog
    from silver.schema.catalog import SilverTable

_LOGGER: Final = logging.getLogger("deltasmelt.silver")


class _Extra:
    """Statements of one kind, without which rows are right; those that are refused rest.

    Args:
        done: what is logged of a table, after its name, when they ran; nothing if empty.
        refused: what is logged when they are refused.
    """

    def __init__(self, done: str, refused: str) -> None:
        self._done = done
        self._words = refused
        self._pauses: Pauses[str] = Pauses()
        self._refused: dict[str, list[str]] = {}

    def due(self, name: str, statements: list[str]) -> list[str]:
        """Return those statements, or none while the very same rest."""
        return [] if self._refused.get(name) == statements and self._pauses.rests(name) else statements

    def run(self, session: SparkSession, name: str, statements: list[str]) -> None:
        """Run statements on a table; log at the first time why they are refused."""
        try:
            for statement in statements:
                session.sql(statement)
        except Exception:
            known = self._refused.get(name) == statements
            self._refused[name] = statements
            seconds = self._pauses.failed(name)
            level = logging.DEBUG if known else logging.WARNING
            words = "silver.%s %s; will try again in %.0f s"
            _LOGGER.log(level, words, name, self._words, seconds, exc_info=True)
        else:
            self._refused.pop(name, None)
            self._pauses.passed(name)
            if self._done:
                _LOGGER.warning("silver.%s %s", name, self._done)


class Descriptions:
    """Comments and change feeds of one lake's silver tables.

    Any thread may call any method, each for tables of its own.

    Args:
        lake: whose.
        log: is told of each statement, which is a commit of its own.
    """

    def __init__(self, lake: Lake, log: SilverLog) -> None:
        self._lake = lake
        self._log = log
        self._comments = _Extra("", "does not get the comments of its source")
        self._feeds = _Extra(
            "had its change feed switched off; it is on again",
            "has its change feed switched off, and it cannot be switched on: gold builds in full",
        )

    def due(self, table: SilverTable, stored: Stored | None) -> list[str]:
        """Return statements to be run on a table now; no comments where its rows are another relation's."""
        return [statement for _, statements in self._due(table, stored) for statement in statements]

    def _due(self, table: SilverTable, stored: Stored | None) -> list[tuple[_Extra, list[str]]]:
        if stored is None:
            return []
        target, found = self._lake.sql("silver", table.name), []
        if stored.relation in (None, str(table.relation.relation_id)):
            statements = described(target, table, stored.fields, stored.description)
            found.append((self._comments, self._comments.due(table.name, statements)))
        if not stored.has_feed:
            statements = feed_again(target, table, [field.name for field in stored.fields])
            found.append((self._feeds, self._feeds.due(table.name, statements)))
        return [(extra, statements) for extra, statements in found if statements]

    def take_over(self, session: SparkSession, table: SilverTable, stored: Stored) -> bool:
        """Run what is due; returns whether anything was.

        Args:
            session: the thread's own session.
            table: the wanted shape.
            stored: the table as it is.
        """
        due = self._due(table, stored)
        for extra, statements in due:
            still_writing(self._lake, "silver")
            self._log.expect(table.name)
            extra.run(session, table.name, statements)
        return bool(due)
