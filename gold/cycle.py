"""The gold cycle: all documents to the newest silver cut.

Documents are built side by side, as many as the heap has room for (`gold.builder.memory`), each in one commit
of its own table. The gold cut that names them all is recorded after the last one. A crash in between leaves
some tables ahead of the newest gold cut, never a cut that names what is not there. The next cycle brings
every document to one cut again.

A document that cannot be built (a column that is gone, an expression that fails on a value) stops alone: the
error is recorded with its remedy and the others continue. It is tried again when there is a new cut, or the
same one is recorded again. Its table and mark stay as they were, so it starts from the very record of
silver's cut that it was built from. Where that record is not surely known, it is built in full.

A lake that does not answer is no document's failure (`silver.run.outages`): the cycle ends with a
`TransientError` and is repeated after a pause. If one document meets that in several cycles in a row, it
counts as that document's own failure, and the others no longer wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from bronze.config.suggestions import suggestion
from bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from bronze.lake.control import Cut, OpenError, Run
from gold.builder.memory import Room
from gold.incremental.starts import built_from
from gold.tree.check import resolved
from silver.run.outages import Patience, outage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.control_tables import ControlTables
    from bronze.lake.location import Lake
    from gold.builder.document import DocumentBuild
    from gold.builder.memory import Machine
    from gold.language.document import Document
    from gold.tree.nodes import Tree
    from gold.verify.verify import Built
    from silver.schema.catalog import SilverTable

CatalogProvider: TypeAlias = Callable[[], "Mapping[TableName, SilverTable]"]
"""Gives silver's catalog as it is now."""


def close_undefined(control: ControlTables, defined: Collection[str]) -> None:
    """Close the errors of documents that are no longer defined: nothing else ever would."""
    for error in control.open_errors():
        if error.scope == "document" and error.name not in defined:
            control.close_errors("document", error.name)


class _AheadOfCutError(DefiniteError):
    """A table's newest shape came after the cut; silver's next cut will have it."""


