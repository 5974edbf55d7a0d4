"""The MERGE of documents that are made into their table: one commit that reads and writes what it must."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake import delta
from gold.compile.clauses import as_json
from gold.build.spark_settings import GOLD_APP, HASH, LSN
from gold.incremental.key_bitmap import MOST_KEYS, bitmap, sieve
from silver.fold.merge import prunable
from silver.run.sessions import mark
from silver.run.spark_settings import settings
from silver.sql import literal, quote
from silver.run.key_ranges import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut, Run
    from bronze.lsn import Lsn
    from gold.compile.query import Compiled

ROOT: Final = "_deltasmelt_root"
"""Columns of a MERGE's source that hold the root's key, whether the document is there or gone."""

_RANGES_ABOVE: Final = 4
"""Data files of a gold table from which looking for the range of affected keys pays."""

_RANGE_HOLDS: Final = 0.75
"""Share of a gold table's rows from which a range of keys that holds them is left out."""

_SMALL_BYTES: Final = 32_000_000
_SMALL_ROWS: Final = 50_000
"""Size of all silver tables of a document, or of its own, up to which reads are planned for little data."""


class Merging:
    """MERGEs into one document's table."""

    def __init__(self, spark: SparkSession, address: str, uri: str) -> None:
        self._spark = spark
        self._address = address
        self._uri = uri

    def merge(
        self,
        compiled: Compiled,
        source: str,
        cut: Cut,
        position: Lsn | None,
        run: Run,
        *,
        some: bool = False,
        known: bool = False,
        distrust: bool = False,
    ) -> None:
        """One MERGE.

        Args:
            compiled: the document.
            source: its rows.
            cut: what they are of.
            position: mark of the table.
            run: gets the counts.
            some: the source is of the affected roots, and a row without content is a document to delete.
                Otherwise it is of all, and what is not in it is.
            known: no document is new, and the source is small. Then it is sent to the target's rows, for
                which Spark would shuffle and sort them otherwise.
            distrust: somebody may have written to the table: its documents are compared, not their hashes.
        """
        if some:
            same = [f"t.{key} = s.{ROOT}{i}" for i, key in enumerate(compiled.key)]
            on = " AND ".join(same + self._on_target(compiled, source, run.changes))
        else:
            on = " AND ".join(f"t.{key} = s.{key}" for key in compiled.key)
        if known:
            source = f"SELECT /*+ BROADCAST(f) */ * FROM (\n{source}\n) AS f"
        values = {
            **{quote(name): f"s.{quote(name)}" for name in compiled.columns},
            LSN: f"{int(cut.commit_lsn)}L",
            HASH: f"s.{HASH}",
        }
        sets = ", ".join(f"{name} = {value}" for name, value in values.items())
        columns, inserted = ", ".join(values), ", ".join(values.values())
        differs = f"t.{HASH} <> s.{HASH}"
        if distrust:
            held = f"sha2({as_json(quote('t', name) for name in compiled.columns)}, 256)"
            late = f"NOT coalesce(t.{LSN} <= {int(cut.commit_lsn)}L, false)"
            differs = f"(NOT t.{HASH} <=> s.{HASH} OR {held} <> s.{HASH} OR {late})"
        came = f"WHEN NOT MATCHED AND s.{HASH} IS NOT NULL THEN INSERT ({columns}) VALUES ({inserted})"
        # Spark's grammar wants the clauses in this order: matched, not matched, not matched by source.
        clauses = [
            *([f"WHEN MATCHED AND s.{HASH} IS NULL THEN DELETE"] if some else []),
            f"WHEN MATCHED AND {differs} THEN UPDATE SET {sets}",
            *([] if known else [came]),
            *([] if some else ["WHEN NOT MATCHED BY SOURCE THEN DELETE"]),
        ]
        statement = [f"MERGE INTO {self._address} AS t", "USING (", source, ") AS s", f"ON {on}", *clauses]
        with settings(self._spark, mark(GOLD_APP, cut.commit_lsn, position)):
            result = self._spark.sql("\n".join(statement)).first()
        if result is not None:
            run.inserts, run.updates = int(result["num_inserted_rows"]), int(result["num_updated_rows"])
            run.deletes = int(result["num_deleted_rows"])
        if run.mode == "full":
            run.changes = run.inserts + run.updates + run.deletes

    def _on_target(self, compiled: Compiled, source: str, roots: int) -> list[str]:
        """Conditions on the target alone: by them MERGE skips files, and rows before they are joined.

        Args:
            compiled: the document.
            source: its rows.
            roots: number of affected roots.
        """
        files = self.files()
        found = []
        if len(files) >= _RANGES_ABOVE:
            found = self._ranges(compiled.key, compiled.key_types, source, files)
        if roots <= MOST_KEYS and not is_little([size_of(files)]):
            keys = [f"k{i}" for i in range(len(compiled.key))]
            row = self._spark.sql(bitmap(keys, "affected", roots)).collect()[0]
            found.append(sieve([f"t.{key}" for key in compiled.key], row["bitmap"], roots))
        return found

    def files(self) -> pa.Table:
        """Files of the gold table with their statistics."""
        table = delta.open_existing(self._uri)
        return pa.table(table.get_add_actions(flatten=True))

    def _ranges(self, key: Sequence[str], types: Sequence[str], source: str, files: pa.Table) -> list[str]:
        """Ranges of the key as literals, where they leave out files.

        Where they do not, the statement stays the same text, and so does the code that Spark generates.
        """
        found = {i: ddl for i, ddl in enumerate(types) if prunable(ddl)}
        if not found:
            return []
        ends = (f"string(min({ROOT}{i})) AS low{i}, string(max({ROOT}{i})) AS high{i}" for i in found)
        row = self._spark.sql(f"SELECT {', '.join(ends)} FROM (\n{source}\n)").first()
        if row is None:
            return []
        return [
            f"t.{key[i]} BETWEEN CAST({literal(row[f'low{i}'])} AS {ddl}) "
            f"AND CAST({literal(row[f'high{i}'])} AS {ddl})"
            for i, ddl in found.items()
            if share_of(files, key[i].replace("`", ""), row[f"low{i}"], row[f"high{i}"]) < _RANGE_HOLDS
        ]


def size_of(files: pa.Table) -> tuple[int, int]:
    """Rows and bytes of a table's files."""
    return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0


def is_little(sizes: Iterable[tuple[int, int]]) -> bool:
    """Whether tables of these rows and bytes are read faster than code for reading them is compiled."""
    known = list(sizes)
    return sum(rows for rows, _ in known) <= _SMALL_ROWS and sum(size for _, size in known) <= _SMALL_BYTES
