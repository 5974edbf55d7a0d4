"""Run one step of a table: change the table to the step's shape, run the statement, write the mark.

The mark and the rows are one commit. ALTERs before the commit are separate commits without the mark, and
after each ALTER the rest follows from the table (`silver.schema.alter`). So a kill, or a failed call, between
any two statements leaves nothing but the table's own state.

Statements for clustering, for the source's comments and for change feeds never stop rows. A rejected
statement is retried after growing pauses, or as soon as the statement changes; each kind pauses separately.
The due statements follow from the table, so after a kill the next process runs the rest. Clustering alone is
not in the table's state: if the process ends before the retry, the table stays unclustered until the next
snapshot or TRUNCATE.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.errors import TransientError
from deltasmelt.silver.fold import write_sql
from deltasmelt.silver.fold.upsert import as_merge
from deltasmelt.silver.run import step_source
from deltasmelt.silver.run.key_ranges import key_ranges
from deltasmelt.silver.run.marks import Mark, may_be_known
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema import alter, deleted_keys, padding
from deltasmelt.silver.schema.catalog import COMMIT_LSN, VALID_FROM_LSN
from deltasmelt.silver.schema.clustering import clustered_again, is_optional
from deltasmelt.silver.schema.comments import described
from deltasmelt.silver.schema.ddl import adopted, feed_again
from deltasmelt.silver.spark.tuning import (
    ONE_TASK,
    REWRITTEN,
    SMALL,
    SMALL_TARGET,
    generate_code,
    settings,
    tune,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.silver.fold.fold import Fold
    from deltasmelt.silver.fold.upsert import Upsert
    from deltasmelt.silver.plan.steps import Step
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.run.table_log import SilverLog
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings

_LOGGER: Final = logging.getLogger("deltasmelt.silver")


class _Extra:
    """Optional statements of one kind; rejected statements pause.

    `done` is the log text about a table after success, none if empty, `refused` after a rejection.
    """

    def __init__(self, done: str, refused: str) -> None:
        self._done = done
        self._words = refused
        self._pauses: Pauses[str] = Pauses()
        self._refused: dict[str, Sequence[str]] = {}

    def rests(self, name: str) -> bool:
        """Check whether a table's pause after a rejection still runs."""
        return self._pauses.rests(name)

    def due(self, name: str, statements: list[str]) -> list[str]:
        """Return the statements, or none while equal statements pause."""
        return [] if self._refused.get(name) == statements and self.rests(name) else statements

    def run(self, writer: Writer, session: SparkSession, name: str, statements: Sequence[str]) -> bool:
        """Run statements on a table; return whether the statements ran.

        Raises:
            TransientError: ``lease-lost``: the process may write nothing more.
        """
        try:
            writer.run(session, name, *statements)
        except TransientError:
            raise
        except Exception:
            # The log states the reason of a rejection once.
            known = self._refused.get(name) == statements
            self._refused[name] = statements
            seconds = self._pauses.failed(name)
            level = logging.DEBUG if known else logging.WARNING
            words = "silver.%s %s; silver retries in %.0f s"
            _LOGGER.log(level, words, name, self._words, seconds, exc_info=True)
            return False
        self._refused.pop(name, None)
        self._pauses.passed(name)
        if self._done:
            _LOGGER.warning("silver.%s %s", name, self._done)
        return True


class Descriptions:
    """Comments and change feeds of one lake's silver tables.

    Threads may call all methods in parallel for different tables.
    """

    def __init__(self, lake: Lake, log: SilverLog) -> None:
        self._lake = lake
        self._writer = Writer(lake, "silver", log)
        self._comments = _Extra("", "could not get the comments of its source")
        self._feeds = _Extra(
            "had its change feed disabled; the feed is enabled again",
            "has its change feed disabled, and silver cannot enable it: gold builds in full",
        )

    def due(self, table: SilverTable, stored: Stored | None) -> list[str]:
        """Return statements that a table needs now; no comments where the rows belong to another relation."""
        return [statement for _, statements in self._due(table, stored) for statement in statements]

    def _due(self, table: SilverTable, stored: Stored | None) -> list[tuple[_Extra, list[str]]]:
        if stored is None:
            return []
        target, found = self._lake.sql("silver", table.name), []
        if stored.relation in (None, str(table.relation.relation_id)):
            statements = described(target, table, stored.fields, stored.description)
            found.append((self._comments, self._comments.due(table.name, statements)))
        # A user may switch the feed off. Gold builds in full without a feed, and once more for the versions
        # in between, which have none.
        if not stored.has_feed:
            statements = feed_again(target, table, [field.name for field in stored.fields])
            found.append((self._feeds, self._feeds.due(table.name, statements)))
        return [(extra, statements) for extra, statements in found if statements]

    def take_over(self, session: SparkSession, table: SilverTable, stored: Stored) -> bool:
        """Run due statements, in the calling thread's session; return whether any statement was due."""
        due = self._due(table, stored)
        for extra, statements in due:
            extra.run(self._writer, session, table.name, statements)
        return bool(due)


