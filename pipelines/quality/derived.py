"""Derived expectations: NOT NULL, unique keys, enum labels, foreign keys, documents of rows.

They check one property: silver still keeps PostgreSQL's promises. Each expectation is the weaker of two
promises: the shape recorded in bronze for the cut, and the catalog as last read. The catalog may be older or
newer than the cut. Soft-deleted rows are no rows of the source and are not checked.

`differently_built` finds gold's tables at the cut built by another definition. A definition may be newer than
the cut: a user edited its file, and gold has not built the new definition yet. Its fields, root and `where`
then do not describe the existing documents.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.gold.compile.query import KEY
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.quality.document_rows import of_tree
from deltasmelt.pipelines.quality.expectations import (
    CATALOG_SUITE,
    DOCUMENT_SUITE,
    FOREIGN_KEY,
    Expectation,
    LeftOut,
)
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.schema.decimals import lossy_decimals, lossy_inside
from deltasmelt.silver.schema.live_rows import live_rows
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.quality.constraints import Constraints, ForeignKeyConstraint
    from deltasmelt.pipelines.quality.expectations import CutTable
    from deltasmelt.silver.schema.catalog import SilverTable


def differently_built(
    spark: SparkSession,
    lake: Lake,
    tables: Iterable[CutTable],
    documents: Iterable[Document],
    catalogs: Iterable[Mapping[TableName, SilverTable]],
) -> frozenset[str]:
    """Return the names of documents whose tables may be built by another definition.

    An unresolvable document counts as different. `catalogs` are silver's catalogs, of the cut and of now:
    gold builds with the newest catalog.
    """
    from deltasmelt.gold.builder.build_start import described, digest_of  # noqa: PLC0415 - Spark is loaded by who needs it
    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415
    from deltasmelt.gold.compile.column_types import schema_of  # noqa: PLC0415
    from deltasmelt.silver.spark.access import child_session  # noqa: PLC0415
    from deltasmelt.silver.spark.semantics import unpinned  # noqa: PLC0415

    built = {table.name: _recorded(lake, table) for table in tables if table.layer == "gold"}
    candidates = [document for document in documents if document.name in built]
    if not candidates:
        return frozenset()

    def digests(session: SparkSession, document: Document) -> Iterator[str]:
        settings = unpinned(session)
        descriptions = set()
        for catalog in catalogs:
            tree, _ = resolve(document, catalog)
            if tree is None or (description := described(document, tree, settings)) in descriptions:
                continue
            descriptions.add(description)
            with suppress(*SPARK_ERRORS, SmeltError):  # it could not be built by it now
                yield digest_of(description, schema_of(session, tree).simpleString())

    with child_session(spark) as session:
        return frozenset(
            document.name
            for document in candidates
            # The table records the digest of its definition (`gold.builder.document`).
            if built[document.name] not in set(digests(session, document))
        )


def _recorded(lake: Lake, table: CutTable) -> str | None:
    """Return the digest recorded in a gold table's version; None without a digest."""
    from deltasmelt.gold.builder.gold_table import definition_at  # noqa: PLC0415

    try:
        return definition_at(lake.uri(table.layer, table.name), table.version)
    except DeltaError:
        return None


NOT_NULL: Final = "expect_column_values_to_not_be_null"
UNIQUE: Final = "expect_column_values_to_be_unique"
COMPOUND_UNIQUE: Final = "expect_compound_columns_to_be_unique"
IN_SET: Final = "expect_column_values_to_be_in_set"
NULL: Final = "expect_column_values_to_be_null"
_COMPARE: Final = {"citext": "ignore case", "bpchar": "ignore trailing spaces", "numeric": "as numbers"}
"""PostgreSQL's comparison of keys of these types, whose text alone does not suffice."""
_INEXACT: Final = frozenset({"float4", "float8"})


