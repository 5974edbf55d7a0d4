"""`smelt forget`: the subject is in no file afterwards, and the pipeline goes on; kills at each step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.erasures import Erasures
from deltasmelt.pipelines.commands import erasing, forget
from deltasmelt.pipelines.commands.erasing import Erasure
from deltasmelt.pipelines.commands.forget import run_forget
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.schema.ddl import CHECKPOINTS
from tests.pipelines.forgetting import FIRST_KEY, KEY, TABLES, Shop, holders
from tests.silver.killed import EndedError, end, ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SECRET = "a-key-of-the-digests-outside-of-the-lake"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forget.VARIABLE, SECRET)


def require_gone(shop: Shop) -> None:
    """Check that no file holds the subject, and that silver and gold go on without a full build."""
    root = Path(str(shop.lake.path))
    files = shop.files()
    assert holders(files, root) == set()
    # Rows of orders name the key; only a call for orders erases them.
    of_customers = ("silver/customers", "gold/", "control/", "quality/")
    own = {path: data for path, data in files.items() if path.startswith(of_customers)}
    assert holders(own, root, [str(KEY), str(FIRST_KEY)]) == set()
    assert [row for row in shop.rows()["customers"] if "stranger" in row]
    shop.catch_up(
        "INSERT INTO customers VALUES (50, 'new@shop.example', 'new', 'n', 'n')",
        "INSERT INTO orders VALUES (50, 50)",
        "UPDATE customers SET note = 'moved on' WHERE id = 5",
        f"INSERT INTO customers VALUES ({KEY}, 'heir@shop.example', 'heir', 'h', 'h')",
    )
    modes = {run.name: (run.mode, run.reason) for run in reversed(shop.control.runs("gold"))}
    assert {mode for mode, _ in modes.values()} == {"incremental"}, modes
    assert shop.control.open_errors() == []


def require_whole(shop: Shop) -> None:
    """Check that a rebuild from bronze gives the same rows, and that silver equals the source."""
    before = shop.rows()
    rebuilt = shop.smelt("rebuild", "silver")
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert shop.rows() == before
    verified = shop.smelt("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    fresh = shop.smelt("preview", "customer", "--key", "50", "--fresh")
    assert "new@shop.example" in fresh.stdout


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_forgotten_subject_is_in_no_file(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """With soft deletes, history, documents, recorded texts and a key that changed."""
    shop = Shop(spark, tmp_path, database, deletes="soft")
    shop.live()
    root = Path(str(shop.lake.path))
    files = shop.files()
    held = {path.rpartition("/")[0] for path in holders(files, root)}
    assert {"bronze/changes", "silver/customers", "silver/customers__history", "gold/customer", "gold/order",
            "control/errors", "quality/results"} <= held  # fmt: skip

    moved = shop.forget(keys=[KEY])
    assert f"({FIRST_KEY})" in moved.stderr
    assert "[erasure-moved]" in moved.stderr
    planned = shop.forget("--dry-run", "--output", "json")
    assert planned.returncode == 0, planned.stderr
    plan = [json.loads(line) for line in planned.stdout.splitlines()]
    rows = {name: sum(entry["rows"] for entry in plan if entry["table"] == name) for name in
            ("bronze.changes", "silver.customers", "silver.customers__history")}  # fmt: skip
    # insert or snapshot, two updates, delete; a deleted row of each key; three versions
    assert rows == {"bronze.changes": 4, "silver.customers": 2, "silver.customers__history": 3}
    assert {entry["table"] for entry in plan} >= {"gold.plain", "control.runs", "quality.results"}
    assert plan[-1]["cut_records"] > 0
    assert plan[-1]["bytes_to_search"] > 0
    assert shop.files() == files

    done = shop.forget("--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert counts["bronze_rows"] == 4
    assert counts["silver_rows"] == {"customers": 2, "customers__history": 3}
    assert (counts["keys"], counts["values_in_names"]) == (2, 1)
    # Older cuts keep the table that nobody rewrote.
    assert {"orders"} in [set(cut.tables) for cut in shop.control.cuts("silver")]
    recorded = Erasures(shop.lake)
    assert recorded.unfinished() == []
    # Strangers keep their rows, in silver and in history.
    assert {row[1] for row in shop.rows()["customers"]} >= {"stranger@shop.example", "4@shop.example"}
    require_gone(shop)
    require_whole(shop)
    again = shop.forget()
    assert "[erasure-alive]" in again.stderr
    assert again.returncode == 1


KEYS = [str(KEY), str(FIRST_KEY)]


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(1200)
def test_kill_at_each_step_is_finished_later(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """Each call is killed after some steps more; between two calls the stages run.

    Kills after the steps without Spark: `test_erasing`, `test_sweeping`.
    """
    shop = Shop(spark, tmp_path, database, deletes="hard")
    shop.live()
    rows = shop.rows()
    interval = checkpoints_of(shop)
    with ending("after DELETE 1", end), pytest.raises(EndedError):
        run_forget(shop.pipeline, "public.customers", KEYS, Output())
    for killed in (Erasure.purge, Erasure.move_cuts, Erasure.erase_records, Erasure.prove):
        with patch.object(erasing, "STEPS", killed_after(killed)), pytest.raises(EndedError):
            run_forget(shop.pipeline, "public.customers", KEYS, Output())
        assert {name: [row for row in found if KEY not in row and FIRST_KEY not in row]
                for name, found in shop.rows().items()} == {
            name: [row for row in found if KEY not in row and FIRST_KEY not in row]
            for name, found in rows.items()
        }  # fmt: skip
        assert len(Erasures(shop.lake).unfinished()) == 1
        if killed is Erasure.purge:
            assert "erasure-unfinished" in {finding.code for finding in run_check(shop.pipeline)}
            assert [error.code for error in read_status(shop.pipeline).errors] == ["erasure-unfinished"]
        if killed in {Erasure.purge, Erasure.erase_records}:
            shop.catch_up(f"UPDATE customers SET note = '{killed.__name__}' WHERE id = 9")
            rows = shop.rows()
    done = shop.forget()
    assert done.returncode == 0, done.stderr
    assert Erasures(shop.lake).unfinished() == []
    assert "[erasure-key]" in shop.forget().stderr  # a key without rows is perhaps mistyped
    assert checkpoints_of(shop) == interval
    require_gone(shop)


def checkpoints_of(shop: Shop) -> list[str | None]:
    """Return the number of versions between two checkpoints of each table in silver."""
    tables = [open_existing(shop.lake.uri("silver", name)) for name in TABLES]
    return [table.metadata().configuration.get(CHECKPOINTS) for table in tables]


def killed_after(
    killed: Callable[[Erasure], None],
) -> tuple[tuple[str, Callable[[Erasure], None]], ...]:
    """Return the steps, of which one is killed right after its work."""

    def kill(erasure: Erasure) -> None:
        killed(erasure)
        raise EndedError

    return tuple((text, kill if step is killed else step) for text, step in erasing.STEPS)


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_refusals_change_nothing(spark: SparkSession, database: str, tmp_path: Path) -> None:
    """Afterwards a subject leaves a history that the pipeline file no longer names."""
    shop = Shop(spark, tmp_path, database, deletes="hard")
    shop.catch_up(
        "CREATE TABLE customers (id int PRIMARY KEY, email text, name text, bio text, note text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int)",
        "INSERT INTO customers VALUES (1, 'a', 'a', 'a', 'a'), (2, 'b', 'b', 'b', 'b')",
        "INSERT INTO customers VALUES (3, 'c', 'c', 'c', 'c')",
    )
    shop.catch_up("UPDATE customers SET id = 33 WHERE id = 3")
    shop.execute("DELETE FROM customers WHERE id = 2")
    files = shop.files()
    refused = {
        ("1",): "erasure-alive",
        ("2",): "erasure-alive",
        ("3",): "erasure-moved",
        ("3", "33"): "erasure-alive",
        ("777", "1"): "erasure-alive",
        ("2", "777"): "erasure-key",
        ("777",): "erasure-key",
        ("word",): "erasure-key",
    }
    for key, code in refused.items():
        with pytest.raises((DefiniteError, ConfigurationError)) as raised:
            run_forget(shop.pipeline, "customers", key, Output())
        assert raised.value.code == code, key
    with (
        lake_lock(shop.lake, ("bronze",), command="smelt run"),
        pytest.raises(DefiniteError, match="smelt run") as raised,
    ):
        run_forget(shop.pipeline, "customers", ["2"], Output())
    assert raised.value.code == "already-running"
    read = shop.files()
    assert read == files

    shop.catch_up(
        "INSERT INTO customers VALUES (4, 'd', 'd', 'd', 'd')", "DELETE FROM customers WHERE id = 33"
    )
    shop.end_history()
    shop.catch_up("UPDATE customers SET email = 'e' WHERE id = 4")  # the history lacks this change
    run_forget(shop.pipeline, "customers", ["2"], Output())
    stored = open_existing(shop.lake.uri("silver", "customers__history"))
    rows = [row for path in stored.paths() for row in stored.read_file(path).to_pylist()]
    assert {row["id"] for row in rows} == {1, 3, 4, 33}
    # The next cycle has to see what others wrote.
    spark.sql(f"UPDATE {shop.lake.sql('silver', 'customers')} SET name = 'other' WHERE id = 1")
    with pytest.raises(DefiniteError, match=r"another program wrote silver\.customers"):
        run_forget(shop.pipeline, "customers", ["3", "33"], Output())


def test_lake_in_store_or_without_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'postgresql://x', slot: s, publication: p}\nlake: {catalog: main}\n"
    )
    with pytest.raises(DefiniteError) as raised:
        forget.require_local(load_pipeline(file).lake_address())
    assert raised.value.code == "erasure-place"
    monkeypatch.setenv(forget.VARIABLE, "short")
    with pytest.raises(ConfigurationError) as unconfigured:
        forget.secret_of(load_pipeline(file))
    assert unconfigured.value.code == "erasure-key-missing"
