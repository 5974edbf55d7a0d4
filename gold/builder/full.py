"""Build a whole document table.

A first build, or a build by a changed definition, is one ``CREATE OR REPLACE TABLE … AS SELECT``. The
statement swaps data, schema and property in one commit. With an unchanged definition, gold runs one MERGE
that also deletes vanished documents, so that unchanged documents are not written again.

Gold does not replace a catalog's table: owner, grants and history belong to the table, and not every catalog
can replace. Gold creates a catalog's table once. A build by a different definition first empties the
definition property. Then the build writes rows, columns and mark in one commit, and then sets the property to
the new definition. Killed between two of these steps, the table names no definition, and the next build is a
full build again. The property never names a definition before the rows of this definition are committed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.compaction import remove_uncreated
from deltasmelt.bronze.lake.delta import make_room
from deltasmelt.gold.builder.failures import SPARK_ERRORS
from deltasmelt.gold.builder.gold_table import DEFINITION_PROPERTY, is_small
from deltasmelt.gold.builder.merging import Merge, merge
from deltasmelt.gold.builder.sizing import LARGEST
from deltasmelt.gold.builder.spark_settings import (
    GOLD_APP,
    HASH,
    LSN,
    SMALL_PLAN,
    SORTED,
    content_hash,
    partitions,
    read_by,
)
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.compile.counting import count_flagged
from deltasmelt.silver.fold.write_sql import prunable
from deltasmelt.silver.run.marks import Mark
from deltasmelt.silver.schema.ddl import MICROSECONDS, NTZ_FEATURE, TIMESTAMPS
from deltasmelt.silver.schema.fields import ddl_of
from deltasmelt.silver.spark.tuning import FINE_PAGES, mark_settings, settings
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.gold.builder.build import Build, BuildContext
    from deltasmelt.gold.builder.gold_table import TableState
    from deltasmelt.gold.compile.query import Compiled

_LOGGER: Final = logging.getLogger("deltasmelt.gold")


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The definition by which gold builds a document's table.

    `digest` is a digest of everything that decides the table's content. `has_local_times` states that a
    column, or a nested field, is a timestamp without a time zone.
    """

    digest: str
    has_local_times: bool


def build_full(
    work: BuildContext, build: Build, state: TableState | None, definition: TableDefinition, *, distrust: bool
) -> int:
    """Build all documents; return the approximate bytes of the largest.

    With `distrust` another writer may have changed the table, or `smelt rebuild` asks for the build.

    Raises:
        DefiniteError: a document has no room in memory.
        PySparkException: Spark refused the query, or failed to compute a value.
    """
    small = is_small(build.sizes.values())
    tasks = 1 if small else work.tasks()
    plan, largest = work.sizing.of_all(build.tree, build.relation, build.sizes, tasks=tasks)
    build.run.details[LARGEST] = largest
    wanted = {
        **(SMALL_PLAN if small else {}),
        **({} if small and plan.together else SORTED),
        **partitions(plan),
        **read_by(plan),
        **FINE_PAGES,
    }
    with work.room.reserve(plan.needed), settings(work.spark, wanted):
        _write(
            work, build, state, definition, distrust=distrust, small=small, sort=plan.together and not small
        )
    return largest


def _write(
    work: BuildContext,
    build: Build,
    state: TableState | None,
    definition: TableDefinition,
    *,
    distrust: bool,
    small: bool,
    sort: bool,
) -> None:
    compiled = compile_tree(build.tree, build.relation)
    work.count_flagged(*count_flagged(build.tree, build.relation), build.run)
    work.count_lost(build.tree, build.relation, build.run)
    content = f"{content_hash(compiled.columns)} AS {HASH}"
    listed = ", ".join(map(quote, compiled.columns))
    made = f"SELECT {listed}, {content} FROM (\n{compiled.sql}\n)"
    same = state is not None and state.definition == definition.digest
    # A distrusted table's statement about its own rows counts nothing: the MERGE compares the content of
    # documents, not the stored hash. If a document exists twice, no MERGE can correct the table, and gold
    # replaces the table.
    if state is not None and same and not (distrust and _holds_one_twice(work, compiled)):
        with settings(work.spark, {"spark.databricks.delta.merge.materializeSource": "auto"}):
            what = Merge(compiled, made, build.cut, state.position, distrust=distrust)
            merge(work.spark, work.table, what, build.run)
        return
    kept, join = _document_lsn(
        work.table.address, compiled, state, f"{int(build.cut.commit_lsn)}L", same_definition=same
    )
    # Readers find few documents of near keys in few pages. Mostly the rows already come in this order. Large
    # documents are never sorted: the plan has no memory for the sort.
    order = "" if not sort else f"\nSORT BY {', '.join(compiled.key)}"
    columns = ", ".join(f"d.{quote(name)}" for name in compiled.columns)
    rows = f"SELECT {columns}, {kept} AS {LSN}, d.{HASH} AS {HASH}\nFROM (\n{made}\n) AS d{join}{order}"
    mark = Mark(GOLD_APP, build.cut.commit_lsn, None if state is None else state.position)
    if work.lake.place.replaces_tables:
        _replace(work, rows, mark, definition, exists=state is not None)
    else:
        _write_named(work, rows, mark, state, definition)
    build.run.inserts = work.table.rows_written()
    build.run.changes = build.run.inserts
    if not small:
        _cluster(work, compiled)


