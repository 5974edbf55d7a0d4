"""Runs one step of a table: brings it to the step's shape, runs the statement, writes the mark.

What its changes come to is computed in `silver.run.step_source`.

The mark and the rows are one commit. The ALTERs before it are separate commits without the mark; each leaves
a table from which the rest follows (`silver.schema.alter`). So it does not matter between which two the
process ends, or which of them fails: a step leaves nothing but what the table itself says. Comments of the
source follow them in the same way (`silver.run.step_runner`).

Clustering affects speed alone. A clustering statement that fails stops no step; it is tried again between
cycles, after growing pauses. If the process ends before it, the table stays unclustered until its next
snapshot or TRUNCATE.

Takes the source's comments over into silver's tables, apart from rows; switches change feeds on again.

Neither stops rows. Without a change feed, which somebody may switch off, gold builds in full each time; the
versions in between have none, so gold's next build is a full one anyway. A statement that a catalog or Spark
refuses is logged once with its reason, and tried again after growing pauses, or as soon as it is another one.
Comments and feeds rest apart. What is to be done follows from the table itself
(`silver.schema.comments`); where the process ends in between, the next one finds the rest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.delta import checkpoint_interval, make_room
from deltasmelt.silver.fold import merge
from deltasmelt.silver.fold.upsert import as_merge
from deltasmelt.silver.run import step_source
from deltasmelt.silver.run.key_ranges import key_ranges
from deltasmelt.silver.run.marks import Mark, may_be_known
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema import alter, ddl, deleted_keys, padding
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
    """Statements of one kind, without which rows are right; those that are refused rest.

    Args:
        done: what is logged of a table, after its name, when they ran; nothing if empty.
        refused: what is logged when they are refused.
    """

    def __init__(self, done: str, refused: str) -> None:
        self._done = done
        self._words = refused
        self._pauses: Pauses[str] = Pauses()
        self._refused: dict[str, Sequence[str]] = {}

    def rests(self, name: str) -> bool:
        """Check whether a table's pause after a refusal is not over yet."""
        return self._pauses.rests(name)

    def due(self, name: str, statements: list[str]) -> list[str]:
        """Return those statements, or none while the very same rest."""
        return [] if self._refused.get(name) == statements and self.rests(name) else statements

    def run(self, writer: Writer, session: SparkSession, name: str, statements: Sequence[str]) -> bool:
        """Run statements on a table; return whether they ran, and log at the first time why they did not.

        Raises:
            TransientError: ``lease-lost``.
        """
        try:
            writer.run(session, name, *statements)
        except TransientError:
            raise
        except Exception:
            known = self._refused.get(name) == statements
            self._refused[name] = statements
            seconds = self._pauses.failed(name)
            level = logging.DEBUG if known else logging.WARNING
            words = "silver.%s %s; will try again in %.0f s"
            _LOGGER.log(level, words, name, self._words, seconds, exc_info=True)
            return False
        self._refused.pop(name, None)
        self._pauses.passed(name)
        if self._done:
            _LOGGER.warning("silver.%s %s", name, self._done)
        return True


class Descriptions:
    """Comments and change feeds of one lake's silver tables.

    Any thread may call any method, each for tables of its own.

    Args:
        lake: whose.
        log: expects each statement, which is a commit of its own.
    """

    def __init__(self, lake: Lake, log: SilverLog) -> None:
        self._lake = lake
        self._writer = Writer(lake, "silver", log)
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
            extra.run(self._writer, session, table.name, statements)
        return bool(due)


_TINY_TARGET: Final = 128 * 2**10
"""Bytes of a table up to which it is written again as a whole.

Time would allow for ten times as many; but what a cycle writes is kept as long as its cut is.
"""


