"""Decide from which cut a document's build starts, and whether the build is needed at all.

**Start.** The table's mark is the LSN of the cut of the table's last commit. A cut that changed no document
leaves no commit. So a document's start is the newest gold cut that names the table with equal content,
whether or not this cut is gold's newest. The argument at each point of failure:

* *Killed between the table's commit and gold's cut.* The newest cut that names the table has an older version
  and a different mark. So the mark alone counts, and gold reads no change twice.
* *An error for months, or left out of one cut* (silver's cut lacks a shape). Gold's cuts continue without the
  document. The document's start stays the last cut that named the table. Once `lake.retention` has removed
  this cut, or silver's cut of the LSN, the rows behind the document are unknown, and the build is a full one.
  So no document makes silver retain files for longer.
* *A silver table was recreated or rolled back.* Silver removes lost versions from its own cuts
  (`ControlTables.disown`). `BuildStart.full_reason` compares the versions that remain.
* *RESTORE by other writers, or rows that other writers changed.* Gold finds the foreign commit in the log
  after the version that a cut named, and builds in full.

**No build needed** (`BuildStart.unchanged`). Delta's logs prove without Spark that a build by changes would
read no changed row. If any condition is not sure, Spark decides.

**A place.** After a run, the process remembers the document's place: the version, id and mark of each silver
table that the run built from, and the state of the document's table (`BuildStart.stand`). If a later cut
names the same of each table, and the document's table is unmoved, the document is up to date: the three
identify a table's rows. `BuildStart.standing` then opens nothing, and polls only the document's own table.

* *Killed.* The place is lost with the process. The next process decides by the logs.
* *A failed build, or an answer that never came.* `Gold._run` drops the place before each build.
* *The cycle failed before gold's cut.* The place names the table's newest commit, and so does the next cut.
* *Commits by other writers, RESTORE, a recreated table.* The poll finds another version or another handle.
* *Silver went back, or has another shape.* The cut has another version or id, or an older LSN. A table that
  was rolled back and then reaches its former version has a newer mark: silver applies the changes again, up
  to a later LSN. For another catalog `Gold` drops all places. A cut without ids or marks (of an earlier
  release) makes no place.

**Definition.** A table names the definition of its build by a digest of two parts: the description of the
document (`described`), and the types that Spark compiles the document to. Once a process with Spark has found
a table's definition equal to the document's, the run's details record a proof (`PROVEN`): a digest of the
definition and of everything behind it. While the proof is equal, gold needs no Spark to compare.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Final

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
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.run.table_log import SilverLog

PROVEN: Final = "definition_proof"
# Part of every digest: raise this number when the compiler gives a new meaning to an unchanged definition.
_COMPILER: Final = "3"


def described(document: Document, tree: Tree, session: Mapping[str, str]) -> str:
    """Return everything that decides the table's content, apart from Spark's types.

    `session` has the read-only settings of the session whose value is not the wanted one.
    """
    tables = sorted(tree.tables().values(), key=lambda table: str(table.table))
    behind = [
        f"{table.table}.{column.name} {column.attnum} {column.spark_type}"
        + (f" {column.sql}" if isinstance(column, Derived) else "")
        for table in tables
        for column in sorted(table.columns, key=lambda column: column.name)
        if column.name in tree.reads(table.table) | set(table.key)
    ]
    # Arrays without an order of their own are in the order of their rows' keys.
    keys = [f"{table.table} by {', '.join(map(quote, table.key))}" for table in tables]
    settings = [f"{name} = {value}" for name, value in sorted(session.items())]
    return "\n".join([_COMPILER, document.digest, *settings, *keys, *behind])


def digest_of(description: str, schema: str) -> str:
    """Return the digest by which a table names its definition; `schema` has Spark's short form of types."""
    return hashlib.sha256(f"{description}\n{schema}".encode()).hexdigest()


