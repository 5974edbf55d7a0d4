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

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.schema import StructType

from bronze import delta
from bronze.control import Cut, Run
from bronze.errors import DefiniteError
from bronze.lsn import Lsn
from gold.affected import PLACES, SIDE, Affected, affected_roots
from gold.clauses import as_json
from gold.compile import FLAGS, KEY, Compiled, compile_tree, count_flagged, counting, flag_column
from gold.failures import SPARK_ERRORS, condition
from gold.feed import FeedUnreadableError, images_query, made_again
from gold.pins import PinnedTables
from gold.plans import GOLD_APP, HASH, INTERPRETED, LEAN, LSN, ONE_TASK, SMALL_PLAN, SORTED, content_hash
from gold.sieve import MOST_KEYS, bitmap, sieve
from gold.starts import holds_the_same
from gold.typed import schema_of
from silver.living import keeps_deleted
from silver.merge import prunable
from silver.pinned import unpinned
from silver.sessions import mark, own_session, settings
from silver.sql import literal, quote
from silver.tables import SilverLog, share_of
from silver.widening import NTZ, NTZ_FEATURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake import Lake
    from gold.documents import Document
    from gold.tree import Tree

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

_RANGES_ABOVE: Final = 4
"""Data files of a gold table from which looking for the range of affected keys pays."""

_ROOT: Final = "_deltasmelt_root"
"""Columns of a MERGE's source that hold the root's key, whether the document is there or gone."""

_SMALL_BYTES: Final = 32_000_000
_SMALL_ROWS: Final = 50_000
"""Size of all silver tables of a document, or of its own, up to which reads are planned for little data."""

_RANGE_HOLDS: Final = 0.75
"""Share of a gold table's rows from which a range of keys that holds them is left out."""


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
class Start:
    """Where changes are counted from.

    Attributes:
        position: LSN of the cut that the gold table holds, where it is known to hold one.
        cut: the silver cut of that LSN, where it is still recorded.
    """

    position: Lsn | None
    cut: Cut | None


