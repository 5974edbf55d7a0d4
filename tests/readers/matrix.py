"""Each reader on each table of the lake from `tests.readers.tables`, as a Markdown table.

The module runs in a separate environment with only the readers, so it imports no deltasmelt code. Every row
and every value is compared with Spark's. WRONG marks a reader that returned different rows without an error.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa

from tests.readers.values import by_arrow, by_datafusion, compared

if TYPE_CHECKING:
    from collections.abc import Callable


def by_polars(path: str, since: int | None = None) -> pa.Table:
    """Read with Polars' own reader."""
    frame = pl.scan_delta(path)
    if since is not None:
        moment = pl.lit(since).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
        frame = frame.filter(pl.col("at") > moment)
    return frame.collect().to_arrow()


def by_duckdb(path: str, since: int | None = None) -> pa.Table:
    """Read with DuckDB's extension, which DuckDB downloads at the first use."""
    duckdb.sql("INSTALL delta; LOAD delta; SET TimeZone = 'UTC'")
    condition = "" if since is None else f" WHERE at > make_timestamptz({since})"
    return pa.table(duckdb.sql(f"SELECT * FROM delta_scan('{path}'){condition}").to_arrow_table())


READERS: dict[str, tuple[str, Callable[..., pa.Table]]] = {
    "delta-rs, DataFusion": ("deltalake", by_datafusion),
    "delta-rs, pyarrow": ("deltalake", by_arrow),
    "Polars": ("polars", by_polars),
    "DuckDB": ("duckdb", by_duckdb),
}


def outcome(reader: Callable[..., pa.Table], made: dict[str, Any]) -> str:
    """Return the text of one cell."""

    def without(path: str, since: int | None = None) -> pa.Table:
        table = reader(path, since)
        return table.drop_columns([name for name in made["left_out"] if name in table.column_names])

    try:
        differences = compared(without, made["path"], made["rows"], made["moments"])
    except duckdb.IOException as error:
        return "not tried" if "download" in str(error) else "refused"
    except Exception as error:  # noqa: BLE001 - each reader has its own
        sys.stderr.write(f"{made['path']}: {type(error).__name__}: {str(error)[:300]}" + "\n")
        return "refused"
    for difference in differences:
        sys.stderr.write(f"{made['path']}: {reader.__name__}: {difference[:300]}" + "\n")
    return "yes" if not differences else f"WRONG: {len(differences)} differences"


def main() -> int:
    """Print the matrix; return 1 if a reader returns different rows from Spark."""
    expected = json.loads((Path(sys.argv[1]) / "expected.json").read_text())
    heads = [f"{name} {version(package)}" for name, (package, _) in READERS.items()]
    sys.stdout.write(f"| table | rows | {' | '.join(heads)} |" + "\n")
    sys.stdout.write("| --- | --- |" + " --- |" * len(heads) + "\n")
    wrong = False
    for name, table in expected.items():
        cells = [outcome(reader, table) for _, reader in READERS.values()]
        wrong |= any(cell.startswith("WRONG") for cell in cells)
        sys.stdout.write(f"| {name} | {len(table['rows'])} | {' | '.join(cells)} |" + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