def proof(document: Document, tree: Tree, definition: str, fingerprint: str) -> str:
    """Return a digest of a table's definition together with everything that the definition follows from.

    `definition` is the digest that the table names. `fingerprint` states how Spark understands statements
    (`silver.spark.lazy_session.LazySession.fingerprint`).
    """
    query = compile_tree(tree, lambda name: empty_table(tree, name)).sql
    parts = (definition, fingerprint, _release(), described(document, tree, {}), query)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _release() -> str:
    """Return deltasmelt's release."""
    # A newer release may refuse a document that this release builds.
    try:
        return metadata.version("deltasmelt")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A document's newest run, with what the run built from, and the table's state after the run.

    `lsn` is the cut's LSN. `built_from` has the identity of each silver table in the cut.
    """

    run: Run
    lsn: Lsn
    built_from: Mapping[str, tuple[int, int, Lsn]]
    state: TableState


_RUNS: Final = 5
"""Number of a document's newest runs that are searched for a proof of the definition."""
_FEW: Final = 100
"""Number of versions of silver's tables up to which a build reads changes without counting rows first."""


class BuildStart:
    """The start of one document's builds.

    `silver` is for this document alone: documents are built in parallel.
    """

    def __init__(self, lake: Lake, document: Document, silver: SilverLog, control: ControlTables) -> None:
        self.document = document
        self.table = GoldTable(lake, document.name)
        self._lake = lake
        self.silver = silver
        self._control = control
        self._own = -1
        self._runs: list[Run] | None = None
        self._place: _Place | None = None

    def is_same(self, name: str, since: int, until: int) -> bool:
        """Check whether a silver table holds equal rows at two versions."""
        return holds_the_same(self._lake.uri("silver", name), since, until)

    def start(self, state: TableState | None, last: Cut | None) -> Start:
        """Return the cut from which a build reads changes; the module's head has the argument."""
        position = None if state is None else state.position
        known_by = None
        named = None if last is None else last.named(self.document.name)
        if named is None and state is not None:
            named = self._control.last_named("gold", self.document.name)
        if (
            state is not None
            and named is not None
            # Cuts of an earlier version state no mark: their versions alone are compared.
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
        """Return the reason for a full build; None if a build by changes is enough.

        Args:
            state: the state of the gold table.
            definition: digest of the definition to build by.
            start: the cut that the table holds.
            tree: the document, resolved against the catalog of the cut.
            cut: the silver cut to build.
        """
        if state is None or state.definition != definition:
            return _other_definition(state)
        # Before the check of the cut: a foreign commit may be why the cut is unknown, and is the real cause.
        others = self.written_by_others(state)
        if others is not None:
            return f"another program made {others} of gold.{self.document.name}"
        if start.cut is None:
            at = "of the last build" if start.position is None else f"{start.position} of the last build"
            return f"the silver cut {at} is no longer recorded"
        names = sorted(table.name for table in tree.tables().values())
        for name in names:
            if cut.tables[name] < start.cut.tables.get(name, -1):
                return recreated(name)
        new = [f"silver.{name}" for name in names if name not in start.cut.tables]
        if new:
            return f"{', '.join(new)} was not in the cut of the last build, or was rolled back since then"
        return self._recreated(names, start.cut) or self._too_much(names, start.cut, cut)

    def written_by_others(self, state: TableState | None) -> ForeignCommit | None:
        """Return the first foreign commit to the table since a cut named the table; None without one.

        A RESTORE leaves the mark of newer documents over older documents, and changed rows keep the mark. No
        change of silver would correct these rows.
        """
        if state is not None and state.version == self._own:
            return None
        name = self.document.name
        named = self._control.last_named("gold", name)
        if state is None:
            if named is not None:  # a recreated table will reach these versions with new documents
                self._control.disown("gold", name, -1, None)
            return None
        if named is not None and is_put_back(state.version, state.position, named):
            self._control.disown("gold", name, state.version, state.position)
            named = self._control.last_named("gold", name)
        # If no cut names the table, the search covers the whole log.
        found = self.table.foreign(state.version, -1 if named is None else named.version)
        if found is None:
            self._own = state.version
        return found

    def unchanged(self, tree: Tree, cut: Cut, last: Cut | None, fingerprint: str) -> Run | None:
        """Return the run of a document whose table a cut leaves unchanged; None if this is not sure.

        `last` is gold's newest cut, `fingerprint` states how Spark would understand statements.
        """
        clock, state = time.monotonic(), self.table.state()
        if state is None or state.definition is None:
            return None
        proven = proof(self.document, tree, state.definition, fingerprint)
        name = self.document.name
        # Needed: the table's definition is the document's. The proof covers the document's query, Spark's
        # version and the session's settings, from which Spark's types follow.
        if not self._is_proven(proven):
            return None
        start = self.start(state, last)
        # Needed: no foreign commit, a recorded cut of the last build, and no silver table that went back or
        # was recreated.
        if start.cut is None or self.full_reason(state, state.definition, start, tree, cut) is not None:
            return None
        for table in tree.tables().values():
            stored = self.silver.read(table.name)
            since, until = start.cut.tables[table.name], cut.tables[table.name]
            # Needed: between the two cuts no silver table of the document changed a row.
            if stored is None or stored.version < until or not self.is_same(table.name, since, until):
                return None
        run = Run("gold", name, "none", start.position, cut.commit_lsn, delta_version=state.version)
        run.details = {"changed_rows": {}, PROVEN: proven}
        run.seconds = round(time.monotonic() - clock, 3)
        return run

    def stand(self, tree: Tree, cut: Cut, run: Run) -> None:
        """Remember the document's place after a run from a cut; the module's head has the argument."""
        names, state = [table.name for table in tree.tables().values()], self.table.known
        built_from = {name: rows for name in names if (rows := cut.identity(name)) is not None}
        if state is not None and len(built_from) == len(names):
            self._place = _Place(run, cut.commit_lsn, built_from, state)

    def leave(self) -> None:
        """Forget the document's place."""
        self._place = None

    def standing(self, cut: Cut) -> Run | None:
        """Return the run of a document whose place a cut does not change; None if this is not sure."""
        place = self._place
        if (
            place is None
            or cut.commit_lsn < place.lsn
            or any(cut.identity(name) != rows for name, rows in place.built_from.items())
            or not self.table.is_at(place.state)
        ):
            return None
        details: dict[str, object] = {"changed_rows": {}}
        if PROVEN in place.run.details:
            details[PROVEN] = place.run.details[PROVEN]
        run = Run("gold", self.document.name, "none", place.lsn, cut.commit_lsn, details=details)
        run.delta_version = place.state.version
        self._place = replace(place, run=run, lsn=cut.commit_lsn)
        return run

    def runs(self) -> list[Run]:
        """Return the document's newest recorded runs, newest first."""
        # Read once, as the table of runs may be long.
        if self._runs is None:
            self._runs = self._control.runs("gold", self.document.name, limit=_RUNS)
        return self._runs

    def is_news(self, run: Run) -> bool:
        """Check whether a run must be recorded: the run built documents, or has a proof of its own."""
        proven = run.details.get(PROVEN)
        if run.mode == "none" and (proven is None or self._is_proven(proven)):
            return False
        self._runs = [run, *self.runs()[: _RUNS - 1]]
        return True

    def _is_proven(self, proven: object) -> bool:
        return any(run.details.get(PROVEN) == proven for run in self.runs())

    def _too_much(self, names: list[str], built: Cut, cut: Cut) -> str | None:
        """Return a reason for a full build if the changes have more rows than the silver tables."""
        between = {name: (built.tables[name], cut.tables[name]) for name in names}
        if sum(until - since for since, until in between.values()) <= _FEW:
            return None
        changes = sum(
            images_between(self._lake.uri("silver", name), *versions) for name, versions in between.items()
        )
        rows = sum(self.silver.size(name)[0] for name in names)
        if changes <= rows:
            return None
        return f"the changes since the last build have {changes:,} rows, silver's tables have {rows:,}"

    def _recreated(self, names: list[str], built: Cut) -> str | None:
        """Return why versions cannot be compared, for a table that was removed and recreated."""
        for name in names:
            # A recreated table's log may reach the version of the last build again, with different rows, but
            # the table has a new id.
            known, stored = built.ids.get(name), self.silver.read(name)
            if known is not None and stored is not None and stored.table_id != known:
                return recreated(name)
            # A cut of an earlier release names no id: a recreated table's version was committed after the
            # cut. Both times come from one clock if silver's Spark runs on the same machine.
            if known is None and built.recorded_at is not None:
                committed = self.silver.committed_at(name, built.tables[name])
                if committed is not None and committed > built.recorded_at:
                    return recreated(name)
        return None


def _other_definition(state: TableState | None) -> str:
    """Return the reason for a full build of a table with a different definition, or without a definition."""
    if state is None or (state.definition is None and state.position is None):
        return "first build"
    if state.definition is None:
        return "a build with another definition was not completed"
    return "the definition changed"
