"""Building one document's table from one silver cut, fully or by its changes.

*State.* The gold table itself says where it stands. Delta's application transaction ``deltasmelt.gold``
(version: the cut's LSN) is written in the same commit as the data. The property ``deltasmelt.definition`` is
a digest of the definition, the compiled types and the columns behind them. It is written in the same commit
as the first data of that definition.

*Killed anywhere.* Before the one commit of a build, the table is as before and its mark says so: the same
changes are read again. After it, mark and data are both new. Building twice from an older mark gives the
same documents, because they are made from the cut's rows and not from the old documents. The feed only says
which of them to build. So a cycle can be repeated at will.

*Full builds* (`gold.builder.full`) happen for a first build, for a changed definition, where the change feed
between the two cuts cannot be read, and on request. The reason is recorded. All other builds touch only the
documents that changes reach (`gold.builder.incremental`).
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.lake import delta
from bronze.lake.control import Cut, Run
from gold.builder.build import Build, Workplace
from gold.builder.full import TableDefinition, build_full
from gold.builder.gold_table import GoldTable, TableState
from gold.builder.incremental import IncrementalBuild
from gold.builder.kept import Kept
from gold.builder.sizing import Sizing
from gold.builder.views import CutViews
from gold.compile.column_types import schema_of
from gold.incremental.change_feed import ChangeFeedUnreadableError, recreated
from gold.incremental.starts import holds_the_same
from silver.run.pinned import unpinned
from silver.run.sessions import own_session
from silver.run.table_log import SilverLog
from silver.schema.widening import NTZ
from silver.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake
    from bronze.lsn import Lsn
    from gold.builder.memory import Machine, Room
    from gold.language.document import Document
    from gold.tree.nodes import Tree

_COMPILER: Final = "3"
"""Part of every digest: raised when the compiler gives another meaning to the same definition."""


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
    """Builds one document. Has its own Spark session, because transaction marks are session settings.

    Attributes:
        document: what is built.
        table: where it is built.
        largest: bytes of its largest document as the last build knew it, if it did.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, document: Document, machine: Machine, room: Room
    ) -> None:
        self.document = document
        self.table = GoldTable(lake, document.name)
        self.largest: int | None = None
        self._spark = spark = own_session(spark)
        self._lake = lake
        self._unpinned = unpinned(spark)
        self._definitions: dict[str, TableDefinition] = {}
        self._views = CutViews(spark, lake)
        silver, kept, sizing = SilverLog(spark, lake), Kept(spark), Sizing(spark, machine)
        self._work = Workplace(spark, lake, self.table, silver, kept, sizing, room)

    def is_same(self, name: str, since: int, until: int) -> bool:
        """Whether a silver table holds the same rows at two versions."""
        return holds_the_same(delta.location(self._lake, "silver", name), since, until)

    def is_built_by(self, tree: Tree) -> bool:
        """Whether the table was built by this definition, over tables of these shapes."""
        state = self.table.state()
        return state is not None and state.definition == self._definition(tree).digest

    def run(self, tree: Tree, cut: Cut, start: Start, *, rebuild: bool = False) -> Run:
        """Bring the document's table to a silver cut.

        Args:
            tree: the document, resolved against the catalog of the cut.
            cut: the silver cut to build.
            start: what the table holds now.
            rebuild: build everything, whatever the table holds.

        Raises:
            DefiniteError: a document has no room in memory.
            PySparkException: Spark refused the query, or a value could not be computed.
        """
        started = time.monotonic()
        run = Run("gold", self.document.name, "none", start.position, cut.commit_lsn)
        try:
            self._bring(tree, cut, start, run, rebuild=rebuild)
        finally:
            self._work.kept.forget()
        run.delta_version = self.table.version()
        run.seconds = round(time.monotonic() - started, 3)
        return run

    def _bring(self, tree: Tree, cut: Cut, start: Start, run: Run, *, rebuild: bool) -> None:
        state = self.table.state()
        definition = self._definition(tree)
        reason = _full_reason(state, definition.digest, start, tree, cut) or self._recreated(tree, start)
        if rebuild and reason is None:
            reason = "asked for"
        build = Build(tree, cut, self._views.at(tree, cut), self._work.sizes(tree), run)
        if reason is None and start.cut is not None:
            incremental = IncrementalBuild(self._work, build, start.cut, self.is_same)
            try:
                self.largest = incremental.run(self.largest)
            except ChangeFeedUnreadableError as error:
                reason = str(error)
        if reason is not None:
            run.mode, run.reason = "full", reason
            self.largest = build_full(self._work, build, state, definition, distrust=rebuild)

    def _recreated(self, tree: Tree, start: Start) -> str | None:
        """Why versions cannot be compared, if a table was removed, and made anew or put back from a backup.

        Its log may reach the version of the last build again, with other rows. That one was then committed
        after the cut that names it. Both times are of one clock where silver's Spark runs beside it.
        """
        if start.cut is None or start.cut.recorded_at is None:
            return None
        for name in sorted(table.name for table in tree.tables().values()):
            committed = self._work.silver.committed_at(name, start.cut.tables[name])
            if committed is not None and committed > start.cut.recorded_at:
                return recreated(name)
        return None

    def _definition(self, tree: Tree) -> TableDefinition:
        """All that decides what the table holds: definition, types, columns behind names, keys.

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
        if known not in self._definitions:
            schema = schema_of(self._spark, tree).simpleString()
            digest = hashlib.sha256(f"{known}\n{schema}".encode()).hexdigest()
            self._definitions[known] = TableDefinition(digest, NTZ.lower() in schema)
        return self._definitions[known]


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
            return recreated(name)
    new = [f"silver.{name}" for name in names if name not in start.cut.tables]
    return f"{', '.join(new)} was not in the cut of the last build" if new else None