def from_catalog(
    catalog: Iterable[SilverTable],
    constraints: Constraints | None,
    tables: Mapping[str, Sequence[str]],
    *,
    whole: bool = True,
) -> tuple[list[Expectation], list[LeftOut]]:
    """Return the expectations of silver, and the parts without an expectation.

    Args:
        catalog: silver's tables from the shapes at the cut.
        constraints: the last answer of the source's catalog; None without any answer.
        tables: columns of every table in the cut (``silver.orders``).
        whole: True if silver has all rows of the source. Without snapshots, silver lacks parents older than
            the stream.
    """
    expectations: list[Expectation] = []
    checked: set[str] = set()
    for table in catalog:
        silver = f"silver.{table.name}"
        if silver in tables:
            checked.add(silver)
            expectations += _of_table(table, constraints, tables[silver])
    left_out = [
        LeftOut(table, "bronze.relations has no shape of the table: only the table's own suites were run")
        for table in tables
        if table.startswith("silver.") and table not in checked and not table.endswith("__history")
    ]
    keys = constraints.foreign_keys if constraints else ()
    if not whole and any(f"silver.{key.child.silver_name}" in tables for key in keys):
        reason = "snapshot.mode is never: silver has no rows from before the stream"
        left_out.append(LeftOut("foreign keys", reason))
        return expectations, left_out
    for key in keys:
        of_key, problem = _of_foreign_key(key, tables)
        expectations += of_key
        if problem is not None:
            left_out.append(LeftOut(f"foreign key {key.name} of {key.child}", problem))
    return expectations, left_out


def _of_table(
    table: SilverTable, constraints: Constraints | None, columns: Sequence[str]
) -> Iterator[Expectation]:
    relation = table.relation

    def expect(kind: str, note: str, **kwargs: Any) -> Expectation:
        origin = f"catalog of {table.table}"
        return Expectation("silver", table.name, CATALOG_SUITE, kind, kwargs, note=note, where=origin)

    if table.key and set(table.key) <= set(columns):
        if len(table.key) == 1:
            yield expect(UNIQUE, "key", column=table.key[0])
        else:
            yield expect(COMPOUND_UNIQUE, "key", column_list=list(table.key))
    promised = constraints.not_null.get(relation.relation_id) if constraints else None
    for column in relation.columns:
        if column.name not in columns:
            continue
        # Rows before SET NOT NULL or after DROP NOT NULL may still be in the stream, so both promises are
        # needed.
        if column.not_null and (promised is None or column.attnum in promised):
            yield expect(NOT_NULL, "NOT NULL", column=column.name)
        enum = _enum(column.type)
        if enum is not None:
            # A label of either promise is right; a renamed label keeps its old text in unchanged rows.
            labels = dict.fromkeys(enum.labels)
            if constraints:
                labels |= dict.fromkeys(constraints.enum_labels.get(enum.oid, ()))
            yield expect(IN_SET, f"enum {enum.name}", column=column.name, value_set=list(labels))
    # Silver has NULL for a value outside the range of its type (NaN, infinity), and the text in
    # `_unrepresentable`. Sums and averages omit such values, so each is worth a warning.
    if UNREPRESENTABLE in columns and (lossy_decimals(table) or lossy_inside(table)):
        fits = expect(NULL, "decimals hold every numeric", column=UNREPRESENTABLE)
        yield replace(fits, severity="warning")


def from_documents(
    documents: Iterable[Document],
    catalog: Mapping[TableName, SilverTable],
    tables: Mapping[str, Sequence[str]],
    different: Collection[str] = (),
) -> tuple[list[Expectation], list[LeftOut]]:
    """Return the expectations of gold: each document's key is unique, and its root row is in the same cut.

    `tables` has the columns of every table in the cut; another definition built the documents in `different`
    (`differently_built`).
    """
    expectations: list[Expectation] = []
    left_out: list[LeftOut] = []
    for document in documents:
        name = f"gold.{document.name}"
        if name not in tables:
            continue
        tree, problems = resolve(document, catalog)
        if tree is None:
            left_out.append(LeftOut(f"document {document.name}", problems[0].message))
            continue
        if document.name in different:
            reason = (
                "gold was built with another definition than the present one: only its own suites were run"
            )
            left_out.append(LeftOut(f"document {document.name}", reason))
            continue
        origin = f"{document.file.path.name}: {document.name}"
        of_keys = list(_of_document(tree, origin, tables[name]))
        expectations += of_keys
        if of_keys:
            expectations += of_tree(tree, origin, tables)
    return expectations, left_out