def _replace(work: BuildContext, rows: str, mark: Mark, definition: TableDefinition, *, exists: bool) -> None:
    """Replace the table at its location: rows, columns, property and mark in one commit."""
    if not exists:
        remove_uncreated(work.table.uri)
    properties = _listed({DEFINITION_PROPERTY: definition.digest, **_properties(definition)})
    statement = f"CREATE OR REPLACE TABLE {work.table.address} USING DELTA TBLPROPERTIES ({properties}) AS"
    _run(work, f"{statement}\n{rows}", needed=mark_settings(mark.app, mark.lsn, mark.position))


def _write_named(
    work: BuildContext, rows: str, mark: Mark, state: TableState | None, definition: TableDefinition
) -> None:
    """Create a catalog's table, or write all its rows again; the module's head argues each failure."""
    table, spark = work.table, work.spark
    wanted = {one.name: ddl_of(one.dataType.jsonValue()) for one in spark.sql(rows).schema}
    reshapes = state is not None and table.types() != wanted
    if state is None:
        make_room(table.uri)
        columns = ", ".join(f"{quote(name)} {ddl}" for name, ddl in wanted.items())
        properties = _listed({DEFINITION_PROPERTY: "", **_properties(definition)})
        made = f"CREATE TABLE IF NOT EXISTS {table.address} ({columns})"
        _run(work, f"{made} USING DELTA TBLPROPERTIES ({properties})")
        table.state()  # refuses an existing table that gold did not create
    else:
        first = {NTZ_FEATURE: "supported"} if reshapes and definition.has_local_times else {}
        if state.definition not in (None, definition.digest):
            first[DEFINITION_PROPERTY] = ""
        _set(work, first)
    table.writer.write(spark, table.name, rows, mark, replaces=True, reshapes=reshapes)
    if state is None or state.definition != definition.digest:
        _set(work, {DEFINITION_PROPERTY: definition.digest})


def _set(work: BuildContext, properties: Mapping[str, str]) -> None:
    if properties:
        _run(work, f"ALTER TABLE {work.table.address} SET TBLPROPERTIES ({_listed(properties)})")


def _run(work: BuildContext, statement: str, *, needed: Mapping[str, str] | None = None) -> None:
    work.table.writer.run(work.spark, work.table.name, statement, needed=needed)


def _cluster(work: BuildContext, compiled: Compiled) -> None:
    """Set the clustering key, so that maintenance groups documents by near keys: a build groups by hash."""
    if not all(map(prunable, compiled.key_types)) or not work.table.has_statistics(compiled.key):
        return
    try:
        # A separate commit without data. Without clustering, a reader reads more pages for equal rows.
        _run(work, f"ALTER TABLE {work.table.address} CLUSTER BY ({', '.join(compiled.key)})")
    except SPARK_ERRORS:
        _LOGGER.warning("%s could not be clustered by its key", work.table.address, exc_info=True)


def _holds_one_twice(work: BuildContext, compiled: Compiled) -> bool:
    keys = ", ".join(compiled.key)
    twice = f"SELECT 1 FROM {work.table.address} GROUP BY {keys} HAVING count(*) > 1"
    return work.spark.sql(twice).first() is not None


def _document_lsn(
    address: str, compiled: Compiled, state: TableState | None, lsn: str, *, same_definition: bool
) -> tuple[str, str]:
    """Return the LSN of each document of a replaced table, and the join that gives the LSN.

    An unchanged document keeps its LSN. `lsn` is the LSN of the cut to build, as SQL.
    """
    key = None if state is None else _key_columns(compiled, state)
    if state is None or key is None:
        return lsn, ""
    # After a changed definition, gold compares the stored hash. In a table of an unchanged definition, which
    # a foreign writer changed, gold compares the content of all rows of a key.
    held = content_hash(compiled.columns) if same_definition else HASH
    on = " AND ".join(f"o.k{i} = CAST(d.{name} AS STRING)" for i, name in enumerate(key))
    keys = ", ".join(f"CAST({name} AS STRING) AS k{i}" for i, name in enumerate(key))
    numbers = ", ".join(f"k{i}" for i in range(len(key)))
    before = f"SELECT {keys}, {held} AS h, {LSN} AS l FROM {address} VERSION AS OF {state.version}"
    # Of rows of equal content with several LSNs, the newest counts: readers may not have seen the document
    # before.
    once = (
        f"SELECT {numbers}, any_value(h) AS {HASH}, max(l) AS {LSN} FROM ({before})\n"
        f"GROUP BY {numbers} HAVING count(*) = count(h) AND count(DISTINCT h) = 1"
    )
    join = f"\nLEFT JOIN ({once}) AS o ON {on} AND o.{HASH} = d.{HASH}"
    return f"least(o.{LSN}, {lsn})", join  # `least` ignores NULL, of a new document


def _key_columns(compiled: Compiled, state: TableState) -> tuple[str, ...] | None:
    """Return the key, if the old table has key, hash and LSN under the same names; None otherwise."""
    return compiled.key if {*compiled.key, quote(HASH), quote(LSN)} <= state.columns else None


def _properties(definition: TableDefinition) -> dict[str, str]:
    """Return the properties of a new table."""
    properties = {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
        "delta.enableExpiredLogCleanup": "false",
        TIMESTAMPS: MICROSECONDS,
    }
    if definition.has_local_times:
        properties[NTZ_FEATURE] = "supported"
    return properties


def _listed(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