class Gold:
    """The documents of one pipeline.

    Args:
        spark: a session; each document has one of its own beside it.
        lake: where the tables lie.
        documents: to build.
        catalog_provider: gives silver's catalog.
        control: the lake's control tables.
        machine: where tasks run; by default what the session's settings say.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        documents: Sequence[Document],
        catalog_provider: CatalogProvider,
        control: ControlTables,
        *,
        machine: Machine | None = None,
    ) -> None:
        from gold.builder.document import DocumentBuild  # noqa: PLC0415 - reading definitions alone needs no Spark
        from gold.builder.sizing import machine_of  # noqa: PLC0415

        self._control = control
        self._catalog = catalog_provider
        self._machine = machine = machine or machine_of(spark)
        room = Room(machine.room)
        self._side_by_side = machine.side_by_side
        self._builds = {
            document.name: DocumentBuild(spark, lake, document, machine, room) for document in documents
        }
        self._spark = spark
        self._lake = lake
        self._failed: dict[str, Cut] = {}
        self._patience: Patience[str] = Patience()
        self._seen: Cut | None = None
        self._tidied = False

    def cycle(self, *, rebuild: Collection[str] = ()) -> Cut | None:
        """Bring every document to the newest silver cut.

        Args:
            rebuild: documents to build as a whole, whatever their tables hold.

        Returns:
            the gold cut, recorded; None when nothing was new.
        """
        if not self._tidied:
            close_undefined(self._control, self._builds)
            self._tidied = True
        cut = self._control.latest_cut("silver")
        if cut is None or not self._builds or (cut == self._seen and not rebuild):
            return None
        last = self._control.latest_cut("gold")
        catalog = self._catalog()
        with ThreadPoolExecutor(min(self._side_by_side, len(self._builds)), "gold") as threads:
            runs = dict(
                zip(
                    self._builds,
                    threads.map(
                        lambda build: self._one(
                            build, cut, last, catalog, rebuild=build.document.name in rebuild
                        ),
                        self._builds.values(),
                    ),
                    strict=True,
                )
            )
        new_runs = [run for run in runs.values() if run is not None and run.mode != "current"]
        self._control.record_runs(new_runs)
        tables = {
            name: run.delta_version
            for name, run in runs.items()
            if run is not None and run.delta_version is not None
        }
        if last is not None and last.commit_lsn == cut.commit_lsn and last.tables == tables:
            self._seen = cut
            return None
        if not self._is_current(cut):
            return None
        gold_cut = Cut("gold", cut.commit_lsn, cut.commit_ts, tables)
        self._control.record_cut(gold_cut)
        self._seen = cut
        return gold_cut

    def _is_current(self, cut: Cut) -> bool:
        """Whether the record of silver's cut that the documents were built from is still the one of its LSN.

        Silver may have recorded that LSN again while they were built, with tables that were resnapshotted. A
        cut of gold would be taken for one of the newer record, by its time; and what is new there, for built.
        Without it the documents' own marks count, and the next cycle builds them from the newer record.
        """
        newest = self._control.latest_cut("silver", at=cut.commit_lsn)
        return newest is None or newest.commit_lsn != cut.commit_lsn or newest == cut

    def preview(self, name: str, key: str | Sequence[str]) -> str:
        """One document as it would be at the newest silver cut, as pretty JSON.

        Args:
            name: the document.
            key: value of the root's key; of a composite key its values, as a sequence or separated by commas.

        Raises:
            SmeltError: there is no such document, the key does not fit, or the definition is wrong.
        """
        build = self._named(name)
        from gold.preview import Preview  # noqa: PLC0415 - loads Spark

        cut = self._control.latest_cut("silver")
        if cut is None:
            raise DefiniteError(
                "silver has no cut yet", code="no-cut", where=name, remedy="run the pipeline first"
            )
        tree = self._tree(build, cut, self._catalog())
        several = len(tree.key) > 1
        values = [key] if isinstance(key, str) and not several else key
        values = [part.strip() for part in values.split(",")] if isinstance(values, str) else values
        found = Preview(self._spark, self._lake, self._machine).document(tree, cut, values)
        if found is None:
            shown = ", ".join(values)
            raise DefiniteError(
                f"there is no {name} with the key {shown}",
                code="document-not-found",
                where=f"silver cut {cut.commit_lsn}",
                remedy=f"the row is not in {tree.root.table.table}, or fails the document's where",
            )
        return found

    def built(self, name: str) -> Built:
        """What the newest gold cut says a document's table was built from.

        Raises:
            SmeltError: there is no such document, it is in no gold cut, or its file says something else now.
        """
        from gold.verify.verify import Built  # noqa: PLC0415 - loads Spark

        build = self._named(name)
        last = self._control.latest_cut("gold")
        if last is None or name not in last.tables:
            raise DefiniteError(
                "no gold cut holds it yet",
                code="document-not-built",
                where=name,
                remedy="run `smelt gold FILE --until-caught-up`; `smelt status` says if an error stops it",
            )
        cut = self._control.latest_cut("silver", at=last.commit_lsn, known_by=last.recorded_at)
        outdated = DefiniteError(
            "its file, or the shape of a table that it reads, changed after it was built",
            code="document-not-built",
            where=name,
            remedy="run `smelt gold FILE --until-caught-up`: the next build applies the change",
        )
        if cut is None or cut.commit_lsn != last.commit_lsn:
            raise outdated
        try:
            tree = self._tree(build, cut, self._catalog())
        except _AheadOfCutError:
            raise outdated from None
        if not build.is_built_by(tree):
            raise outdated
        return Built(tree, cut, last.tables[name])

    def _named(self, name: str) -> DocumentBuild:
        build = self._builds.get(name)
        if build is None:
            raise ConfigurationError(
                f"unknown document {name!r}{suggestion(name, self._builds)}", code="document-unknown"
            )
        return build

    def _one(
        self,
        build: DocumentBuild,
        cut: Cut,
        last: Cut | None,
        catalog: Mapping[TableName, SilverTable],
        *,
        rebuild: bool,
    ) -> Run | None:
        """Build one document; None where it has an error."""
        name = build.document.name
        if self._failed.get(name) == cut and not rebuild:
            return None
        try:
            run = self._tried(
                build, lambda: self._build(build, self._tree(build, cut, catalog), cut, last, rebuild=rebuild)
            )
        except TransientError:
            raise
        except SmeltError as error:
            # Silver's next cut will have the shape; only a requested rebuild reports this.
            if rebuild or not isinstance(error, _AheadOfCutError):
                self._record(name, cut, error)
            return None
        self._failed.pop(name, None)
        self._patience.passed(name)
        self._control.close_errors("document", name)
        return run

    def _tried(self, build: DocumentBuild, attempt: Callable[[], Run]) -> Run:
        """Build a document; a failure that no rule knows is tried once more, and is then the document's own.

        Raises:
            SmeltError: the document's error.
            TransientError: the lake does not answer.
            Exception: Spark itself no longer answers.
        """
        from gold.builder.failures import document_error, unknown_error  # noqa: PLC0415 - they load Spark
        from silver.run.troubles import answers, unreachable  # noqa: PLC0415

        for again in (True, False):
            try:
                return attempt()
            except SmeltError:
                raise
            except Exception as error:
                own = document_error(build.document.name, error)
                if own is None and not answers(self._spark):
                    raise
                if (
                    own is None
                    and (said := outage(error)) is not None
                    and self._patience.waits(build.document.name)
                ):
                    raise unreachable(self._lake, said) from error
                if own is not None or not again:
                    raise own or unknown_error(build.document.name, error) from error
        raise AssertionError  # the second attempt returned or raised

    def _build(self, build: DocumentBuild, tree: Tree, cut: Cut, last: Cut | None, *, rebuild: bool) -> Run:
        from gold.builder.document import Start  # noqa: PLC0415
        from gold.builder.sizing import LARGEST  # noqa: PLC0415

        state = build.table.state()
        position = None if state is None else state.position
        if build.largest is None:
            for before in self._control.runs("gold", build.document.name, limit=5):
                # Of an older run it says nothing of what was built since, by a cycle that was killed.
                if LARGEST in before.details and before.to_lsn == position:
                    build.largest = int(str(before.details[LARGEST]))
                    break
        known_by = None
        named = None if last is None else last.tables.get(build.document.name)
        if (
            state is not None
            and last is not None
            and named is not None
            and build.table.is_as_of(named, state.version)
        ):
            # A cycle that changed no document moved the position by its cut alone.
            position = max(position or last.commit_lsn, last.commit_lsn)
            known_by = last.recorded_at if last.commit_lsn == position else None
        old = None if position is None else built_from(self._control, position, known_by, build.is_same)
        return build.run(tree, cut, Start(position, old), rebuild=rebuild)

    def _tree(self, build: DocumentBuild, cut: Cut, catalog: Mapping[TableName, SilverTable]) -> Tree:
        tree = resolved(build.document, catalog)
        later = [table for table in tree.tables().values() if table.relation.from_lsn > cut.commit_lsn]
        if later:
            shapes = ", ".join(f"{table.table} at {table.relation.from_lsn}" for table in later)
            raise _AheadOfCutError(
                f"the silver cut {cut.commit_lsn} is older than the new shape of {shapes}",
                code="document-waits",
                where=build.document.name,
                remedy="none while silver runs, as its next cut has the shape; otherwise run "
                "`smelt silver FILE`",
            )
        missing = sorted(table.name for table in tree.tables().values() if table.name not in cut.tables)
        if missing:
            raise DefiniteError(
                f"needs {', '.join(f'silver.{name}' for name in missing)}, "
                f"which the silver cut {cut.commit_lsn} lacks",
                code="document-waits",
                where=build.document.name,
                remedy="its snapshot is not complete, or the table has stopped: see `smelt status`; if it "
                "was dropped at the source, remove it from the document file",
            )
        return tree

    def _record(self, name: str, cut: Cut, error: SmeltError) -> None:
        self._failed[name] = cut
        message = f"{error.where}: {error.message}" if error.where else error.message
        self._control.restate_error(
            OpenError("document", name, error.code, message, error.remedy, cut.commit_lsn)
        )
