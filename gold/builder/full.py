"""Building a whole document table.

A first build, or one with a changed definition, is one ``CREATE OR REPLACE TABLE … AS SELECT``, which swaps
data, schema and property in one commit. With the same definition, one MERGE also deletes documents that are
gone, so that unchanged documents are not written again.

Tables of a catalog are not replaced, as their owner, grants and history are theirs, and not every catalog
does it. Such a table is made once. A build by another definition takes that from its property first. Then it
writes rows, columns and mark in one commit. Then it names its own definition. Killed anywhere in between, the
table names none, so it is built as a whole again. A definition is never named before its rows are there.

A build on request (`smelt rebuild`) trusts nothing that the table says of itself: the content of a document
is compared, not the hash beside it. A table in which a document exists twice, which no MERGE can correct, is
replaced.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from deltasmelt.silver.fold.merge import prunable
from deltasmelt.silver.run.marks import Mark
from deltasmelt.silver.schema.ddl import MICROSECONDS, NTZ_FEATURE, TIMESTAMPS
from deltasmelt.silver.schema.fields import ddl_of
from deltasmelt.silver.spark.tuning import FINE_PAGES, mark_settings, settings
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.gold.builder.build import Build, Workplace
    from deltasmelt.gold.builder.gold_table import TableState
    from deltasmelt.gold.compile.query import Compiled

_LOGGER: Final = logging.getLogger("deltasmelt.gold")


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """What a document's table is built by.

    Attributes:
        digest: of all that decides what the table holds.
        has_local_times: a column of it, or one inside, is a timestamp without a time zone.
    """

    digest: str
    has_local_times: bool


def build_full(
    work: Workplace, build: Build, state: TableState | None, definition: TableDefinition, *, distrust: bool
) -> int:
    """Build all documents; returns the bytes of the largest, about.

    Args:
        work: of the document.
        build: what to build.
        state: of the table; None where there is none.
        definition: to build by.
        distrust: somebody may have written to the table.

    Raises:
        DefiniteError: a document has no room in memory.
        PySparkException: Spark refused the query, or a value could not be computed.
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
    with work.room.of(plan.needed), settings(work.spark, wanted):
        _write(
            work, build, state, definition, distrust=distrust, small=small, sort=plan.together and not small
        )
    return largest


