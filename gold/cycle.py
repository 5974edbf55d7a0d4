"""Run gold's cycle: bring all documents to the newest silver cut.

Gold builds documents in parallel, as many as the heap has room for (`gold.builder.memory`). Each document's
table gets one commit. After the last commit, gold records the cut that names all tables. A kill in between
leaves some tables ahead of the newest gold cut. A cut never names a version that is not committed. The next
cycle brings every document to one cut again.

A document that cannot be built (a missing column, an expression that fails on a value) stops alone. Gold
records the error with its remedy, and all further documents continue. Table and mark of the document stay
unchanged, so the next build starts from the exact record of silver's cut behind the table. If this record is
not surely known, the build is a full one.

An error before the build (a column or table that silver's cut lacks) waits for the next cut (`Gold._run`). A
failed build has cost a build, often a full one, and fails again until somebody corrects a value or the
document. So the document pauses (`silver.spark.failure_scope.FailedUnits`): cuts within the pause leave the
document out. After the pause, gold builds from the newest cut, also if silver has no new cut
(`Gold.owes_retry`). A rebuild by request, a run that must catch up, and a new process wait for no pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.control import Cut, OpenError, Run
from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.gold.builder.build_start import BuildStart
from deltasmelt.gold.builder.memory import Room
from deltasmelt.gold.tree.check import resolved
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.spark.access import access_of, child_session
from deltasmelt.silver.spark.failure_scope import FailedUnits
from deltasmelt.silver.spark.lazy_session import lazily

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.builder.document import DocumentBuild
    from deltasmelt.gold.builder.images import SharedImages
    from deltasmelt.gold.builder.memory import Machine
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.gold.verify.verify import Built
    from deltasmelt.silver.fresh import FreshTables, Head
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.spark.lazy_session import LazySession

_LOGGER: Final = logging.getLogger("deltasmelt.gold")

CatalogProvider: TypeAlias = Callable[[], "Mapping[TableName, SilverTable]"]
"""Function that returns silver's present catalog."""


class _AheadOfCutError(DefiniteError):
    """Raised if a table's newest shape came after the cut; silver's next cut will have the shape."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The input of one cycle: the silver cut, gold's newest cut, and the documents to build in full."""

    cut: Cut
    last: Cut | None
    catalog: Mapping[TableName, SilverTable]
    rebuild: Collection[str] = ()


