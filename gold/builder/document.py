"""Build one document's table from one silver cut, in full or by changes.

*State.* The gold table records its own progress. The mark ``deltasmelt.gold`` (version: the cut's LSN) is in
the commit of the data (`silver.run.marks`). So is the property ``deltasmelt.definition``, in the first commit
with data of a definition; for a catalog see `gold.builder.full`.

*Killed anywhere.* Before the single commit of a build, table and mark are unchanged, and the next build reads
the changes again. After the commit, mark and data are both new. Two builds from an older mark give equal
documents, because a build makes documents from the cut's rows, not from old documents. The change feed only
names the documents to build. So a cycle can be repeated at will.

*Foreign commits during a build.* A build begins with a search for foreign commits, and ends with a search in
the commits since then. A found commit fails the build (`ForeignCommitError`), so that no cut names the
commit's version. The retry finds the commit too, and builds in full.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.control import Run
from deltasmelt.bronze.lake.leases import commit_lost
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.gold.builder.build import Build, BuildContext, ComputedViews, CutViews
from deltasmelt.gold.builder.build_start import PROVEN, described, digest_of, proof
from deltasmelt.gold.builder.full import TableDefinition, build_full
from deltasmelt.gold.builder.incremental import IncrementalBuild
from deltasmelt.gold.builder.sizing import Sizing
from deltasmelt.gold.compile.column_types import schema_of
from deltasmelt.gold.incremental.change_feed import ChangeFeedUnreadableError
from deltasmelt.silver.schema.ddl import NTZ
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.semantics import unpinned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.builder.build_start import BuildStart
    from deltasmelt.gold.builder.images import SharedImages
    from deltasmelt.gold.builder.memory import Machine, Room
    from deltasmelt.gold.incremental.starts import Start
    from deltasmelt.gold.tree.nodes import Tree


class ForeignCommitError(Exception):
    """Raised if another program changed the document's table during the build."""


class DocumentBuild:
    """The builds of one document.

    Attributes:
        document: the definition from the document file.
        build_start: the start of the document's builds.
        largest: bytes of the largest document after the last build; None if unknown.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        build_start: BuildStart,
        *,
        machine: Machine,
        room: Room,
        fingerprint: str | None,
    ) -> None:
        self.document, self.table, self.build_start = build_start.document, build_start.table, build_start
        self.largest: int | None = None
        # A session of its own: transaction marks are session settings.
        self._spark = spark = access_of(spark).child()
        self._unpinned = unpinned(spark)
        self._fingerprint = None if self._unpinned else fingerprint
        self._definitions: dict[str, TableDefinition] = {}
        self._proofs: dict[str, str] = {}
        self._views = CutViews(spark, lake)
        kept, sizing = ComputedViews(spark), Sizing(spark, machine)
        self._work = BuildContext(spark, lake, self.table, build_start.silver, kept, sizing, room)

    def is_built_by(self, tree: Tree) -> bool:
        """Check whether the table was built by this definition, over tables of these shapes."""
        state = self.table.state()
        return state is not None and state.definition == self._definition(tree).digest

    def run(self, tree: Tree, cut: Cut, start: Start, images: SharedImages | None) -> Run:
        """Bring the document's table to a silver cut; without `images` of changed rows build everything.

        Raises:
            DefiniteError: a document has no room in memory.
            PySparkException: Spark refused the query, or failed to compute a value.
        """
        started = time.monotonic()
        run = Run("gold", self.document.name, "none", start.position, cut.commit_lsn)
        try:
            since = self._bring(tree, cut, start, run, images)
        finally:
            self._work.computed.forget()
        self._remember(tree, run)
        if run.mode != "none":
            self.table.state_marks()
        run.delta_version = self._committed(cut, run, since)
        run.seconds = round(time.monotonic() - started, 3)
        return run

    def _committed(self, cut: Cut, run: Run, since: int) -> int:
        """Return the table's version, after checking that the table's mark has reached the cut.

        `since` is the version at which the build began.

        Raises:
            ForeignCommitError: another program changed the table during the build.
            SmeltError: ``lake-commit-lost``: the log lacks a commit that Spark reported.
        """
        state = self.table.state()
        written = run.mode != "none" and run.changes > 0
        if state is None or (written and (state.position or ZERO) < cut.commit_lsn):
            raise commit_lost(f"gold.{self.document.name}", self.table.uri, "the document is built")
        if (others := self.table.foreign(state.version, since)) is not None:
            raise ForeignCommitError(f"another program made {others} of gold.{self.document.name}")
        return state.version

    def _bring(self, tree: Tree, cut: Cut, start: Start, run: Run, images: SharedImages | None) -> int:
        """Build the documents; return the version at which the build began, -1 without a table."""
        state = self.table.state()
        definition = self._definition(tree)
        others = self.build_start.written_by_others(state)
        reason = self.build_start.full_reason(state, definition.digest, start, tree, cut)
        # A requested build names the request as its reason, also if a foreign commit is a reason.
        if images is None and (reason is None or others is not None):
            reason = "requested"
        build = Build(tree, cut, self._views.at(tree, cut), self._work.sizes(tree), run)
        if reason is None and start.cut is not None and images is not None:
            incremental = IncrementalBuild(self._work, build, start.cut, self.build_start.is_same, images)
            try:
                self.largest = incremental.run(self.largest)
            except ChangeFeedUnreadableError as error:
                reason = str(error)
        if reason is not None:
            run.mode, run.reason = "full", reason
            distrust = images is None or others is not None
            self.largest = build_full(self._work, build, state, definition, distrust=distrust)
        return -1 if state is None else state.version

    def _remember(self, tree: Tree, run: Run) -> None:
        """Record in the run's details the proof that the table's definition is the document's."""
        if self._fingerprint is None:
            return
        digest = self._definition(tree).digest
        if digest not in self._proofs:
            self._proofs[digest] = proof(self.document, tree, digest, self._fingerprint)
        run.details[PROVEN] = self._proofs[digest]

    def _definition(self, tree: Tree) -> TableDefinition:
        """Return everything that decides the table's content: the description, and Spark's types."""
        known = described(self.document, tree, self._unpinned)
        if known not in self._definitions:
            schema = schema_of(self._spark, tree).simpleString()
            self._definitions[known] = TableDefinition(digest_of(known, schema), NTZ.lower() in schema)
        return self._definitions[known]
