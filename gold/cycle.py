"""The gold cycle: all documents to the newest silver cut.

Documents are built side by side, each in one commit of its own table; the gold cut that names them all is
recorded after the last one. A crash in between leaves some tables ahead of the newest gold cut, never a cut
that names what is not there, and the next cycle brings every document to one cut again.

A document that cannot be built (a column that is gone, an expression that fails on a value) stops alone:
the error is recorded with its remedy and the others go on. It is tried again when there is a new cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

from bronze.control import Cut, OpenError, Run
from bronze.errors import ConfigurationError, DefiniteError, SmeltError
from gold.check import resolved
from gold.yaml_source import suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyspark.sql import SparkSession

    from bronze.control_tables import ControlTables
    from bronze.identifiers import TableName
    from bronze.lake import Lake
    from bronze.lsn import Lsn
    from gold.build import DocumentBuild
    from gold.documents import Document
    from gold.tree import Tree
    from gold.verify import Built
    from silver.catalog import SilverTable

CatalogProvider: TypeAlias = Callable[[], "Mapping[TableName, SilverTable]"]
"""Gives silver's catalog as it is now."""

_SIDE_BY_SIDE: Final = 4


class _AheadOfCutError(Exception):
    """A table's newest shape came after the cut; silver's next cut will have it. Nothing is wrong."""


class Gold:
    """The documents of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        documents: Sequence[Document],
        catalog_provider: CatalogProvider,
        control: ControlTables,
    ) -> None:
        from gold.build import DocumentBuild  # noqa: PLC0415 - whoever only reads definitions needs no Spark

        self._control = control
        self._catalog = catalog_provider
        self._builds = {document.name: DocumentBuild(spark, lake, document) for document in documents}
        self._failed: dict[str, Lsn] = {}
        self._seen: Cut | None = None

    def cycle(self, *, rebuild: Collection[str] = ()) -> Cut | None:
        """Bring every document to the newest silver cut.

        Args:
            rebuild: documents to build as a whole, whatever their tables hold.

        Returns:
            the gold cut, recorded; None when nothing was new.
        """
        cut = self._control.latest_cut("silver")
        if cut is None or not self._builds or (cut == self._seen and not rebuild):
            return None
        last = self._control.latest_cut("gold")
        catalog = self._catalog()
        with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(self._builds)), "gold") as threads:
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
        gold_cut = Cut("gold", cut.commit_lsn, cut.commit_ts, tables)
        self._control.record_cut(gold_cut)
        self._seen = cut
        return gold_cut

    def preview(self, name: str, key: str | Sequence[str]) -> str:
        """One document as it would be at the newest silver cut, as pretty JSON.

        Args:
            name: the document.
            key: value of the root's key; of a composite key its values, as a sequence or separated by commas.

        Raises:
            SmeltError: there is no such document, the key does not fit, or the definition is wrong.
        """
        build = self._named(name)
        cut = self._control.latest_cut("silver")
        if cut is None:
            raise DefiniteError(
                "silver has no cut yet", code="no-cut", where=name, remedy="run the pipeline first"
            )
        tree = self._tree(build, cut, self._catalog())
        several = len(tree.key) > 1
        values = [key] if isinstance(key, str) and not several else key
        values = [part.strip() for part in values.split(",")] if isinstance(values, str) else values
        found = build.preview(tree, cut, values)
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
        from gold.verify import Built  # noqa: PLC0415 - loads Spark

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
            remedy="run `smelt gold FILE --until-caught-up`: the next build follows the change",
        )
        if cut is None or cut.commit_lsn != last.commit_lsn:
            raise outdated
        try:
            tree = self._tree(build, cut, self._catalog())
        except _AheadOfCutError:
            raise outdated from None
        if not build.is_built_by(tree, cut):
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
        from gold.failures import SPARK_ERRORS, document_error  # noqa: PLC0415 - it loads Spark

        name = build.document.name
        if self._failed.get(name) == cut.commit_lsn and not rebuild:
            return None
        try:
            tree = self._tree(build, cut, catalog)
            run = self._build(build, tree, cut, last, rebuild=rebuild)
        except _AheadOfCutError:
            return None
        except SmeltError as error:
            self._record(name, cut, error)
            return None
        except SPARK_ERRORS as error:
            own = document_error(name, error)
            if own is None:
                raise
            self._record(name, cut, own)
            return None
        self._failed.pop(name, None)
        self._control.close_errors("document", name)
        return run

    def _build(self, build: DocumentBuild, tree: Tree, cut: Cut, last: Cut | None, *, rebuild: bool) -> Run:
        from gold.build import Start  # noqa: PLC0415

        state = build.state()
        position = None if state is None else state.position
        if state is not None and last is not None and last.tables.get(build.document.name) == state.version:
            # A cycle that changed no document moved the position by its cut alone.
            position = max(position or last.commit_lsn, last.commit_lsn)
        # Silver may have recorded that cut again since, with a table that was rebuilt.
        seen = last.recorded_at if last is not None and last.commit_lsn == position else None
        old = None if position is None else self._control.latest_cut("silver", at=position, known_by=seen)
        if old is not None and old.commit_lsn != position:
            old = None
        return build.run(tree, cut, Start(position, old), rebuild=rebuild)

    def _tree(self, build: DocumentBuild, cut: Cut, catalog: Mapping[TableName, SilverTable]) -> Tree:
        tree = resolved(build.document, catalog)
        if any(table.relation.from_lsn > cut.commit_lsn for table in tree.tables().values()):
            raise _AheadOfCutError
        missing = sorted(table.name for table in tree.tables().values() if table.name not in cut.tables)
        if missing:
            raise DefiniteError(
                f"needs {', '.join(f'silver.{name}' for name in missing)}, "
                f"which the silver cut {cut.commit_lsn} lacks",
                code="document-waits",
                where=build.document.name,
                remedy="its copy is not complete, or the table has stopped: see `smelt status`; where it was "
                "dropped at the source, take it out of the document file",
            )
        return tree

    def _record(self, name: str, cut: Cut, error: SmeltError) -> None:
        self._failed[name] = cut.commit_lsn
        message = f"{error.where}: {error.message}" if error.where else error.message
        self._control.open_error(
            OpenError("document", name, error.code, message, error.remedy, cut.commit_lsn)
        )