_RANGED_ABOVE: Final = SMALL_TARGET
_RANGED_ABOVE_BYTES: Final = 32 * 2**20
"""Rows and bytes of a table up to which a read of all its files costs less than a query for key ranges.

The bytes count for a table of versions alone, which reads all values (`fold.row_versions`). Any other MERGE
first reads the keys.
"""
_TINY_TARGET: Final = 128 * 2**10
"""Bytes of a table up to which a MERGE rewrites the whole table.

A rewrite of ten times as many bytes would be fast enough, but a cycle's files stay as long as the cut.
"""


def reshaping(
    target: str,
    step: Step,
    stored: Stored,
    settings: SilverSettings,
    finds: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return the statements that change a table to a step's shape.

    `finds` checks whether a query returns a row (`silver.schema.deleted_keys`).

    Raises:
        TableError: a column's new type cannot hold the stored values.
    """
    emptied = step.mode == "load" or (step.mode == "versions" and step.window.snapshot is not None)
    statements, fields = adopted(target, step.table, stored.fields, stored.relation)
    statements += padding.unpadded(target, step.table, fields, stored.properties, emptied=emptied)
    finds = None if statements else finds  # earlier statements change names or values
    statements += deleted_keys.merged(target, step.table, fields, stored.properties, finds=finds)
    return statements + alter.steps(target, step.table, fields, settings, emptied=emptied)


def rows_touched(steps: Iterable[Step], changes: int, rows: int) -> int:
    """Return an upper limit of the rows that a window's steps change, of one table with so many rows."""
    # A snapshot or a TRUNCATE may end each row's version.
    ends_all = any(step.mode == "versions" and step.window.ends_all for step in steps)
    return changes + (rows if ends_all else 0)


class StepRunner:
    """Runs steps on the tables of one lake."""

    def __init__(
        self,
        lake: Lake,
        settings: SilverSettings,
        log: SilverLog,
        descriptions: Descriptions | None = None,
    ) -> None:
        self._lake = lake
        self._settings = settings
        self._log = log
        self._writer = Writer(lake, "silver", log)
        self._descriptions = Descriptions(lake, log) if descriptions is None else descriptions
        self._owed: dict[str, SilverTable] = {}
        self._clustering = _Extra("", "could not be clustered")

    @property
    def owes_clustering(self) -> bool:
        """Whether some table still lacks its clustering."""
        return bool(self._owed)

    def cluster_owed(self, session: SparkSession, *, unfinished: Collection[TableName] = ()) -> None:
        """Cluster tables by their keys where clustering failed when the rows were written.

        `unfinished` are tables that another thread is writing.
        """
        for name, table in list(self._owed.items()):
            if table.table not in unfinished and not self._clustering.rests(name):
                target = self._lake.sql("silver", name)
                self._optional(session, table, clustered_again(target, table, statistics=True))

    def _optional(self, session: SparkSession, table: SilverTable, statements: Sequence[str]) -> None:
        """Run statements that only cluster a table; a failure leaves the rows right."""
        if self._clustering.run(self._writer, session, table.name, statements):
            self._owed.pop(table.name, None)
        else:
            self._owed[table.name] = table

    def run(self, session: SparkSession, step: Step, *, changes: int) -> int:
        """Run a step with so many changes; return the table's version after the step.

        Raises:
            TableError: a column's new type cannot hold the stored values.
            SmeltError: ``table-put-back``: the table's known version is lost; nothing was written.
                ``lake-commit-lost``: the log lacks a commit that Spark reported.
        """
        # A load into an empty table adds rows (`_run`), so the log must confirm that the table is empty.
        self._log.confirm(step.table.name, reread=step.mode == "load")
        rows, size = self._log.size(step.table.name)
        small = rows_touched([step], changes, rows) <= SMALL
        tune(session, small=small)
        plan = ONE_TASK if small and rows <= SMALL_TARGET else {}
        if small and step.mode == "merge" and size <= _TINY_TARGET:
            plan = plan | REWRITTEN
        with settings(session, plan):
            ranged = rows > _RANGED_ABOVE or (step.mode == "versions" and size > _RANGED_ABOVE_BYTES)
            return self._run(session, step, small=small, rows=rows, ranged=ranged)

    def _run(self, session: SparkSession, step: Step, *, small: bool, rows: int, ranged: bool) -> int:
        table, window = step.table, step.window
        target = self._lake.sql("silver", table.name)
        stored = self._shaped(session, step, target)
        if step.mode in {"alter", "describe"}:
            return stored.version
        if self._is_done(step, stored):
            return stored.version
        before = f"{target} VERSION AS OF {stored.version}"
        if step.mode == "versions":

            def ranges(folded: Fold) -> dict[int, tuple[str, str]]:
                return self._ranges(session, table, folded, stored.files) if ranged else {}

            versions = step_source.versions(session, step, before, ranges, keep=small)
            self._read_target(session, small=small, rows=rows)
            return self._merge(session, step, stored, versions)
        folded = step_source.folded(session, step, before, keep=small and step.mode == "merge")
        if step.mode == "merge":
            within = self._ranges(session, table, folded, stored.files) if ranged else {}
            known = small and not window.facts.inserts and not window.facts.old_tuples
            known = known and (stored.mark is None or stored.mark < window.end)
            known = known and may_be_known(session, self._uri(table))
            self._read_target(session, small=small, rows=rows)
            merged = write_sql.merge(table, folded, within, known=known)
            version = self._merge(session, step, stored, merged, known=known)
            if known and self._lacks_rows(table):
                # The whole MERGE adds the missing rows, or stops the table, and changes nothing else. The
                # table already has the mark: if the whole MERGE fails, or the process ends before it, the
                # next start reads the log again (`SilverLog.lacks_rows`) and repeats the window.
                whole = as_merge(target, write_sql.merge(table, folded, within))
                self._writer.run(session, table.name, whole)
                version = self._log.written(table.name).version
            return version
        # A new table gets an INSERT, because an overwrite costs one more statement. A foreign commit may have
        # emptied a table with a mark: only a commit that replaces all rows proves a whole table.
        replaces = step.mode == "load" and (stored.files > 0 or stored.mark is not None)
        version = self._insert(session, step, stored, folded, replaces=replaces)
        if replaces:
            self._optional(session, table, clustered_again(target, table))
        return version

    def _is_done(self, step: Step, stored: Stored) -> bool:
        """Check whether the table holds the step's window: the mark states the window; no row is missing."""
        if stored.mark is None or stored.mark < step.window.end:
            return False
        return stored.mark > step.window.end or self._log.lacks_rows(step.table.name) is None

    def _lacks_rows(self, table: SilverTable) -> bool:
        """Check whether a MERGE of known rows missed rows because a foreign commit removed the rows."""
        return self._log.lacks_rows(table.name) is not None

    def _read_target(self, session: SparkSession, *, small: bool, rows: int) -> None:
        """Tune a statement over the table: the table's rows decide, not the window's changes."""
        if small and rows > SMALL_TARGET:
            generate_code(session)

    def _merge(
        self, session: SparkSession, step: Step, stored: Stored, upsert: Upsert, *, known: bool = False
    ) -> int:
        """Run a MERGE under the mark of the step's window; return the table's version after the MERGE."""
        table, window = step.table, step.window
        mark = Mark(SILVER_APP, window.end, stored.mark, window.start if known else None)
        column = VALID_FROM_LSN if table.history else COMMIT_LSN
        self._writer.merge(session, table.name, upsert, mark, column=column)
        return self._log.committed(table.name, stored, window.end, "the window is folded").version

    def _insert(
        self, session: SparkSession, step: Step, stored: Stored, folded: Fold, *, replaces: bool
    ) -> int:
        """Add rows, or replace all rows, under the mark of the step's window; return the table's version."""
        table, end = step.table, step.window.end
        rows = write_sql.rows(table, folded, alter.former_columns(table, stored.fields))
        self._writer.insert(session, table.name, rows, Mark(SILVER_APP, end, stored.mark), replaces=replaces)
        return self._log.committed(table.name, stored, end, "the window is folded").version

    def _uri(self, table: SilverTable) -> str:
        return self._lake.uri("silver", table.name)

    def _shaped(self, session: SparkSession, step: Step, target: str) -> Stored:
        """Change the table to the step's shape; return the table's state."""
        stored = self._log.read(step.table.name)
        if stored is None:
            statements = self._writer.create(session, step.table)
        elif step.mode not in {"alter", "describe"} and self._is_done(step, stored):
            return stored
        else:
            alone = step.mode == "describe"

            def finds(query: str) -> bool:
                if self._log.size(step.table.name)[0] > SMALL_TARGET:
                    tune(session, small=False)  # the query reads all rows, however small the window is
                return bool(session.sql(query).take(1))

            statements = [] if alone else reshaping(target, step, stored, self._settings, finds)
        for statement in statements:
            if is_optional(target, statement):
                self._optional(session, step.table, [statement])
            else:
                self._writer.run(session, step.table.name, statement)
        if stored is None or statements:
            stored = self._log.written(step.table.name)
        if self._descriptions.take_over(session, step.table, stored):
            stored = self._log.written(step.table.name)
        return stored

    def _ranges(
        self, session: SparkSession, table: SilverTable, folded: Fold, files: int
    ) -> dict[int, tuple[str, str]]:
        """Return key ranges of the fold, where the MERGE may skip files."""
        keys = {
            position: name
            for position, name in folded.keys.items()
            if write_sql.prunable(table.columns[position].spark_type)
        }
        return key_ranges(
            session,
            folded.query,
            keys,
            files=files,
            share=lambda position, low, high: self._log.share(
                table.name, table.columns[position].name, low, high
            ),
        )
