"""Building one document's table from one silver cut, fully or by its changes.

*State.* The gold table itself says where it stands: Delta's application transaction ``deltasmelt.gold``
(version: the cut's LSN), written in the same commit as the data, and the property
``deltasmelt.definition``, a digest of the definition, the compiled types and the columns behind them,
written in the same commit as the first data of that definition.

*Killed anywhere.* Before the one commit of a build, the table is as before and its mark says so: the same
changes are read again. After it, mark and data are both new. Building twice from an older mark gives the
same documents, because they are made from the cut's rows and not from the old documents; the feed only says
which of them to make. So a cycle can be repeated at will.

*Full builds* happen for a first build, for a changed definition (one ``CREATE OR REPLACE TABLE … AS
SELECT``, which swaps data, schema and property in one commit), and where the feed of changes between the
two cuts cannot be read (one MERGE that also deletes what is gone, so that unchanged documents are not
written again). The reason is recorded. One that was asked for (`smelt rebuild`) trusts nothing that the table
says of itself: what a document holds is compared, not the hash beside it, and a table in which a document
stands twice, which no MERGE can put right, is replaced.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltalake.schema import StructType

from bronze.lake import delta
from bronze.lake.control import Cut, Run
from bronze.lsn import Lsn
from gold.incremental.affected import PLACES, SIDE, Affected, affected_roots
from gold.compile.query import FLAGS, KEY, Compiled, counting, flag_column
from gold.compile.compiler import compile_tree, count_flagged
from gold.build.failures import SPARK_ERRORS, condition
from gold.incremental.change_feed import FeedUnreadableError, images_query, made_again
from gold.build.kept import Kept
from gold.build.memory import Plan, Room, Sizes
from gold.build.memory import plan as make_plan
from gold.build.merging import ROOT, Merging, is_little, size_of
from gold.build.views import PinnedTables
from gold.build.spark_settings import BYTES, GOLD_APP, HASH, INTERPRETED, LEAN, LSN, ONE_TASK, SMALL_PLAN, SORTED, content_hash, hash_and_bytes, partitions, read_by
from gold.build.sizing import LARGEST, Sizing
from gold.incremental.starts import holds_the_same
from gold.compile.column_types import schema_of
from gold.build.weights import Roots
from silver.schema.live_rows import keeps_deleted
from silver.run.pinned import unpinned
from silver.run.sessions import mark, own_session
from silver.run.spark_settings import settings
from silver.sql import literal, quote
from silver.run.table_log import SilverLog
from silver.schema.widening import NTZ, NTZ_FEATURE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from gold.language.document import Document
    from gold.build.memory import Machine
    from gold.tree.nodes import Tree

DEFINITION_PROPERTY: Final = "deltasmelt.definition"

_COMPILER: Final = "3"
"""Part of every digest: raised when the compiler gives another meaning to the same definition."""

_FEW: Final = 100_000
"""Rows up to which one task assembles documents: planning and scheduling cost more than the work."""

_SENT: Final = 1_000_000
"""Rows of affected roots whose keys each task can have in memory."""

_MATCHED: Final = 20_000
"""Documents that each task of a MERGE can have in memory."""

_WALKED: Final = 20_000
"""Changed rows up to which what is found on the way up from them is sent to every task."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a gold table says of itself.

    Attributes:
        position: LSN of the cut it holds.
        definition: digest that it was built by.
        columns: its columns, and the fields of the column `KEY`, as they are written in SQL.
    """

    version: int
    position: Lsn | None
    definition: str | None
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class _How:
    """How an incremental build works.

    Attributes:
        reading: settings for silver's tables.
        plan: what fits into memory.
        few: one task assembles the documents.
        known: no document is new.
    """

    reading: Mapping[str, str]
    plan: Plan
    few: bool
    known: bool


@dataclass(frozen=True, slots=True)
class Start:
    """Where changes are counted from.

    Attributes:
        position: LSN of the cut that the gold table holds, where it is known to hold one.
        cut: the silver cut of that LSN, where it is still recorded.
    """

    position: Lsn | None
    cut: Cut | None


class DocumentBuild:
    """Builds one document. Has a Spark session of its own, because transaction marks are session settings.

    Attributes:
        largest: bytes of its largest document as the last build knew it, if it did.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, document: Document, machine: Machine, room: Room
    ) -> None:
        self._spark = own_session(spark)
        self._sizing = Sizing(self._spark, machine)
        self._room = room
        self.largest: int | None = None
        self._unpinned = unpinned(self._spark)
        self._lake = lake
        self.document = document
        self._address = lake.sql("gold", document.name)
        self._uri = delta.location(lake, "gold", document.name)
        self._merging = Merging(self._spark, self._address, self._uri)
        self._digests: dict[str, str] = {}
        self._kept = Kept(self._spark)
        self._pins = PinnedTables(self._spark, lake)
        self._silver = SilverLog(self._spark, lake)

    def state(self) -> TableState | None:
        """The gold table as it is now; None where there is none."""
        table = delta.open_table(self._uri)
        if table is None:
            return None
        position = table.transaction_version(GOLD_APP)
        fields = table.schema().fields
        columns = {quote(field.name) for field in fields}
        for field in fields:
            if field.name == KEY and isinstance(field.type, StructType):
                columns |= {quote(KEY, inner.name) for inner in field.type.fields}
        definition = table.metadata().configuration.get(DEFINITION_PROPERTY)
        position = None if position is None else Lsn(position)
        return TableState(table.version(), position, definition, frozenset(columns))

    def is_as_of(self, since: int, until: int) -> bool:
        """Whether the table holds the same documents at two versions."""
        return holds_the_same(self._uri, since, until)

    def is_same(self, name: str, since: int, until: int) -> bool:
        """Whether a silver table holds the same rows at two versions."""
        return holds_the_same(delta.location(self._lake, "silver", name), since, until)

    def is_built_by(self, tree: Tree) -> bool:
        """Whether the table was built by this definition, over tables of these shapes."""
        state = self.state()
        return state is not None and state.definition == self._definition(tree)

    def run(self, tree: Tree, cut: Cut, start: Start, *, rebuild: bool = False) -> Run:
        """Bring the document's table to a silver cut.

        Args:
            tree: the document, resolved against the catalog of the cut.
            cut: the silver cut to build.
            start: what the table holds now.
            rebuild: build everything, whatever the table holds.

        Raises:
            PySparkException: Spark refused the query, or a value could not be computed.
        """
        started = time.monotonic()
        run = Run("gold", self.document.name, "none", start.position, cut.commit_lsn)
        try:
            state = self.state()
            definition = self._definition(tree)
            reason = _full_reason(state, definition, start, tree, cut)
            if rebuild and reason is None:
                reason = "asked for"
            if reason is None and start.cut is not None:
                try:
                    self._incremental(tree, start.cut, cut, run)
                except FeedUnreadableError as error:
                    reason = str(error)
            if reason is not None:
                run.mode, run.reason = "full", reason
                sizes = self._sizes(tree)
                little = is_little(sizes.values())
                tasks = 1 if little else self._tasks()
                plan, self.largest = self._sizing.of_all(tree, self._pins.at(tree, cut), sizes, tasks=tasks)
                run.details[LARGEST] = self.largest
                wanted = {
                    **(SMALL_PLAN if little else {}),
                    **({} if little and plan.together else SORTED),
                    **partitions(plan),
                    **read_by(plan),
                }
                with self._room.of(plan.needed), settings(self._spark, wanted):
                    self._full(tree, cut, state, definition, run, distrust=rebuild)
        finally:
            self._kept.forget()
        after = delta.open_table(self._uri)
        run.delta_version = None if after is None else after.version()
        run.seconds = round(time.monotonic() - started, 3)
        return run

    def _definition(self, tree: Tree) -> str:
        """Digest of all that decides what the table holds: definition, types, columns behind names, keys.

        Keys do: arrays are in the order of their rows' keys where nothing else orders them.
        """
        tables = sorted(tree.tables().values(), key=lambda table: str(table.table))
        behind = [
            f"{table.table}.{column.name} {column.attnum} {column.spark_type}"
            for table in tables
            for column in sorted(table.columns, key=lambda column: column.name)
            if column.name in tree.reads(table.table) | set(table.key)
        ]
        keys = [f"{table.table} by {', '.join(map(quote, table.key))}" for table in tables]
        session = [f"{name} = {value}" for name, value in sorted(self._unpinned.items())]
        known = "\n".join([_COMPILER, self.document.digest, *session, *keys, *behind])
        if known not in self._digests:
            schema = schema_of(self._spark, tree)
            self._digests[known] = hashlib.sha256(f"{known}\n{schema.simpleString()}".encode()).hexdigest()
        return self._digests[known]

    def _sizes(self, tree: Tree) -> dict[TableName, tuple[int, int]]:
        """Rows and bytes of the silver tables, as they are now."""
        return {name: self._silver.size(table.name) for name, table in tree.tables().items()}

    def _full(
        self,
        tree: Tree,
        cut: Cut,
        state: TableState | None,
        definition: str,
        run: Run,
        *,
        distrust: bool,
    ) -> None:
        compiled = compile_tree(tree, self._pins.at(tree, cut))
        self._count_flagged(*count_flagged(tree, self._pins.at(tree, cut)), run)
        content = f"{content_hash(compiled.columns)} AS {HASH}"
        made = f"SELECT {_columns(compiled.columns)}, {content} FROM (\n{compiled.sql}\n)"
        same = state is not None and state.definition == definition
        if state is not None and same and not (distrust and self._holds_one_twice(compiled)):
            with settings(self._spark, {"spark.databricks.delta.merge.materializeSource": "auto"}):
                self._merging.merge(compiled, made, cut, state.position, run, distrust=distrust)
            return
        kept, join = f"{int(cut.commit_lsn)}L", ""
        old_key = None if state is None else _key_columns(compiled, state)
        if state is not None and old_key is not None:
            # What did not change keeps its LSN: by the new definition; or, of a table that somebody wrote to,
            # what all its rows say. Where they say it since several LSNs, readers may have seen it only now.
            held = content_hash(compiled.columns) if same else HASH
            on = " AND ".join(f"o.k{i} = CAST(d.{key} AS STRING)" for i, key in enumerate(old_key))
            keys = ", ".join(f"CAST({key} AS STRING) AS k{i}" for i, key in enumerate(old_key))
            places = ", ".join(f"k{i}" for i in range(len(old_key)))
            before = (
                f"SELECT {keys}, {held} AS h, {LSN} AS l FROM {self._address} VERSION AS OF {state.version}"
            )
            once = (
                f"SELECT {places}, any_value(h) AS {HASH}, max(l) AS {LSN} FROM ({before})\n"
                f"GROUP BY {places} HAVING count(*) = count(h) AND count(DISTINCT h) = 1"
            )
            join = f"\nLEFT JOIN ({once}) AS o ON {on} AND o.{HASH} = d.{HASH}"
            kept = f"least(o.{LSN}, {kept})"  # of a document that is new: the second
        columns = ", ".join(f"d.{quote(name)}" for name in compiled.columns)
        properties = {
            DEFINITION_PROPERTY: definition,
            "delta.enableChangeDataFeed": "true",
            "delta.enableDeletionVectors": "true",
            "delta.enableExpiredLogCleanup": "false",
        }
        if NTZ.lower() in schema_of(self._spark, tree).simpleString():
            properties[NTZ_FEATURE] = "supported"
        listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
        with settings(self._spark, mark(GOLD_APP, cut.commit_lsn, None if state is None else state.position)):
            self._spark.sql(
                f"CREATE OR REPLACE TABLE {self._address} USING DELTA TBLPROPERTIES ({listed}) AS\n"
                f"SELECT {columns}, {kept} AS {LSN}, d.{HASH} AS {HASH}\nFROM (\n{made}\n) AS d{join}"
            )
        run.inserts = self._rows_written()
        run.changes = run.inserts

    def _holds_one_twice(self, compiled: Compiled) -> bool:
        keys = ", ".join(compiled.key)
        twice = f"SELECT 1 FROM {self._address} GROUP BY {keys} HAVING count(*) > 1"
        return self._spark.sql(twice).first() is not None

    def _incremental(self, tree: Tree, old: Cut, cut: Cut, run: Run) -> None:
        run.mode = "incremental"
        tables = tree.tables()
        changed = {
            name: table.name
            for name, table in tables.items()
            if cut.tables[table.name] != old.tables[table.name]
        }
        rows: dict[str, int] = {}
        views: dict[TableName, str] = {}
        for index, (name, silver_name) in enumerate(sorted(changed.items())):
            between = (old.tables[silver_name] + 1, cut.tables[silver_name])
            count = self._images(tree, name, silver_name, between, f"images_{index}")
            if count:
                rows[str(name)], views[name] = count, f"images_{index}"
        run.details["changed_rows"] = rows
        sizes = self._sizes(tree)
        reading = INTERPRETED if is_little(sizes.values()) else LEAN
        few = sum(rows.values()) <= _WALKED
        affected = affected_roots(tree, views, views.__getitem__, self._pins.at(tree, cut), few=few)
        if affected is None:
            run.mode = "none"
            return
        with settings(self._spark, reading):
            for step in affected.steps:
                self._kept.keep(step.sql, step.name)
            self._kept.keep(affected.query, "affected")
            self._count_affected(affected, run)
        if run.changes == 0:
            run.mode = "none"
            return
        # As many rows as these roots have on the average; where they have more, it takes longer.
        expected = (
            run.changes * sum(size for size, _ in sizes.values()) // max(sizes[tree.root.table.table][0], 1)
        )
        few, sent = expected <= _FEW, expected <= _SENT
        compiled = compile_tree(tree, self._pins.at(tree, cut), roots="affected", few=few, sent=sent)
        with settings(self._spark, reading):
            for step in compiled.shared:
                self._kept.keep(step.sql, step.name)
        plan, self.largest = self._sizing.of_some(
            tree,
            self._pins.at(tree, cut),
            sizes,
            roots=Roots("affected", frozenset(step.name for step in compiled.shared)),
            number=run.changes,
            changed={name: rows[str(name)] for name in views},
            known=self.largest,
            tasks=1 if few else self._tasks(),
        )
        if self.largest is not None:
            run.details[LARGEST] = self.largest
        how = _How(reading, plan, few=few, known=not self._comes(tree, views))
        with self._room.of(plan.needed):
            self._assemble(compiled, cut, how, run)

    def _assemble(self, compiled: Compiled, cut: Cut, how: _How, run: Run) -> None:
        """Assemble the affected documents, and merge them."""
        few, plan, reading = how.few, how.plan, how.reading
        wanted = {
            **reading,
            **(ONE_TASK if few else partitions(plan)),
            **({} if few and plan.together else SORTED),
        }
        flags = [flag_column(flag) for flag in compiled.flags]
        on = " AND ".join(f"a.k{i} = d.{key}" for i, key in enumerate(compiled.key))
        keys = ", ".join(f"a.k{i} AS {ROOT}{i}" for i in range(len(compiled.key)))
        columns = ", ".join(f"d.{quote(name)}" for name in [*compiled.columns, *flags, HASH])
        measured = not plan.together
        content = f"{content_hash(compiled.columns)} AS {HASH}"
        made = f"SELECT *, {content} FROM (\n{compiled.assembly}\n)"
        if measured:
            made = hash_and_bytes(compiled.columns, compiled.assembly)
            columns += f", d.{BYTES}"
        made = f"SELECT {keys}, {columns}\nFROM affected AS a\nLEFT JOIN (\n{made}) AS d ON {on}"
        with settings(self._spark, wanted):
            self._kept.keep(made, "made")
        if measured:
            plan = self._measured(run, tasks=1 if few else self._tasks())
        self._count_flagged(compiled.flags, counting(compiled.flags, "made"), run)
        state = self.state()
        position = None if state is None else state.position
        reading = INTERPRETED if is_little([size_of(self._merging.files())]) else LEAN
        with settings(self._spark, {**reading, **(ONE_TASK if few else {}), **read_by(plan)}):
            known = run.changes <= _MATCHED and plan.sent and how.known
            self._merging.merge(compiled, "SELECT * FROM made", cut, position, run, some=True, known=known)

    def _measured(self, run: Run, *, tasks: int) -> Plan:
        """How the documents in ``made`` are written, by what they really are."""
        row = self._spark.sql(
            f"SELECT coalesce(sum({BYTES}), 0) AS total, coalesce(max({BYTES}), 0) AS largest FROM made"
        ).collect()[0]
        run.details["bytes"], run.details["largest_bytes"] = int(row["total"]), int(row["largest"])
        sizes = Sizes(run.changes, int(row["total"]), int(row["largest"]))
        return make_plan(sizes, self._sizing.machine, tasks=tasks)

    def _tasks(self) -> int:
        """Tasks that Spark makes of what it shuffles."""
        return int(self._spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)

    def _images(
        self, tree: Tree, name: TableName, silver_name: str, between: tuple[int, int], view: str
    ) -> int:
        """Register the old and new images of changed rows, at most one of each per key; returns their number.

        Raises:
            FeedUnreadableError: the feed cannot be read.
        """
        first, last = between
        if last < first:
            raise FeedUnreadableError(made_again(silver_name))
        key = tree.tables()[name].key
        columns = sorted(tree.reads(name) | set(key))
        try:
            feed = (
                self._spark.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", str(first))
                .option("endingVersion", str(last))
                .load(self._lake.uri("silver", silver_name))
            )
            feed.createOrReplaceTempView(f"{view}_feed")
            with settings(self._spark, INTERPRETED):
                steps = last - first + 1
                soft = keeps_deleted(feed)
                self._kept.keep(images_query(f"{view}_feed", key, columns, steps=steps, soft=soft), view)
                return self._count(view)
        except SPARK_ERRORS as error:
            if self.is_same(silver_name, first - 1, last):
                return 0  # of a version that only changed a property, say, Delta may not give the feed
            raise FeedUnreadableError(
                f"changes of silver.{silver_name} between versions {first} and {last} cannot be read: "
                f"{condition(error)}"
            ) from error

    def _comes(self, tree: Tree, views: Mapping[TableName, str]) -> bool:
        """Whether a root came, or passes the `where` now: nothing else makes a new document."""
        view, where = views.get(tree.root.table.table), tree.root.where
        if view is None:
            return False
        passes = "" if where is None else f"WHERE {where.sql('t')}\n"
        key = ", ".join(quote("t", name) for name in tree.key)
        came = self._spark.sql(
            f"SELECT 1 FROM {view} AS t\n{passes}GROUP BY {key}\nHAVING max(t.{SIDE}) = 'new'"
        )
        return came.first() is not None

    def _count_affected(self, affected: Affected, run: Run) -> None:
        """How many roots there are, and how many each place of the document reached."""
        of_place = (f"count_if(array_contains({PLACES}, {n})) AS n{n}" for n in range(len(affected.places)))
        row = self._spark.sql(f"SELECT count(*) AS roots, {', '.join(of_place)} FROM affected").collect()[0]
        run.changes = int(row["roots"])
        run.details["affected_roots"] = [
            {"path": path, "table": str(table), "roots": int(row[f"n{n}"])}
            for n, (path, table) in enumerate(affected.places)
        ]

    def _count(self, view: str) -> int:
        return self._spark.table(view).count()

    def _count_flagged(self, flags: Sequence[str], query: str, run: Run) -> None:
        if flags:
            row = self._spark.sql(query).first()
            run.details |= {FLAGS[flag]: 0 if row is None else int(row[flag]) for flag in flags}

    def _rows_written(self) -> int:
        table = delta.open_table(self._uri)
        metrics: dict[str, Any] = {} if table is None else table.history(1)[0].get("operationMetrics", {})
        return int(metrics.get("numOutputRows", 0))


def _full_reason(state: TableState | None, definition: str, start: Start, tree: Tree, cut: Cut) -> str | None:
    """Why the whole table must be built; None where its changes are enough."""
    if state is None:
        return "first build"
    if state.definition != definition:
        return "the definition changed"
    if start.cut is None:
        at = "of the last build" if start.position is None else f"{start.position} of the last build"
        return f"the silver cut {at} is no longer recorded"
    names = sorted(table.name for table in tree.tables().values())
    for name in names:
        if cut.tables[name] < start.cut.tables.get(name, -1):
            return made_again(name)
    new = [f"silver.{name}" for name in names if name not in start.cut.tables]
    return f"{', '.join(new)} was not in the cut of the last build" if new else None


def _columns(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)


def _key_columns(compiled: Compiled, state: TableState) -> tuple[str, ...] | None:
    """The key in the old table, where the old table has it under the same names."""
    return compiled.key if {*compiled.key, quote(HASH), quote(LSN)} <= state.columns else None
