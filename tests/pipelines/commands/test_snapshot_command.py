"""`smelt snapshot`: tables copied again, in parallel with a running reader and without a reader."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from tests.bronze.replaying import bronze_rows, read_snapshot
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command
from tests.pipelines.test_cli import one_message, smelt

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lsn import Lsn

pytestmark = pytest.mark.postgres

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE order_lines (id int PRIMARY KEY);
CREATE TABLE logs (line text);
CREATE VIEW recent AS SELECT * FROM orders;
INSERT INTO orders VALUES (1, 'one'), (2, 'two');
INSERT INTO order_lines VALUES (1)
"""


class Shop:
    """A database with tables, and its pipeline file."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self.lake = folder / "lake"
        self.file = folder / "pipeline.yml"
        name = "snap_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            "lake: {path: ./lake}\nbronze: {flush_interval: 50ms}\n"
        )
        self.execute(*TABLES.split(";"))

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def taken(self, table: str) -> Lsn | None:
        return read_snapshot(Lake(str(self.lake)), TableName("public", table))

    def copies(self, table: str) -> list[list[Any]]:
        """Return the first column of each complete snapshot of a table."""
        rows = [row for row in bronze_rows(str(self.lake)) if row["table_name"] == table]
        ends = [row["commit_lsn"] for row in rows if row["op"] == "snapshot_end"]
        return [
            sorted(row["new"][0] for row in rows if row["op"] == "snapshot" and row["commit_lsn"] == lsn)
            for lsn in ends
        ]


@pytest.fixture
def shop(tmp_path: Path, database: str) -> Shop:
    return Shop(tmp_path, database)


def test_without_a_reader_it_takes_tables_itself(shop: Shop, tmp_path: Path) -> None:
    """Without waiting, the next reader takes the tables."""
    first = smelt("snapshot", shop.file, "public.order*", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert shop.copies("orders") == [["1", "2"]]
    shop.execute("DELETE FROM orders WHERE id = 1")
    process = smelt_here("snapshot", shop.file, "public.orders", folder=tmp_path)
    assert process.returncode == 0, process.stderr
    assert shop.copies("orders") == [["1", "2"], ["2"]]
    assert shop.copies("order_lines") == [["1"]]
    assert "snapshots complete: public.orders" in process.stderr
    process = smelt_here("snapshot", shop.file, "public.orders", "--no-wait", folder=tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(shop.copies("orders")) == 2
    smelt_here("bronze", shop.file, "--until-caught-up", folder=tmp_path)
    assert len(shop.copies("orders")) == 3


def test_beside_a_reader_it_waits_for_snapshots(shop: Shop, tmp_path: Path) -> None:
    with Command("bronze", shop.file, folder=tmp_path) as reader:
        wait_for(lambda: shop.lake.exists() and shop.taken("orders") and shop.taken("order_lines"), 60)
        before = shop.taken("orders")
        shop.execute("INSERT INTO orders VALUES (3, 'three')")
        process = smelt_here("snapshot", shop.file, "public.orders", folder=tmp_path)
        assert process.returncode == 0, process.stderr
        after = shop.taken("orders")
        assert before is not None
        assert after is not None
        assert after > before
        assert "the running reader" in process.stderr
        shop.execute("INSERT INTO orders VALUES (4, 'four')")
        wait_for(lambda: any("4" in (row["new"] or []) for row in bronze_rows(str(shop.lake))), 30)
        reader.process.send_signal(signal.SIGINT)
        assert reader.wait(60) == 130
    assert shop.copies("orders") == [["1", "2"], ["1", "2", "3"]]
    assert shop.copies("order_lines") == [["1"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("public.ordres", "did you mean public.orders?"),
        ("orders", "did you mean public.orders?"),
        ("public.recent", "a view stores no rows"),
        ("elsewhere.x*", "schema.table or a pattern"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(shop: Shop, tmp_path: Path, name: str, message: str) -> None:
    assert message in one_message(smelt_here("snapshot", shop.file, "public.orders", name, folder=tmp_path))
    assert not shop.lake.exists()


def test_no_name_is_no_request_for_everything(shop: Shop, tmp_path: Path) -> None:
    assert "or --all" in one_message(smelt_here("snapshot", shop.file, folder=tmp_path))
    assert not shop.lake.exists()


def test_all_takes_what_it_can_and_heals(shop: Shop, tmp_path: Path) -> None:
    """A reader's refusal of the lost slot, and the stream after the remedy: `tests.torture.test_slot`."""
    process = smelt_here("snapshot", shop.file, "--all", folder=tmp_path)
    assert process.returncode == 3, process.stderr
    assert "public.logs" in process.stderr.splitlines()[-2], "it has no key"
    assert (len(shop.copies("orders")), len(shop.copies("order_lines"))) == (1, 1)
    slot = "snap_" + str(conninfo_to_dict(shop.dsn)["dbname"])
    shop.execute(
        "DELETE FROM orders WHERE id = 1",
        f"SELECT pg_drop_replication_slot('{slot}')",
    )
    healed = smelt_here("snapshot", shop.file, "--all", folder=tmp_path)
    assert healed.returncode == 3, healed.stderr
    assert "the stream lacks the changes" in healed.stderr
    assert shop.copies("orders")[-1] == ["2"]


def test_table_that_left_its_rule_is_stopped(shop: Shop, tmp_path: Path) -> None:
    """The reader would never copy the table, so the command must not wait for a copy."""
    text = shop.file.read_text()
    shop.file.write_text(
        text.replace(
            "}\nlake", ", hash_key: the key of the hashes, columns: {public.orders: {note: hash}}}\nlake"
        )
    )
    process = smelt_here("snapshot", shop.file, "public.orders", folder=tmp_path)
    assert process.returncode == 0, process.stderr
    shop.execute("ALTER TABLE orders RENAME TO sales")
    assert smelt_here("bronze", shop.file, "--until-caught-up", folder=tmp_path).returncode == 3
    process = smelt_here("snapshot", shop.file, "public.sales", folder=tmp_path)
    assert process.returncode == 3, process.stderr
    assert "public.sales" in process.stderr.splitlines()[-2]
    assert "requested snapshots of no table" in process.stderr
