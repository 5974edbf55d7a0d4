"""Where a document's table stands: from which cut it goes on, and whether a cut leaves it as it is.

**Where it stands.** The table's mark is the LSN of the cut of its last commit. A cut that changed no document
leaves no commit. So the document stands at the newest gold cut that names its table with the same content,
whether or not that is gold's newest cut. The argument at each point of failure:

* *Killed between the table's commit and gold's cut.* The newest cut that names the table names an older
  version, and another mark. So the mark alone counts, and no change is read twice.
* *An error for months, or left out of one cut* (a shape that silver's cut lacks). Gold's cuts go on without
  the document. The document stands at the last cut that named its table. Once `lake.retention` has removed
  that cut, or silver's cut of that LSN, nobody knows which rows the document was built from. Then it is built
  in full. So no document keeps files of silver for longer.
* *A silver table was recreated or put back.* Silver has its cuts no longer name what is gone
  (`ControlTables.disown`), and what is named is compared (`BuildStart.full_reason`).
* *RESTORE by others, or rows that others changed.* Such a commit is found in the log since the version that a
  cut named: the document is built in full. Where no cut names the table, the whole log is searched.
* *A lake of an earlier version.* Where its cuts state no mark, the version alone is compared.

**Left as it is.** Delta's logs say this, and no Spark is asked. A table is left as it is where all of these
hold:

* its definition is the document's (`gold.builder.build_start.PROVEN`);
* nobody else wrote to it since a cut named it (`bronze.lake.foreign_commits`);
* the silver cut that it was built from is recorded;
* no version of a silver table went back, or was committed after that cut;
* between the two cuts, no silver table of the document changed a row.

A build by changes would then find no changed row. Wherever one of them is not sure, Spark decides.

What decides what a document's table holds, as far as that is known without Spark.

A table names the definition that it was built by: a digest of what is described here and of the types that
Spark compiles the document to (`gold.builder.document`). These types follow from the document's query, from
Spark's version and from the settings under which it runs. So once a process with Spark has found that a
table's definition is the document's, that is remembered in the details of its run (`PROVEN`), together with
all of these. While they are the same, the definition is, and no Spark has to be asked again.
"""

from __future__ import annotations

import hashlib
import time
from importlib import metadata
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import Cut, Run, is_put_back
from deltasmelt.gold.builder.gold_table import GoldTable, TableState
from deltasmelt.gold.compile.clauses import empty_table
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.incremental.change_feed import recreated
from deltasmelt.gold.incremental.starts import Start, built_from, holds_the_same, images_between
from deltasmelt.gold.tree.derived import Derived
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.foreign_commits import ForeignCommit
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.run.table_log import SilverLog

PROVEN: Final = "definition_proof"
"""In a run's details: the `proof` by which its table's definition was found to be the document's."""
_COMPILER: Final = "3"
"""Part of every digest: raised when the compiler gives another meaning to the same definition."""


def described(document: Document, tree: Tree, session: Mapping[str, str]) -> str:
    """All that decides what the table holds but Spark's types: definition, columns behind names, keys.

    Keys do: arrays are in the order of their rows' keys where nothing else orders them.

    Args:
        document: its definition.
        tree: the document, resolved against silver's catalog.
        session: settings of the session that may not be set, and have another value than they should.
    """
    tables = sorted(tree.tables().values(), key=lambda table: str(table.table))
    behind = [
        f"{table.table}.{column.name} {column.attnum} {column.spark_type}"
        + (f" {column.sql}" if isinstance(column, Derived) else "")
        for table in tables
        for column in sorted(table.columns, key=lambda column: column.name)
        if column.name in tree.reads(table.table) | set(table.key)
    ]
    keys = [f"{table.table} by {', '.join(map(quote, table.key))}" for table in tables]
    settings = [f"{name} = {value}" for name, value in sorted(session.items())]
    return "\n".join([_COMPILER, document.digest, *settings, *keys, *behind])