def _of_document(tree: Tree, where: str, columns: Sequence[str]) -> Iterator[Expectation]:
    def expect(kind: str, note: str, **kwargs: Any) -> Expectation:
        return Expectation("gold", tree.name, DOCUMENT_SUITE, kind, kwargs, note=note, where=where)

    key = list(tree.key_fields) or [KEY]
    if not set(key) <= set(columns):
        return
    if len(key) == 1:
        yield expect(UNIQUE, "key of its root", column=key[0])
    else:
        yield expect(COMPOUND_UNIQUE, "key of its root", column_list=key)
    if tree.key_fields:
        root = f"silver.{tree.root.table.name}"
        yield expect(
            FOREIGN_KEY, "its root row", columns=key, references=root, referenced_columns=list(tree.key)
        )


def catalog_frame(frame: DataFrame, expectations: Iterable[Expectation]) -> DataFrame:
    """Return the rows and columns of a silver table for its derived expectations."""
    # A value outside the range of its type is not missing. So a column checked for NOT NULL alone becomes a
    # presence flag, true or NULL, by both columns. Values outside their types appear as the names of their
    # columns.
    presence_only: dict[str, bool] = {}
    for expectation in expectations:
        columns = expectation.kwargs.get("column_list") or [expectation.kwargs["column"]]
        for column in columns:
            presence_only[column] = presence_only.get(column, True) and expectation.kind == NOT_NULL
    existing = set(frame.columns)
    return live_rows(frame).selectExpr(
        *(
            f"{_present(column)} AS {quote(column)}"
            if presence and UNREPRESENTABLE in existing
            else f"array_join(array_sort(map_keys({quote(column)})), ', ') AS {quote(column)}"
            if column == UNREPRESENTABLE
            else quote(column)
            for column, presence in presence_only.items()
        )
    )


def _present(column: str) -> str:
    unrepresentable = f"map_contains_key({quote(UNREPRESENTABLE)}, {literal(column)})"
    return f"CASE WHEN {quote(column)} IS NOT NULL OR {unrepresentable} THEN true END"


def _enum(type_: PgType) -> PgType | None:
    """Return the enum behind a column's type, through domains; None for other types."""
    while type_.kind == "domain" and type_.element is not None:
        type_ = type_.element
    return type_ if type_.kind == "enum" and type_.labels else None


def _comparison(child: str, parent: str) -> str | None:
    """Return PostgreSQL's comparison of two types in a foreign key; None without an equivalent here."""
    types = {child, parent}
    # For different types, the looser comparison counts: PostgreSQL converts one side to the other's type.
    ways = {_COMPARE[name] for name in types & _COMPARE.keys()}
    if len(ways) > 1 or ("numeric" in types and types & _INEXACT):
        return None
    return next(iter(ways), "exact")


def _of_foreign_key(
    key: ForeignKeyConstraint, tables: Mapping[str, Sequence[str]]
) -> tuple[list[Expectation], str | None]:
    child, parent = f"silver.{key.child.silver_name}", f"silver.{key.parent.silver_name}"
    if child not in tables:
        return [], None
    if parent not in tables:
        return [], f"{key.parent} is not in the cut"
    if key.weak is not None:
        return [], key.weak
    missing = [*(set(key.columns) - set(tables[child])), *(set(key.referenced) - set(tables[parent]))]
    if missing:
        return [], f"the cut does not contain {', '.join(sorted(missing))} yet"
    kwargs: dict[str, Any] = {
        "columns": list(key.columns),
        "references": parent,
        "referenced_columns": list(key.referenced),
        "name": key.name,
    }
    referenced_types = key.referenced_types or key.types  # kept by a release that did not ask for them
    compare = [_comparison(*pair) for pair in zip(key.types, referenced_types, strict=True)]
    if None in compare:
        return [], f"the foreign key compares {', '.join(key.types)} with {', '.join(referenced_types)}"
    if set(compare) != {"exact"}:
        kwargs["compare"] = compare
    note = f"foreign key {key.name}"
    origin = f"catalog of {key.child}"
    return [
        Expectation(
            "silver", key.child.silver_name, CATALOG_SUITE, FOREIGN_KEY, kwargs, note=note, where=origin
        )
    ], None