class DocumentBuild:
    """Builds one document. Has a Spark session of its own, because transaction marks are session settings."""

    def __init__(self, spark: SparkSession, lake: Lake, document: Document) -> None:
        self._spark = own_session(spark)
        self._unpinned = unpinned(self._spark)
        self._lake = lake
        self.document = document
        self._address = lake.sql("gold", document.name)
        self._uri = delta.location(lake, "gold", document.name)
        self._digests: dict[str, str] = {}
        self._views: list[str] = []
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
                little = _is_little(self._sizes(tree).values())
                with settings(self._spark, SMALL_PLAN if little else SORTED):
                    self._full(tree, cut, state, definition, run, distrust=rebuild)
        finally:
            self._forget()
        after = delta.open_table(self._uri)
        run.delta_version = None if after is None else after.version()
        run.seconds = round(time.monotonic() - started, 3)
        return run

    def preview(self, tree: Tree, cut: Cut, key: Sequence[str]) -> str | None:
        """One document at a cut as pretty JSON; None where the root is not there or fails the `where`.

        Raises:
            DefiniteError: the key has another number of values, or values of other types, than the root's; or
                the document is refused.
        """
        described = ", ".join(f"{name} {tree.root.table.column(name).spark_type}" for name in tree.key)
        if len(key) != len(tree.key):
            raise DefiniteError(
                f"the key has {len(tree.key)} column(s) ({described}), {len(key)} given",
                code="document-key", where=self.document.name,
            )  # fmt: skip
        typed = [
            f"try_cast({literal(value)} AS {tree.root.table.column(name).spark_type})"
            for name, value in zip(tree.key, key, strict=True)
        ]
        found = self._spark.sql(
            f"SELECT {', '.join(f'{value} IS NULL AS b{i}' for i, value in enumerate(typed))}"
        )
        if any(found.first() or ()):
            raise DefiniteError(
                f"{', '.join(key)!r} is not a key of {tree.root.table.table} ({described})",
                code="document-key", where=self.document.name,
            )  # fmt: skip
        roots = f"(SELECT {', '.join(f'{value} AS k{i}' for i, value in enumerate(typed))})"
        schema_of(self._spark, tree)  # what is refused when it is built is here as well
        compiled = compile_tree(tree, self._pins.at(tree, cut), roots=roots)
        document = as_json(map(quote, compiled.fields), pretty=True)
        with settings(self._spark, SMALL_PLAN):
            row = self._spark.sql(f"SELECT {document} AS json FROM (\n{compiled.sql}\n)").first()
        return None if row is None else str(row["json"])

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
                self._merge(compiled, made, cut, state.position, run, distrust=distrust)
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
        reading = INTERPRETED if _is_little(sizes.values()) else LEAN
        few = sum(rows.values()) <= _WALKED
        affected = affected_roots(tree, views, views.__getitem__, self._pins.at(tree, cut), few=few)
        if affected is None:
            run.mode = "none"
            return
        with settings(self._spark, reading):
            for step in affected.steps:
                self._keep(step.sql, step.name)
            self._keep(affected.query, "affected")
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
        plan = {**reading, **ONE_TASK} if few else {**reading, **SORTED}
        with settings(self._spark, reading):
            for step in compiled.shared:
                self._keep(step.sql, step.name)
        flags = [flag_column(flag) for flag in compiled.flags]
        on = " AND ".join(f"a.k{i} = d.{key}" for i, key in enumerate(compiled.key))
        keys = ", ".join(f"a.k{i} AS {_ROOT}{i}" for i in range(len(compiled.key)))
        columns = ", ".join(f"d.{quote(name)}" for name in [*compiled.columns, *flags, HASH])
        content = f"{content_hash(compiled.columns)} AS {HASH}"
        made = (
            f"SELECT {keys}, {columns}\nFROM affected AS a\nLEFT JOIN (\n"
            f"SELECT *, {content} FROM (\n{compiled.assembly}\n)) AS d ON {on}"
        )
        with settings(self._spark, plan):
            self._keep(made, "made")
        self._count_flagged(compiled.flags, counting(compiled.flags, "made"), run)
        state = self.state()
        position = None if state is None else state.position
        reading = INTERPRETED if _is_little([_size(self._files())]) else LEAN
        with settings(self._spark, {**reading, **ONE_TASK} if few else reading):
            known = run.changes <= _MATCHED and not self._comes(tree, views)
            self._merge(compiled, "SELECT * FROM made", cut, position, run, some=True, known=known)

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
                self._keep(images_query(f"{view}_feed", key, columns, steps=steps, soft=soft), view)
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

    def _merge(
        self,
        compiled: Compiled,
        source: str,
        cut: Cut,
        position: Lsn | None,
        run: Run,
        *,
        some: bool = False,
        known: bool = False,
        distrust: bool = False,
    ) -> None:
        """One MERGE.

        Args:
            compiled: the document.
            source: its rows.
            cut: what they are of.
            position: mark of the table.
            run: gets the counts.
            some: the source is of the affected roots, and a row without content is a document to delete.
                Otherwise it is of all, and what is not in it is.
            known: no document is new, and the source is small. Then it is sent to the target's rows, for
                which Spark would shuffle and sort them otherwise.
            distrust: somebody may have written to the table: its documents are compared, not their hashes.
        """
        if some:
            same = [f"t.{key} = s.{_ROOT}{i}" for i, key in enumerate(compiled.key)]
            on = " AND ".join(same + self._on_target(compiled, source, run.changes))
        else:
            on = " AND ".join(f"t.{key} = s.{key}" for key in compiled.key)
        if known:
            source = f"SELECT /*+ BROADCAST(f) */ * FROM (\n{source}\n) AS f"
        values = {
            **{quote(name): f"s.{quote(name)}" for name in compiled.columns},
            LSN: f"{int(cut.commit_lsn)}L",
            HASH: f"s.{HASH}",
        }
        sets = ", ".join(f"{name} = {value}" for name, value in values.items())
        columns, inserted = ", ".join(values), ", ".join(values.values())
        differs = f"t.{HASH} <> s.{HASH}"
        if distrust:
            held = f"sha2({as_json(quote('t', name) for name in compiled.columns)}, 256)"
            late = f"NOT coalesce(t.{LSN} <= {int(cut.commit_lsn)}L, false)"
            differs = f"(NOT t.{HASH} <=> s.{HASH} OR {held} <> s.{HASH} OR {late})"
        came = f"WHEN NOT MATCHED AND s.{HASH} IS NOT NULL THEN INSERT ({columns}) VALUES ({inserted})"
        # Spark's grammar wants the clauses in this order: matched, not matched, not matched by source.
        clauses = [
            *([f"WHEN MATCHED AND s.{HASH} IS NULL THEN DELETE"] if some else []),
            f"WHEN MATCHED AND {differs} THEN UPDATE SET {sets}",
            *([] if known else [came]),
            *([] if some else ["WHEN NOT MATCHED BY SOURCE THEN DELETE"]),
        ]
        statement = [f"MERGE INTO {self._address} AS t", "USING (", source, ") AS s", f"ON {on}", *clauses]
        with settings(self._spark, mark(GOLD_APP, cut.commit_lsn, position)):
            result = self._spark.sql("\n".join(statement)).first()
        if result is not None:
            run.inserts, run.updates = int(result["num_inserted_rows"]), int(result["num_updated_rows"])
            run.deletes = int(result["num_deleted_rows"])
        if run.mode == "full":
            run.changes = run.inserts + run.updates + run.deletes

    def _on_target(self, compiled: Compiled, source: str, roots: int) -> list[str]:
        """Conditions on the target alone: by them MERGE skips files, and rows before they are joined.

        Args:
            compiled: the document.
            source: its rows.
            roots: number of affected roots.
        """
        files = self._files()
        found = []
        if len(files) >= _RANGES_ABOVE:
            found = self._ranges(compiled.key, compiled.key_types, source, files)
        if roots <= MOST_KEYS and not _is_little([_size(files)]):
            keys = [f"k{i}" for i in range(len(compiled.key))]
            row = self._spark.sql(bitmap(keys, "affected", roots)).collect()[0]
            found.append(sieve([f"t.{key}" for key in compiled.key], row["bitmap"], roots))
        return found

    def _files(self) -> pa.Table:
        """Files of the gold table with their statistics."""
        table = delta.open_existing(self._uri)
        return pa.table(table.get_add_actions(flatten=True))

    def _ranges(self, key: Sequence[str], types: Sequence[str], source: str, files: pa.Table) -> list[str]:
        """Ranges of the key as literals, where they leave out files.

        Where they do not, the statement stays the same text, and so does the code that Spark generates.
        """
        found = {i: ddl for i, ddl in enumerate(types) if prunable(ddl)}
        if not found:
            return []
        ends = (f"string(min({_ROOT}{i})) AS low{i}, string(max({_ROOT}{i})) AS high{i}" for i in found)
        row = self._spark.sql(f"SELECT {', '.join(ends)} FROM (\n{source}\n)").first()
        if row is None:
            return []
        return [
            f"t.{key[i]} BETWEEN CAST({literal(row[f'low{i}'])} AS {ddl}) "
            f"AND CAST({literal(row[f'high{i}'])} AS {ddl})"
            for i, ddl in found.items()
            if share_of(files, key[i].replace("`", ""), row[f"low{i}"], row[f"high{i}"]) < _RANGE_HOLDS
        ]

    def _keep(self, query: str, view: str) -> None:
        """Compute a query once for all its readers, under a name.

        A local checkpoint, not a cache: MERGE refuses a cached source, and Spark's cache is one for all
        sessions, so that a document which is done would take equal rows away from one that is not. Spark
        drops the rows when nothing names them any more.
        """
        self._spark.sql(query).localCheckpoint().createOrReplaceTempView(view)
        self._views.append(view)

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

    def _forget(self) -> None:
        for view in self._views:
            self._spark.catalog.dropTempView(view)
        self._views.clear()

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


def _size(files: pa.Table) -> tuple[int, int]:
    return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0


def _is_little(sizes: Iterable[tuple[int, int]]) -> bool:
    """Whether tables of these rows and bytes are read faster than code for reading them is compiled."""
    known = list(sizes)
    return sum(rows for rows, _ in known) <= _SMALL_ROWS and sum(size for _, size in known) <= _SMALL_BYTES


def _columns(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)


def _key_columns(compiled: Compiled, state: TableState) -> tuple[str, ...] | None:
    """The key in the old table, where the old table has it under the same names."""
    return compiled.key if {*compiled.key, quote(HASH), quote(LSN)} <= state.columns else None
