"""Each reader on each table of a lake that `tests.readers.tables` made, as a table of Markdown.

It runs in an environment of its own, with the readers alone, so it imports nothing of ours. A reader that
gives other rows than Spark without a word is told as WRONG.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import polars as pl
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable


def by_datafusion(path: str) -> list[int]:
    """delta-rs with its own query engine."""
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    found: Any = query.execute("SELECT * FROM t").read_all()
    return [int(one.as_py()) for one in found.column("id")]


def by_arrow(path: str) -> list[int]:
    """delta-rs into pyarrow, and so pandas."""
    return list(deltalake.DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def by_arrow_filtered(path: str) -> list[int]:
    """The same with a condition, which is tested against the log's statistics first."""
    dataset = deltalake.DeltaTable(path).to_pyarrow_dataset()
    return list(dataset.to_table(filter=pc.field("_commit_lsn") >= 0)["id"].to_pylist())


def by_polars(path: str) -> list[int]:
    """Polars' own reader."""
    return list(pl.scan_delta(path).collect()["id"].to_list())


def by_duckdb(path: str) -> list[int]:
    """DuckDB's extension, which it downloads at the first use."""
    duckdb.sql("INSTALL delta; LOAD delta")
    return [row[0] for row in duckdb.sql(f"SELECT id FROM delta_scan('{path}')").fetchall()]


READERS: dict[str, tuple[str, Callable[[str], list[int]]]] = {
    "delta-rs, DataFusion": ("deltalake", by_datafusion),
    "delta-rs, pyarrow": ("deltalake", by_arrow),
    "the same, filtered": ("deltalake", by_arrow_filtered),
    "Polars": ("polars", by_polars),
    "DuckDB": ("duckdb", by_duckdb),
}


def outcome(reader: Callable[[str], list[int]], path: str, ids: list[int]) -> str:
    """One cell."""
    try:
        found = sorted(reader(path))
    except duckdb.IOException as error:
        return "not tried" if "download" in str(error) else "refused"
    except Exception as error:  # noqa: BLE001 - each reader has its own
        sys.stderr.write(f"{path}: {type(error).__name__}: {str(error)[:300]}" + "\n")
        return "refused"
    return "yes" if found == ids else f"WRONG: {len(found)} of {len(ids)} rows"


def main() -> int:
    """Print the matrix."""
    expected = json.loads((Path(sys.argv[1]) / "expected.json").read_text())
    heads = [f"{name} {version(package)}" for name, (package, _) in READERS.items()]
    sys.stdout.write(f"| table | {' | '.join(heads)} |" + "\n")
    sys.stdout.write("| --- |" + " --- |" * len(heads) + "\n")
    for name, made in expected.items():
        cells = [outcome(reader, made["path"], made["ids"]) for _, reader in READERS.values()]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |" + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