class Gold:
    """The documents of one pipeline.

    Each document gets a child session of `spark`. A cycle that leaves all documents unchanged does not start
    a lazy session. `machine` has heap and cores of tasks, by default from the session's settings.

    Attributes:
        runs: runs of the newest cycle, unrecorded runs without changes included.
    """

    def __init__(
        self,
        spark: SparkSession | LazySession,
        lake: Lake,
        documents: Sequence[Document],
        catalog_provider: CatalogProvider,
        control: ControlTables,
        *,
        machine: Machine | None = None,
    ) -> None:
        self._control = control
        self._catalog = catalog_provider
        self._machine = machine
        self._spark = spark = lazily(spark)
        self._lake = lake
        self._starts = {
            document.name: BuildStart(lake, document, SilverLog(lake), control) for document in documents
        }
        self._builders: tuple[dict[str, DocumentBuild], Machine] | None = None
        self._failed: FailedUnits[str] = FailedUnits(spark, lake, self._record_failure, _definite)
        self._lsn = ZERO
        self._left_out = False
        self._newest_cut: Cut | None = None
        self._catalog_of: tuple[Cut | None, Mapping[TableName, SilverTable]] = None, {}
        self._places_in: Mapping[TableName, SilverTable] = {}
        self.runs: list[Run] = []

    def owes_retry(self, *, at_once: bool = False) -> bool:
        """Check whether a failed document is due: after its pause, or `at_once` if a pause left it out."""
        return self._failed.owes_retry or (at_once and self._left_out)

    def cycle(self, *, rebuild: Collection[str] = (), at_once: bool = False) -> Cut | None:
        """Bring every document to the newest silver cut; return gold's cut, or None when nothing was new.

        Args:
            rebuild: documents to build in full, whatever their tables hold.
            at_once: build failed documents without regard to their pauses, for a run that must catch up.
        """
        cut = self._control.latest_cut("silver")
        if cut is None or not self._starts:
            return None
        if cut == self._newest_cut and not rebuild and not self.owes_retry(at_once=at_once):
            return None
        # A cycle that ends before its cut is repeated, also after the retry of a document succeeded.
        self._newest_cut = None
        if cut != self._catalog_of[0] or rebuild:
            # A later catalog may have a shape that this cut lacks; a retry would then lose its document.
            self._catalog_of = cut, self._catalog()
        last = self._control.latest_cut("gold")
        inputs, self._lsn = _Inputs(cut, last, self._catalog_of[1], rebuild), cut.commit_lsn
        runs = self._standing_runs(inputs)
        if not self._spark.started:
            self._unchanged_runs(inputs, runs)
        resting = set() if at_once else {name for name in self._failed if self._failed.rests(name)}
        names = [name for name in self._starts if name in rebuild or not (name in runs or name in resting)]
        self._left_out = bool(resting)
        attempt = partial(self._build_all, inputs, runs)
        self._failed.retry(attempt(names), attempt)
        ended = [run for name in self._starts if (run := runs.get(name)) is not None]
        news = [run for run in ended if self._starts[run.name].is_news(run)]
        self._control.record_runs(news)
        self.runs = ended
        tables = {run.name: run.delta_version for run in ended if run.delta_version is not None}
        as_before = last is not None and last.commit_lsn == cut.commit_lsn and last.tables == tables
        if (
            as_before and last is not None and (last.marks or not tables)
        ):  # no marks: an earlier release's cut
            self._newest_cut = cut
            return None
        states = {name: self._starts[name].table.known for name in tables}
        marks = {name: one.position for name, one in states.items() if one is not None and one.position}
        gold_cut = Cut("gold", cut.commit_lsn, cut.commit_ts, tables, marks=marks, built_from=cut.recorded_at)
        still_writing(self._lake, "gold")
        self._control.record_cut(gold_cut)
        self._newest_cut = cut
        return gold_cut

    def _standing_runs(self, inputs: _Inputs) -> dict[str, Run | None]:
        """Return the runs of documents whose place the cut does not change (`gold.builder.build_start`)."""
        if inputs.catalog != self._places_in:
            self._places_in = inputs.catalog
            for start in self._starts.values():
                start.leave()
        found: dict[str, Run | None] = {}
        for name, start in self._starts.items():
            run = None
            try:
                run = None if name in inputs.rebuild else start.standing(inputs.cut)
            except TransientError:
                raise
            except Exception as error:  # noqa: BLE001 - the build meets the error again, and records it
                _LOGGER.info("%s may have moved: %s", name, cause_of(error))
            if run is not None:
                found[name] = run
            else:
                start.leave()  # the document may get an error now, and only a later decision closes it
        return found

    def _unchanged_runs(self, inputs: _Inputs, found: dict[str, Run | None]) -> None:
        """Add the runs of documents that need no Spark: logs and files prove an unchanged table."""
        fingerprint = self._spark.fingerprint
        for name, standing in self._starts.items():
            if name in inputs.rebuild or name in found:
                continue
            try:
                tree = self._tree(standing.document, inputs)
                run = (
                    None
                    if fingerprint is None
                    else standing.unchanged(tree, inputs.cut, inputs.last, fingerprint)
                )
            except TransientError:
                raise
            except SmeltError as error:
                if not isinstance(error, _AheadOfCutError):
                    self._record_failure(name, error)
                found[name] = None  # a document with an error needs no Spark either
            except Exception as error:  # noqa: BLE001 - the build meets the error again, and records it
                _LOGGER.info("%s needs Spark: %s", name, cause_of(error))
            else:
                if run is not None:
                    self._passed(name)
                    standing.stand(tree, inputs.cut, run)
                    found[name] = run
            if name not in found:
                self._spark.prepare()

    def _build_all(
        self, inputs: _Inputs, runs: dict[str, Run | None], names: Collection[str]
    ) -> dict[str, Exception]:
        """Build documents in parallel, and add their runs to `runs`; return the errors without a decision."""
        undecided: dict[str, Exception] = {}
        if not names:
            return undecided
        builds, machine = self._opened()
        count, access = min(machine.side_by_side, len(names)), access_of(self._spark.get())
        share = partial(access.in_background, "gold")
        with self._images(inputs, names) as images, ThreadPoolExecutor(count, "gold", share) as threads:
            found = threads.map(lambda name: self._run(builds[name], inputs, images, undecided), names)
            runs.update(zip(names, found, strict=True))
        return undecided

    @contextmanager
    def _images(self, inputs: _Inputs, names: Collection[str]) -> Iterator[SharedImages]:
        """Yield the images of changed rows that the documents share."""
        from deltasmelt.gold.builder.images import SharedImages  # noqa: PLC0415 - loads Spark

        trees = []
        for name in names:
            with suppress(Exception):  # the build meets the error again, and records it
                trees.append(self._tree(self._starts[name].document, inputs))
        images = SharedImages(self._lake, trees)
        try:
            yield images
        finally:
            images.close()

    def _opened(self) -> tuple[dict[str, DocumentBuild], Machine]:
        """Return the builds of the documents, and the machine; start Spark if Spark is not started."""
        if self._builders is None:
            # Start Spark first: of two threads that import pyspark at once, one may see it half loaded.
            spark = self._spark.get()
            from deltasmelt.gold.builder.document import DocumentBuild  # noqa: PLC0415 - they load Spark
            from deltasmelt.gold.builder.sizing import machine_of  # noqa: PLC0415

            machine = self._machine or machine_of(spark)
            room, fingerprint = Room(machine.room), self._spark.fingerprint
            builds = {
                name: DocumentBuild(
                    spark, self._lake, one, machine=machine, room=room, fingerprint=fingerprint
                )
                for name, one in self._starts.items()
            }
            self._builders = builds, machine
        return self._builders

    def preview(self, name: str, key: str | Sequence[str], *, fresh: FreshTables | None = None) -> str:
        """Return one document at the newest silver cut, as pretty JSON.

        Args:
            key: value of the root's key; of a composite key its values, as a sequence or separated by commas.
            fresh: silver's tables at the log's head; with them the document is shown at the log's head.

        Raises:
            SmeltError: the document does not exist, the key does not fit, or the definition is wrong.
        """
        from deltasmelt.gold.preview import Preview, at_head  # noqa: PLC0415 - they load Spark

        standing = self._named(name)
        cut = self._control.latest_cut("silver")
        if cut is None:
            raise DefiniteError(
                "silver has no cut yet", code="no-cut", where=name, remedy="run the pipeline first"
            )
        silver: Cut | Head = cut
        if fresh is None:
            tree = self._tree(standing.document, _Inputs(cut, None, self._catalog()))
        else:
            tree, silver = at_head(standing.document, fresh)
        _, machine = self._opened()
        with child_session(self._spark.get() if fresh is None else fresh.session) as session:
            return Preview(session, self._lake, machine).document(tree, silver, key)

    def built(self, name: str) -> Built:
        """Return the tree, silver cut and version of a document's table in the newest gold cut.

        Raises:
            SmeltError: no document has this name, no gold cut holds the document, or its file has changed.
        """
        from deltasmelt.gold.verify.verify import Built  # noqa: PLC0415 - loads Spark

        standing = self._named(name)
        last = self._control.latest_cut("gold")
        if last is None or name not in last.tables:
            raise DefiniteError(
                "no gold cut contains the document yet",
                code="document-not-built",
                where=name,
                remedy="run `smelt gold FILE --until-caught-up`; `smelt status` reports an error that stops "
                "the document",
            )
        cut = self._control.latest_cut("silver", at=last.commit_lsn, known_by=last.seen)
        outdated = DefiniteError(
            "the document's file, or the shape of a table that the document reads, changed after the last "
            "build",
            code="document-not-built",
            where=name,
            remedy="run `smelt gold FILE --until-caught-up`: the next build applies the change",
        )
        if cut is None or cut.commit_lsn != last.commit_lsn:
            raise outdated
        try:
            tree = self._tree(standing.document, _Inputs(cut, last, self._catalog()))
        except _AheadOfCutError:
            raise outdated from None
        builds, _ = self._opened()
        if not builds[name].is_built_by(tree):
            raise outdated
        return Built(tree, cut, last.tables[name])

    def _named(self, name: str) -> BuildStart:
        standing = self._starts.get(name)
        if standing is None:
            raise ConfigurationError(
                f"unknown document {name!r}{suggestion(name, self._starts)}", code="document-unknown"
            )
        return standing

    def _run(
        self,
        build: DocumentBuild,
        inputs: _Inputs,
        images: SharedImages,
        undecided: dict[str, Exception],
    ) -> Run | None:
        """Build one document; return None for a document with an error."""
        name, tree = build.document.name, None

        def stop(error: Exception) -> None:
            if name in inputs.rebuild or not isinstance(error, _AheadOfCutError):
                self._record_failure(name, error)
            if tree is None:
                # The error cost no statement of Spark. Every new cut may end it, so gold decides again then.
                self._failed.passed(name)
            else:
                self._failed.failed(name)

        run = None
        build.build_start.leave()
        with self._failed.attempting(name, undecided, stop):
            tree = self._tree(build.document, inputs)
            run = self._build(build, tree, inputs, None if name in inputs.rebuild else images)
        if run is not None and tree is not None:
            self._passed(name)
            build.build_start.stand(tree, inputs.cut, run)
        return run

    def _record_failure(self, name: str, error: Exception) -> None:
        from deltasmelt.gold.builder.failures import unknown_error  # noqa: PLC0415 - loads Spark

        own = _definite(name, error) or unknown_error(name, error)
        message = f"{own.where}: {own.message}" if own.where else own.message
        self._control.restate_error(OpenError("document", name, own.code, message, own.remedy, self._lsn))

    def _passed(self, name: str) -> None:
        self._failed.passed(name)
        self._control.close_errors("document", name)

    def _build(self, build: DocumentBuild, tree: Tree, inputs: _Inputs, images: SharedImages | None) -> Run:
        from deltasmelt.gold.builder.sizing import LARGEST  # noqa: PLC0415 - loads Spark

        state = build.table.state()
        position = None if state is None else state.position
        if build.largest is None:
            for before in build.build_start.runs():
                # A run before the table's mark is too old: a killed cycle may have built documents since.
                if LARGEST in before.details and before.to_lsn == position:
                    build.largest = int(str(before.details[LARGEST]))
                    break
        start = build.build_start.start(state, inputs.last)
        return build.run(tree, inputs.cut, start, images)

    def _tree(self, document: Document, inputs: _Inputs) -> Tree:
        cut = inputs.cut
        tree = resolved(document, inputs.catalog)
        later = [table for table in tree.tables().values() if table.relation.from_lsn > cut.commit_lsn]
        if later:
            shapes = ", ".join(f"{table.table} at {table.relation.from_lsn}" for table in later)
            raise _AheadOfCutError(
                f"the silver cut {cut.commit_lsn} is older than the new shape of {shapes}",
                code="document-waits",
                where=document.name,
                remedy="nothing to do while silver runs: its next cut has the new shape; otherwise run "
                "`smelt silver FILE`",
            )
        missing = sorted(table.name for table in tree.tables().values() if table.name not in cut.tables)
        if missing:
            raise DefiniteError(
                f"the document needs {', '.join(f'silver.{name}' for name in missing)}, which the silver "
                f"cut {cut.commit_lsn} does not contain",
                code="document-waits",
                where=document.name,
                remedy="the table's snapshot is not complete, or the table is stopped: see `smelt status`; "
                "if the table was dropped at the source, remove it from the document file",
            )
        return tree


def _definite(name: str, error: Exception) -> SmeltError | None:
    from deltasmelt.gold.builder.failures import document_error  # noqa: PLC0415 - loads Spark

    return error if isinstance(error, SmeltError) else document_error(name, error)
