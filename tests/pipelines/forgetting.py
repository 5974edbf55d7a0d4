"""A lake of a real server with a subject to forget, and a search of all files for the subject's values."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_table import ControlTable
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.context import open_gold
from deltasmelt.pipelines.quality.results import RESULTS_SCHEMA, RESULTS_TABLE
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.cycle import Silver
from tests.bronze.replaying import read_all
from tests.pipelines.in_process import smelt_here
from tests.silver.stored import rows_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from subprocess import CompletedProcess

    from pyspark.sql import SparkSession

FIRST_KEY, KEY = 123454321, 987656789
SECRETS: Final = (
    "zebulon.quagga@nowhere.example",
    'Zebulón "Zeb" Quagga',
    "quagga-biography",
    "quagga-note-before",
    "quagga-note-after",
)
WORD: Final = "incremental"
"""A value that stands in `control.runs` for another reason."""
TABLES: Final = ("customers", "customers__history", "orders")


class Shop:
    """A database with two tables, and its lake with history and two documents."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str, *, deletes: str) -> None:
        self.spark, self.folder, self.dsn = spark, folder, dsn
        self.file = folder / "pipeline.yml"
        name = "forget_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            f"lake: {{path: './lake'}}\nsilver: {{history: [public.customers], deletes: {deletes}}}\n"
            "gold: {documents: ['d_*.yml']}\n"
        )
        (folder / "d_customer.yml").write_text(
            "document: customer\nroot: public.customers\nfields:\n  - id\n  - email\n  - bio\n"
            "  - orders: {many: public.orders, on: {customer_id: id}, fields: [id]}\n"
        )
        (folder / "d_order.yml").write_text(
            "document: order\nroot: public.orders\nfields:\n  - id\n"
            "  - buyer: {one: public.customers, on: {id: customer_id}, fields: [name, note]}\n"
        )
        # reads no customer
        (folder / "d_plain.yml").write_text("document: plain\nroot: public.orders\nfields: [id]\n")
        self.pipeline = load_pipeline(self.file)
        self.lake = self.pipeline.lake_address()
        self.control = ControlTables(self.lake)

    def end_history(self) -> None:
        """Let the pipeline file name no history; the table of the history stays."""
        self.file.write_text(self.file.read_text().replace("history: [public.customers], ", ""))
        self.pipeline = load_pipeline(self.file)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def catch_up(self, *statements: str) -> None:
        """Run statements, and carry all layers past them."""
        self.execute(*statements)
        read_all(self.pipeline.source, str(self.lake.path))
        silver = Silver(self.spark, self.lake, self.pipeline.silver, self.control)
        silver.cycle()
        silver.close()
        open_gold(self.spark, self.pipeline, self.control).cycle()

    def live(self) -> None:
        """Let the subject live, change, change its key and die, between other rows."""
        email, name, bio, before, after = (secret.replace("'", "''") for secret in SECRETS)
        self.catch_up(
            "CREATE TABLE customers "
            "(id int PRIMARY KEY, email text, name text, bio text, note text, role text)",
            "ALTER TABLE customers ALTER COLUMN bio SET STORAGE EXTERNAL",
            "CREATE TABLE orders (id int PRIMARY KEY, customer_id int)",
            "INSERT INTO customers SELECT n, n || '@shop.example', 'n' || n, 'b', 'plain', 'buyer' "
            "FROM generate_series(1, 9) n",
            f"INSERT INTO customers VALUES "
            f"({FIRST_KEY}, '{email}', '{name}', repeat('{bio} ', 500), '{before}', '{WORD}')",
            f"INSERT INTO orders VALUES (1, {FIRST_KEY}), (2, 2)",
        )
        self.catch_up(
            f"UPDATE customers SET note = '{after}' WHERE id = {FIRST_KEY}",
            "UPDATE customers SET note = 'changed' WHERE id = 3",
            f"BEGIN; UPDATE orders SET customer_id = {KEY} WHERE id = 1; "
            f"UPDATE customers SET id = {KEY} WHERE id = {FIRST_KEY}; COMMIT",
            "INSERT INTO customers VALUES (10, 'stranger@shop.example', 'stranger', 's', 's')",
        )
        self.catch_up(
            "BEGIN; UPDATE orders SET customer_id = 2 WHERE id = 1; "
            f"DELETE FROM customers WHERE id = {KEY}; "
            "UPDATE customers SET note = 'again' WHERE id = 4; COMMIT",
        )
        message = f"a value of {SECRETS[0]} (row {KEY}) was refused"
        self.control.open_error(OpenError("table", "public.customers", "value-missing", message))
        self.control.close_errors("table", "public.customers")
        row = dict.fromkeys(RESULTS_SCHEMA.names) | {
            "run_id": "r", "run_at": datetime.now(UTC), "layer": "silver", "table_name": "customers",
            "expectation": "expect_column_values_to_be_in_set", "observed": f'"{SECRETS[0]}"',
            "partial_unexpected": [SECRETS[3], str(KEY)],
        }  # fmt: skip
        place = self.lake.uri("quality", RESULTS_TABLE)
        ControlTable(place, RESULTS_SCHEMA, "One row per expectation and run").append([row])

    def smelt(self, command: str, *more: str) -> CompletedProcess[str]:
        process = smelt_here(command, self.file, *more, folder=self.folder)
        assert "Traceback" not in process.stdout + process.stderr, process.stderr
        return process

    def forget(self, *more: str, keys: Iterable[int] = (FIRST_KEY, KEY)) -> CompletedProcess[str]:
        named = [text for key in keys for text in ("--key", str(key))]
        return self.smelt("forget", "public.customers", *named, *more)

    def files(self) -> dict[str, bytes]:
        root = Path(str(self.lake.path))
        paths = (path for path in sorted(root.rglob("*")) if path.is_file() and ".locks" not in path.parts)
        return {str(path.relative_to(root)): path.read_bytes() for path in paths}

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return silver's rows at the newest cut."""
        cut = self.control.latest_cut("silver")
        assert cut is not None
        found = {name: rows_at(self.spark, self.lake, name, cut.tables[name]) for name in TABLES}
        return {name: sorted((tuple(row.values()) for row in rows), key=repr) for name, rows in found.items()}


def holders(files: dict[str, bytes], root: Path, texts: Iterable[str] = SECRETS) -> set[str]:
    """Return the files that hold a text, in their bytes or in their values."""
    wanted = list(texts)
    in_json = [json.dumps(text, ensure_ascii=plain)[1:-1] for text in wanted for plain in (True, False)]
    spelt = [text.encode() for text in (*wanted, *in_json)]
    found = set()
    for path, data in files.items():
        if any(spelling in data for spelling in spelt):
            found.add(path)
        elif path.endswith(".parquet"):
            rows = repr(pq.read_table(root / path, partitioning=None).to_pylist())
            if any(text in rows or repr(text)[1:-1] in rows for text in wanted):
                found.add(path)
    return found
