"""Whether gold's tables, as they were at the cut, were built by the documents' definitions as they are now.

A definition may be newer than the cut: its file was edited, and gold has not been built by it yet. Its
fields, its root and its `where` then say nothing of the documents that are there. The table itself names the
definition that it was built by (`gold.builder.document`). So the two digests are compared.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bronze.errors import SmeltError
from bronze.lake.client import DeltaError
from gold.tree.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from gold.language.document import Document
    from pipelines.quality.expectations import CutTable
    from silver.schema.catalog import SilverTable


def differently_built(
    spark: SparkSession,
    lake: Lake,
    tables: Iterable[CutTable],
    documents: Iterable[Document],
    catalogs: Iterable[Mapping[TableName, SilverTable]],
) -> frozenset[str]:
    """Names of the documents whose tables are not known to be built by their definitions.

    Args:
        spark: a session; types are asked of a new one beside it, with the settings of a build.
        lake: where the tables lie.
        tables: of the cut.
        documents: gold's; one that cannot be resolved counts as different.
        catalogs: silver's, of the cut and as it is now: gold builds by the newest one that it sees.
    """
    from gold.builder.definition import described, digest_of  # noqa: PLC0415 - Spark is loaded by who needs it
    from gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415
    from gold.compile.column_types import schema_of  # noqa: PLC0415
    from silver.run.pinned import unpinned  # noqa: PLC0415
    from silver.run.sessions import beside  # noqa: PLC0415

    built = {table.name: _recorded(lake, table) for table in tables if table.layer == "gold"}
    asked = [document for document in documents if document.name in built]
    if not asked:
        return frozenset()

    def digests(session: SparkSession, document: Document) -> Iterator[str]:
        settings = unpinned(session)
        seen = set()
        for catalog in catalogs:
            tree, _ = resolve(document, catalog)
            if tree is None or (description := described(document, tree, settings)) in seen:
                continue
            seen.add(description)
            with suppress(*SPARK_ERRORS, SmeltError):  # it could not be built by it now
                yield digest_of(description, schema_of(session, tree).simpleString())

    with beside(spark) as session:
        return frozenset(
            document.name for document in asked if built[document.name] not in set(digests(session, document))
        )


def _recorded(lake: Lake, table: CutTable) -> str | None:
    """The digest that a gold table names at its version; None where it names none."""
    from gold.builder.gold_table import definition_at  # noqa: PLC0415

    try:
        return definition_at(lake.uri(table.layer, table.name), table.version)
    except DeltaError:
        return None