def _write(
    work: Workplace,
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
    if state is not None and same and not (distrust and _holds_one_twice(work, compiled)):
        with settings(work.spark, {"spark.databricks.delta.merge.materializeSource": "auto"}):
            what = Merge(compiled, made, build.cut, state.position, distrust=distrust)
            merge(work.spark, work.table, what, build.run)
        return
    kept, join = _kept_lsn(work.table.address, compiled, state, f"{int(build.cut.commit_lsn)}L", same=same)
    # By the key few documents are found in few pages. Mostly they come in this order, and nothing is sorted;
    # large ones never are, which would take room that is not planned for.
    order = "" if not sort else f"\nSORT BY {', '.join(compiled.key)}"
    columns = ", ".join(f"d.{quote(name)}" for name in compiled.columns)
    rows = f"SELECT {columns}, {kept} AS {LSN}, d.{HASH} AS {HASH}\nFROM (\n{made}\n) AS d{join}{order}"
    mark = Mark(GOLD_APP, build.cut.commit_lsn, None if state is None else state.position)
    if work.lake.place.needs_session:
        _write_named(work, rows, mark, state, definition)
    else:
        _replace(work, rows, mark, definition)
    build.run.inserts = work.table.rows_written()
    build.run.changes = build.run.inserts
    if not small:
        _cluster(work, compiled)


def _replace(work: Workplace, rows: str, mark: Mark, definition: TableDefinition) -> None:
    """Replace the table at its location: rows, columns, property and mark in one commit."""
    properties = _listed({DEFINITION_PROPERTY: definition.digest, **_properties(definition)})
    statement = f"CREATE OR REPLACE TABLE {work.table.address} USING DELTA TBLPROPERTIES ({properties}) AS"
    _run(work, f"{statement}\n{rows}", needed=mark_settings(mark.app, mark.lsn, mark.position))


def _write_named(
    work: Workplace, rows: str, mark: Mark, state: TableState | None, definition: TableDefinition
) -> None:
    """Make a catalog's table, or write it again; why it may end anywhere, the module says."""
    table, spark = work.table, work.spark
    wanted = {one.name: ddl_of(one.dataType.jsonValue()) for one in spark.sql(rows).schema}
    reshapes = state is not None and table.types() != wanted
    if state is None:
        make_room(table.uri)
        columns = ", ".join(f"{quote(name)} {ddl}" for name, ddl in wanted.items())
        properties = _listed({DEFINITION_PROPERTY: "", **_properties(definition)})
        made = f"CREATE TABLE IF NOT EXISTS {table.address} ({columns})"
        _run(work, f"{made} USING DELTA TBLPROPERTIES ({properties})")
        table.state()  # is it this one?
    else:
        first = {NTZ_FEATURE: "supported"} if reshapes and definition.has_local_times else {}
        if state.definition not in (None, definition.digest):
            first[DEFINITION_PROPERTY] = ""
        _set(work, first)
    table.writer.write(spark, table.name, rows, mark, replaces=True, reshapes=reshapes)
    if state is None or state.definition != definition.digest:
        _set(work, {DEFINITION_PROPERTY: definition.digest})


def _set(work: Workplace, properties: Mapping[str, str]) -> None:
    if properties:
        _run(work, f"ALTER TABLE {work.table.address} SET TBLPROPERTIES ({_listed(properties)})")


def _run(work: Workplace, statement: str, *, needed: Mapping[str, str] | None = None) -> None:
    work.table.writer.run(work.spark, work.table.name, statement, needed=needed)


def _cluster(work: Workplace, compiled: Compiled) -> None:
    """Have maintenance put documents of near keys together: a build leaves them where their hash belongs.

    It is a commit of its own, without data. Without it the same rows are found, in more pages.
    """
    if not all(map(prunable, compiled.key_types)) or not work.table.has_statistics(compiled.key):
        return
    try:
        _run(work, f"ALTER TABLE {work.table.address} CLUSTER BY ({', '.join(compiled.key)})")
    except SPARK_ERRORS:
        _LOGGER.warning("%s could not be clustered by its key", work.table.address, exc_info=True)


def _holds_one_twice(work: Workplace, compiled: Compiled) -> bool:
    keys = ", ".join(compiled.key)
    twice = f"SELECT 1 FROM {work.table.address} GROUP BY {keys} HAVING count(*) > 1"
    return work.spark.sql(twice).first() is not None


def _kept_lsn(
    address: str, compiled: Compiled, state: TableState | None, lsn: str, *, same: bool
) -> tuple[str, str]:
    """The LSN of each document of a table that is replaced, and the join with the old table that gives it.

    What did not change keeps its LSN: by the new definition; or, of a table that somebody wrote to, what all
    its rows say. Where they say it since several LSNs, readers may have seen it only now.

    Args:
        address: of the table.
        compiled: the document.
        state: of the table.
        lsn: of the cut that is built, as SQL.
        same: the table was built by the same definition.
    """
    key = None if state is None else _key_columns(compiled, state)
    if state is None or key is None:
        return lsn, ""
    held = content_hash(compiled.columns) if same else HASH
    on = " AND ".join(f"o.k{i} = CAST(d.{name} AS STRING)" for i, name in enumerate(key))
    keys = ", ".join(f"CAST({name} AS STRING) AS k{i}" for i, name in enumerate(key))
    numbers = ", ".join(f"k{i}" for i in range(len(key)))
    before = f"SELECT {keys}, {held} AS h, {LSN} AS l FROM {address} VERSION AS OF {state.version}"
    once = (
        f"SELECT {numbers}, any_value(h) AS {HASH}, max(l) AS {LSN} FROM ({before})\n"
        f"GROUP BY {numbers} HAVING count(*) = count(h) AND count(DISTINCT h) = 1"
    )
    join = f"\nLEFT JOIN ({once}) AS o ON {on} AND o.{HASH} = d.{HASH}"
    return f"least(o.{LSN}, {lsn})", join  # of a document that is new: the second


def _key_columns(compiled: Compiled, state: TableState) -> tuple[str, ...] | None:
    """The key in the old table, where the old table has it under the same names."""
    return compiled.key if {*compiled.key, quote(HASH), quote(LSN)} <= state.columns else None


def _properties(definition: TableDefinition) -> dict[str, str]:
    """Properties that a table is made with."""
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