def reshaping(
    target: str,
    step: Step,
    stored: Stored,
    settings: SilverSettings,
    finds: Callable[[str], bool] | None = None,
) -> list[str]:
    """Return the statements that bring a table to a step's shape.

    Args:
        target: the table.
        step: not of a table that is yet to be made.
        stored: the table as it is.
        settings: what becomes of columns.
        finds: checks whether a query finds a row (`silver.schema.deleted_keys`).

    Raises:
        TableError: a column changed in a way that stored values do not survive.
    """
    emptied = step.mode == "load" or (step.mode == "versions" and step.window.snapshot is not None)
    statements, fields = adopted(target, step.table, stored.fields, stored.relation)
    statements += padding.unpadded(target, step.table, fields, stored.properties, emptied=emptied)
    finds = None if statements else finds  # statements before it change names or values
    statements += deleted_keys.merged(target, step.table, fields, stored.properties, finds=finds)
    return statements + alter.steps(target, step.table, fields, settings, emptied=emptied)


def rows_touched(steps: Iterable[Step], changes: int, rows: int) -> int:
    """How many rows a window's steps touch at most.

    Args:
        steps: of one table.
        changes: that the window holds.
        rows: that the table holds; a snapshot or a TRUNCATE may end the version of each.
    """
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
        """Whether some table is not clustered as it should be."""
        return bool(self._owed)

    def cluster_owed(self, session: SparkSession, *, away: Collection[TableName] = ()) -> None:
        """Cluster tables by their keys that could not be clustered when their rows were written.

        Args:
            session: the thread's own session.
            away: tables that another thread is writing.
        """
        for name, table in list(self._owed.items()):
            if table.table not in away and not self._clustering.rests(name):
                target = self._lake.sql("silver", name)
                self._optional(session, table, clustered_again(target, table, statistics=True))

    def _optional(self, session: SparkSession, table: SilverTable, statements: Sequence[str]) -> None:
        """Run statements that cluster a table, without which its rows are right."""
        if self._clustering.run(self._writer, session, table.name, statements):
            self._owed.pop(table.name, None)
        else:
            self._owed[table.name] = table

    def run(self, session: SparkSession, step: Step, *, changes: int) -> int:
        """Run a step; returns the table's version after it.

        Args:
            session: the thread's own session.
            step: what to do.
            changes: how many changes the window holds.

        Raises:
            TableError: a column changed in a way that stored values do not survive.
            SmeltError: ``table-put-back``: what the step builds upon is gone; nothing was written.
                ``lake-commit-lost``: the log does not have what Spark committed.
        """
        if self._lake.place.needs_session:
            self._log.expect(step.table.name)
        # Into a table that is taken for empty rows are added: so it must be known that it is (`_run`).
        self._log.confirm(step.table.name, look=step.mode == "load")
        rows, size = self._log.size(step.table.name)
        small = rows_touched([step], changes, rows) <= SMALL
        tune(session, small=small)
        plan = ONE_TASK if small and rows <= SMALL_TARGET else {}
        if small and step.mode == "merge" and size <= _TINY_TARGET:
            plan = plan | REWRITTEN
        with settings(session, plan):
            return self._run(session, step, small=small, rows=rows)

    def _run(self, session: SparkSession, step: Step, *, small: bool, rows: int) -> int:
        """Run a step; the target has so many rows."""
        table, window = step.table, step.window
        target = self._lake.sql("silver", table.name)
        stored = self._shaped(session, step, target)
        if step.mode in {"alter", "describe"}:
            return stored.version
        if self._is_done(step, stored):
            return stored.version
        before = f"{target} VERSION AS OF {stored.version}"
        if step.mode == "versions":

            def ranges(found: Fold) -> dict[int, tuple[str, str]]:
                return self._ranges(session, table, found, stored.files)

            versions = step_source.versions(session, step, before, ranges, keep=small)
            self._read_target(session, small=small, rows=rows)
            return self._merge(session, step, stored, versions)
        folded = step_source.folded(session, step, before, keep=small and step.mode == "merge")
        if step.mode == "merge":
            within = self._ranges(session, table, folded, stored.files)
            known = small and not window.facts.inserts and not window.facts.old_tuples
            known = known and (stored.mark is None or stored.mark < window.end)
            known = known and may_be_known(session, self._uri(table))
            self._read_target(session, small=small, rows=rows)
            merged = merge.merge(table, folded, within, known=known)
            version = self._merge(session, step, stored, merged, known=known)
            if known and self._lacks_rows(table):
                whole = as_merge(target, merge.merge(table, folded, within))
                self._writer.run(session, table.name, whole)
                version = self._log.written(table.name).version
            return version
        # Into a new table rows are added: to replace what is there costs a statement more. Others may have
        # emptied a table that has a mark: only a commit that replaces all rows shows that the table is whole.
        replaces = step.mode == "load" and (stored.files > 0 or stored.mark is not None)
        version = self._insert(session, step, stored, folded, replaces=replaces)
        if replaces:
            self._optional(session, table, clustered_again(target, table))
        return version

    def _is_done(self, step: Step, stored: Stored) -> bool:
        """Whether the table holds the step's window: its mark says so, and all of its rows are there."""
        if stored.mark is None or stored.mark < step.window.end:
            return False
        return stored.mark > step.window.end or self._log.lacks_rows(step.table.name) is None

    def _lacks_rows(self, table: SilverTable) -> bool:
        """Whether a MERGE of known rows did not find all of them: somebody took them away.

        The whole MERGE puts them back, or stops the table where it cannot. It changes nothing else. The mark
        is on the table by then. So where the whole MERGE fails, or the process ends before it, the next start
        asks the log the same (`SilverLog.lacks_rows`), and folds the window again.
        """
        return self._log.lacks_rows(table.name) is not None

    def _read_target(self, session: SparkSession, *, small: bool, rows: int) -> None:
        """The statement to come reads the table: rows decide how it is best run, not the window's changes."""
        if small and rows > SMALL_TARGET:
            generate_code(session)

    def _merge(
        self, session: SparkSession, step: Step, stored: Stored, upsert: Upsert, *, known: bool = False
    ) -> int:
        """MERGE under the mark of the step's window; returns the table's version after it."""
        table, window = step.table, step.window
        mark = Mark(SILVER_APP, window.end, stored.mark, window.start if known else None)
        column = VALID_FROM_LSN if table.history else COMMIT_LSN
        self._writer.merge(session, table.name, upsert, mark, column=column)
        return self._log.committed(table.name, stored, window.end, "the window is folded").version

    def _insert(
        self, session: SparkSession, step: Step, stored: Stored, folded: Fold, *, replaces: bool
    ) -> int:
        """Add rows, or replace all, under the mark of the step's window; as `_merge`."""
        table, end = step.table, step.window.end
        rows = merge.rows(table, folded, alter.kept(table, stored.fields))
        self._writer.insert(session, table.name, rows, Mark(SILVER_APP, end, stored.mark), replaces=replaces)
        return self._log.committed(table.name, stored, end, "the window is folded").version

    def _uri(self, table: SilverTable) -> str:
        return self._lake.uri("silver", table.name)

    def _shaped(self, session: SparkSession, step: Step, target: str) -> Stored:
        """The table in the step's shape."""
        stored = self._log.read(step.table.name)
        if stored is None:
            uri = self._uri(step.table)
            make_room(uri)
            statements = ddl.create(target, step.table, checkpoints=checkpoint_interval(uri))
        elif step.mode not in {"alter", "describe"} and self._is_done(step, stored):
            return stored
        else:
            alone = step.mode == "describe"

            def finds(query: str) -> bool:
                if self._log.size(step.table.name)[0] > SMALL_TARGET:
                    tune(session, small=False)  # the query reads all rows, whatever the window holds
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
        """Key ranges of the fold, where the target has enough files and some of them may be skipped."""
        keys = {
            position: name
            for position, name in folded.keys.items()
            if merge.prunable(table.columns[position].spark_type)
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