def digest_of(description: str, schema: str) -> str:
    """The digest by which a table names its definition.

    Args:
        description: of `described`.
        schema: Spark's types of the document's columns, as Spark writes them in short.
    """
    return hashlib.sha256(f"{description}\n{schema}".encode()).hexdigest()


def proof(document: Document, tree: Tree, definition: str, meaning: str) -> str:
    """A digest of a table's definition together with all that the definition follows from.

    Args:
        document: its definition.
        tree: the document, resolved against silver's catalog.
        definition: that the table names.
        meaning: how Spark understands statements (`silver.spark.lazy_session.LazySession.meaning`).
    """
    query = compile_tree(tree, lambda name: empty_table(tree, name)).sql
    parts = (definition, meaning, _release(), described(document, tree, {}), query)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _release() -> str:
    """Ours: another one may refuse what this one builds."""
    try:
        return metadata.version("deltasmelt")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return ""


_RUNS: Final = 5
"""Newest runs of a document in which a proof of its definition is looked for."""
_FEW: Final = 100
"""Versions of silver's tables whose changes are read without asking how many rows these are."""


class BuildStart:
    """Where one document's table stands.

    Args:
        lake: where the tables lie.
        document: its definition.
        silver: the logs of silver's tables; of this document alone, as documents are built side by side.
        control: the lake's control tables.

    Attributes:
        document: its definition.
        table: the document's.
        silver: as given.
    """

    def __init__(self, lake: Lake, document: Document, silver: SilverLog, control: ControlTables) -> None:
        self.document = document
        self.table = GoldTable(lake, document.name)
        self._lake = lake
        self.silver = silver
        self._control = control
        self._own = -1
        self._runs: list[Run] | None = None

    def is_same(self, name: str, since: int, until: int) -> bool:
        """Whether a silver table holds the same rows at two versions."""
        return holds_the_same(delta.location(self._lake, "silver", name), since, until)

    def start(self, state: TableState | None, last: Cut | None) -> Start:
        """Return from where changes are counted (the module says why).

        Args:
            state: of the table.
            last: gold's newest cut.
        """
        position = None if state is None else state.position
        known_by = None
        named = None if last is None else last.named(self.document.name)
        if named is None and state is not None:
            named = self._control.last_named("gold", self.document.name)
        if (
            state is not None
            and named is not None
            and named.mark in {None, state.position}
            and self.table.is_as_of(named.version, state.version)
        ):
            position = max(position or named.commit_lsn, named.commit_lsn)
            known_by = named.seen if named.commit_lsn == position else None
        old = None if position is None else built_from(self._control, position, known_by, self.is_same)
        return Start(position, old)

    def full_reason(
        self, state: TableState | None, definition: str, start: Start, tree: Tree, cut: Cut
    ) -> str | None:
        """Why the whole table must be built; None where its changes are enough.

        Args:
            state: of the table.
            definition: digest of what it is to be built by.
            start: what the table holds.
            tree: the document, resolved against the catalog of the cut.
            cut: the silver cut to build.
        """
        if state is None or state.definition != definition:
            return _other_definition(state)
        # Others' writing may also make unknown what the table was built from: it is the cause.
        others = self.written_by_others(state)
        if others is not None:
            return f"{others} of gold.{self.document.name} is not deltasmelt's"
        if start.cut is None:
            at = "of the last build" if start.position is None else f"{start.position} of the last build"
            return f"the silver cut {at} is no longer recorded"
        names = sorted(table.name for table in tree.tables().values())
        for name in names:
            if cut.tables[name] < start.cut.tables.get(name, -1):
                return recreated(name)
        new = [f"silver.{name}" for name in names if name not in start.cut.tables]
        if new:
            return f"{', '.join(new)} was not in the cut of the last build, or was put back since"
        return self._recreated(names, start.cut) or self._too_much(names, start.cut, cut)

    def written_by_others(self, state: TableState | None) -> ForeignCommit | None:
        """Return the first commit by others to the document's table since a cut named it; None without one.

        A RESTORE leaves the mark of newer documents over older ones, and rows that somebody changed keep
        theirs: no change of silver would correct them.

        Args:
            state: of the table.
        """
        if state is not None and state.version == self._own:
            return None
        name = self.document.name
        named = self._control.last_named("gold", name)
        if state is None:
            if named is not None:  # removed: its versions will come again with other documents
                self._control.disown("gold", name, -1, None)
            return None
        if named is not None and is_put_back(state.version, state.position, named):
            self._control.disown("gold", name, state.version, state.position)
            named = self._control.last_named("gold", name)
        found = self.table.foreign(state.version, -1 if named is None else named.version)
        if found is None:
            self._own = state.version
        return found

    def unchanged(self, tree: Tree, cut: Cut, last: Cut | None, meaning: str) -> Run | None:
        """The run of a document whose table a cut leaves as it is; None where that is not sure.

        Args:
            tree: the document, resolved against the catalog of the cut.
            cut: the silver cut to build.
            last: gold's newest cut.
            meaning: how Spark would understand statements (`LazySession.meaning`).
        """
        clock, state = time.monotonic(), self.table.state()
        if state is None or state.definition is None:
            return None
        proven = proof(self.document, tree, state.definition, meaning)
        name = self.document.name
        if not self._is_proven(proven):
            return None
        start = self.start(state, last)
        if start.cut is None or self.full_reason(state, state.definition, start, tree, cut) is not None:
            return None
        for table in tree.tables().values():
            stored = self.silver.read(table.name)
            since, until = start.cut.tables[table.name], cut.tables[table.name]
            if stored is None or stored.version < until or not self.is_same(table.name, since, until):
                return None
        run = Run("gold", name, "none", start.position, cut.commit_lsn, delta_version=state.version)
        run.details = {"changed_rows": {}, PROVEN: proven}
        run.seconds = round(time.monotonic() - clock, 3)
        return run

    def runs(self) -> list[Run]:
        """Return the document's newest recorded runs, newest first: read once, as the table may be long."""
        if self._runs is None:
            self._runs = self._control.runs("gold", self.document.name, limit=_RUNS)
        return self._runs

    def is_news(self, run: Run) -> bool:
        """Check whether a run must be recorded: it built documents, or proves what no recorded run proves."""
        proven = run.details.get(PROVEN)
        if run.mode == "none" and (proven is None or self._is_proven(proven)):
            return False
        self._runs = [run, *self.runs()[: _RUNS - 1]]
        return True

    def _is_proven(self, proven: object) -> bool:
        return any(run.details.get(PROVEN) == proven for run in self.runs())

    def _too_much(self, names: list[str], built: Cut, cut: Cut) -> str | None:
        """Return why the changes cost more than the tables, of a document that stands far behind."""
        between = {name: (built.tables[name], cut.tables[name]) for name in names}
        if sum(until - since for since, until in between.values()) <= _FEW:
            return None
        changes = sum(
            images_between(delta.location(self._lake, "silver", name), *versions)
            for name, versions in between.items()
        )
        rows = sum(self.silver.size(name)[0] for name in names)
        if changes <= rows:
            return None
        return f"the changes since the last build have {changes:,} rows, silver's tables {rows:,}"

    def _recreated(self, names: list[str], built: Cut) -> str | None:
        """Return why versions cannot be compared, of a table that was removed and made anew.

        Its log may reach the version of the last build again, with other rows; but it has another id. A cut
        of an earlier version names no id: there the version was committed after the cut that names it. Both
        times are of one clock where silver's Spark runs beside it.
        """
        for name in names:
            known, stored = built.ids.get(name), self.silver.read(name)
            if known is not None and stored is not None and stored.table_id != known:
                return recreated(name)
            if known is None and built.recorded_at is not None:
                committed = self.silver.committed_at(name, built.tables[name])
                if committed is not None and committed > built.recorded_at:
                    return recreated(name)
        return None


def _other_definition(state: TableState | None) -> str:
    """Why a table that another definition built, or none, is built as a whole."""
    if state is None or (state.definition is None and state.position is None):
        return "first build"
    if state.definition is None:
        return "a build by another definition did not come to its end"
    return "the definition changed"
