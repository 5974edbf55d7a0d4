"""MERGE finished documents into their table: one commit that reads and writes only the rows it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.builder.gold_table import is_small, size_of
from deltasmelt.gold.builder.spark_settings import GOLD_APP, HASH, LSN
from deltasmelt.gold.incremental.key_lists import LOOKED_UP, MOST_KEYS, bitmap, in_bitmap
from deltasmelt.silver.fold.write_sql import prunable
from deltasmelt.silver.run.key_ranges import key_ranges, share_of
from deltasmelt.silver.run.marks import Mark, writer_of
from deltasmelt.silver.spark.tuning import FINE_PAGES
from deltasmelt.silver.sql import as_json, literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.builder.gold_table import GoldTable
    from deltasmelt.gold.compile.query import Compiled

ROOT: Final = "_deltasmelt_root"
"""Prefix of source columns with the root's key; set for a present document and for a deleted document."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The input of one MERGE.

    Attributes:
        source: query for the rows to merge.
        cut: the silver cut of the source's rows.
        position: the mark that the table has.
        restricted: the source has the affected roots, and a row without content is a document to delete.
            Otherwise the source has all documents, and MERGE deletes every document that the source lacks.
        no_inserts: no document is new, and the source is small.
        distrust: another writer may have changed the table: MERGE compares documents, not their hashes.
        listed: literals of the affected roots' keys (`gold.incremental.key_lists`), if the roots are few.
    """

    compiled: Compiled
    source: str
    cut: Cut
    position: Lsn | None
    restricted: bool = False
    no_inserts: bool = False
    distrust: bool = False
    listed: Mapping[str, str] = field(default_factory=dict)


def merge(spark: SparkSession, table: GoldTable, inputs: Merge, run: Run) -> None:
    """Build and run the MERGE into a document's table; `run` gets the counts."""
    mark_writer = writer_of(spark, table.uri, Mark(GOLD_APP, inputs.cut.commit_lsn, inputs.position))
    on = [*mark_writer.conditions(f"t.{LSN}"), _on(spark, table, inputs, run.changes)]
    statement = "\n".join(
        [
            f"MERGE INTO {table.address} AS t",
            "USING (",
            # Without WHEN NOT MATCHED Spark broadcasts the source to the target's rows; otherwise Spark would
            # shuffle and sort the target.
            f"SELECT /*+ BROADCAST(f) */ * FROM (\n{inputs.source}\n) AS f"
            if inputs.no_inserts
            else inputs.source,
            ") AS s",
            f"ON {' AND '.join(on)}",
            *_clauses(inputs),
        ]
    )
    plan = {**FINE_PAGES, **(LOOKED_UP if inputs.listed else {})}
    for result in table.writer.run(spark, table.name, statement, plan=plan, needed=mark_writer.settings):
        run.inserts, run.updates = int(result["num_inserted_rows"]), int(result["num_updated_rows"])
        run.deletes = int(result["num_deleted_rows"])
    if run.mode == "full":
        run.changes = run.inserts + run.updates + run.deletes


def _on(spark: SparkSession, table: GoldTable, inputs: Merge, roots: int) -> str:
    key = inputs.compiled.key
    if not inputs.restricted:
        return " AND ".join(f"t.{one} = s.{one}" for one in key)
    same = [f"t.{one} = s.{ROOT}{i}" for i, one in enumerate(key)]
    return " AND ".join(same + _on_target(spark, table, inputs, roots))


def _clauses(inputs: Merge) -> list[str]:
    """Return the clauses of the MERGE, in the order of Spark's grammar."""
    columns = inputs.compiled.columns
    values = {
        **{quote(name): f"s.{quote(name)}" for name in columns},
        LSN: f"{int(inputs.cut.commit_lsn)}L",
        HASH: f"s.{HASH}",
    }
    sets = ", ".join(f"{name} = {value}" for name, value in values.items())
    listed, inserted = ", ".join(values), ", ".join(values.values())
    differs = f"t.{HASH} <> s.{HASH}"
    if inputs.distrust:
        held = f"sha2({as_json(quote('t', name) for name in columns)}, 256)"
        late = f"NOT coalesce(t.{LSN} <= {int(inputs.cut.commit_lsn)}L, false)"
        differs = f"(NOT t.{HASH} <=> s.{HASH} OR {held} <> s.{HASH} OR {late})"
    insert = f"WHEN NOT MATCHED AND s.{HASH} IS NOT NULL THEN INSERT ({listed}) VALUES ({inserted})"
    return [
        *([f"WHEN MATCHED AND s.{HASH} IS NULL THEN DELETE"] if inputs.restricted else []),
        f"WHEN MATCHED AND {differs} THEN UPDATE SET {sets}",
        *([] if inputs.no_inserts else [insert]),
        *([] if inputs.restricted else ["WHEN NOT MATCHED BY SOURCE THEN DELETE"]),
    ]


def _on_target(spark: SparkSession, table: GoldTable, inputs: Merge, roots: int) -> list[str]:
    """Return conditions on the target alone, by which MERGE skips files, and rows before the join.

    `roots` is the number of rows in the session's view ``affected``.
    """
    files, key = table.files(), inputs.compiled.key
    small = is_small([size_of(files)])
    found: list[str] = []
    if not small:
        found = [
            f"t.{one} IN ({inputs.listed[f'k{i}']})" for i, one in enumerate(key) if f"k{i}" in inputs.listed
        ]
    if len(found) == len(key):
        return found
    found += _ranges(spark, inputs, files, table.file_count())
    if roots <= MOST_KEYS and not small:
        row = spark.sql(bitmap([f"k{i}" for i in range(len(key))], "affected", roots)).collect()[0]
        found.append(in_bitmap([f"t.{one}" for one in key], row["bitmap"], roots))
    return found


def _ranges(spark: SparkSession, inputs: Merge, files: pa.Table, number: int) -> list[str]:
    """Return ranges of the key as literals, if the ranges skip files (`silver.run.key_ranges`)."""
    key = inputs.compiled.key
    types = {i: ddl for i, ddl in enumerate(inputs.compiled.key_types) if prunable(ddl)}
    found = key_ranges(
        spark,
        inputs.source,
        {i: f"{ROOT}{i}" for i in types},
        files=number,
        share=lambda i, low, high: share_of(files, key[i].replace("`", ""), low, high),
    )
    return [
        f"t.{key[i]} BETWEEN CAST({literal(low)} AS {types[i]}) AND CAST({literal(high)} AS {types[i]})"
        for i, (low, high) in found.items()
    ]
