"""Two documents over one shop, in operation: verified, damaged, killed, cared for, rebuilt.

All tests share one lake; each leaves it with gold equal to plain Python.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.functions import lit

from bronze.errors import SmeltError
from bronze.lsn import Lsn
from gold.builder import gold_table, incremental
from gold.builder.spark_settings import GOLD_APP
from gold.verify.differences import Difference
from gold.verify.verify import Verification, verify
from pipelines.commands.maintain import run_maintain
from pipelines.commands.rebuild import run_rebuild
from pipelines.runtime.stages import Stages
from pipelines.terminal.failures import Failure
from pipelines.terminal.output import Output
from tests.gold.shop import SHAPES, money
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE, document
from tests.gold.world import Model, World, mutate, pipeline_of
from tests.pipelines.aged import age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop

pytestmark = pytest.mark.spark

NAMES = ("parcel_line", "country")
READ = {
    name: shape
    for name, shape in SHAPES.items()
    if name.partition(".")[2] in {"countries", "customers", "orders", "order_items", "parcels"}
}
"""Tables that the documents read."""
SECONDS = 300.0


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lake = str(tmp_path_factory.mktemp("operation") / "lake")
    world = World(spark, lake, [PARCEL_LINE, COUNTRY], Model(shapes=READ))
    world.first()
    yield world
    world.shop.silver.close()


def verified(world: World, name: str, sample: float | None = None) -> Verification:
    return verify(world.spark, world.lake, world.gold.built(name), sample=sample)


def files(world: World, name: str) -> set[str]:
    """Files of a gold table that are on the disk."""
    return {path.name for path in Path(str(world.lake.path), "gold", name).rglob("*.parquet")}


def everybody(shop: Shop, email: str) -> None:
    for number in range(1, 9):
        shop.put("customers", id=number, email=email)


def test_upkeep_removes_what_is_past_retention_and_no_change_that_gold_has_yet_to_read(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gold stands days behind silver. (Checkpoints must not be there yet: see `age`.)"""
    shop, root = world.shop, Path(str(world.lake.path))

    superseded = files(world, "country")
    world.step(lambda shop: everybody(shop, "first"))
    age(world.spark, root, days=3)
    world.step(lambda shop: everybody(shop, "second"))
    everybody(shop, "third")
    shop.remove("order_items", 12, 1)
    shop.commit()  # gold does not see this one yet
    age(world.spark, root, days=9)
    everybody(shop, "fourth")
    shop.put("customers", id=1, country_id=1)
    for number, code in ((4, "CH"), (5, "FR")):
        shop.put("countries", id=number, code=code, name=f"Country {code}")
    cut = shop.commit()
    run_maintain(pipeline_of(world, tmp_path), Output())
    said = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert said.keys() == {f"silver.{name}" for name in cut.tables} | {f"gold.{name}" for name in NAMES}
    assert "vacuumed" in said["gold.country"]
    assert not superseded & files(world, "country")
    for name in NAMES:
        assert len(DeltaTable(world.lake.uri("gold", name)).file_uris()) == 1
    found = {name: verified(world, name) for name in NAMES}
    assert all(one.equal for one in found.values())
    assert found["country"].compared == 2
    world.gold = world.start_gold(world.documents)
    world.cycle(cut)
    world.check()


@pytest.fixture(scope="module")
def damage(world: World) -> dict[str, Verification]:
    """What is found of tables after somebody wrote to them; they are put back."""
    statements = {
        "parcel_line": [
            "DELETE FROM {table} WHERE order_id = 1 AND number = 1",
            "INSERT INTO {table} SELECT * FROM {table} WHERE order_id = 2 AND number = 1",
            "UPDATE {table} SET order_id = 900 WHERE order_id = 3 AND number = 1",
        ],
        "country": [
            """
            UPDATE {table} SET people = transform(
              people, p -> named_struct('email', p.email, 'bought', transform(p.bought, b -> b + 1))
            ) WHERE size(people) > 0""",
            """
            UPDATE {table} SET
              _content_hash = if(name = 'Country CH', repeat('0', 64), _content_hash),
              _commit_lsn = if(name = 'Country FR', 999999999, _commit_lsn)
            WHERE name IN ('Country CH', 'Country FR')""",
        ],
    }
    before = world.control.latest_cut("gold")
    assert before is not None
    for name, damages in statements.items():
        for statement in damages:
            world.spark.sql(statement.format(table=world.lake.sql("gold", name)))
    tables = {name: DeltaTable(world.lake.uri("gold", name)).version() for name in NAMES}
    world.control.record_cut(replace(before, tables=tables, recorded_at=None))
    found = {name: verified(world, name) for name in NAMES}
    for name, version in before.tables.items():
        world.spark.sql(f"RESTORE TABLE {world.lake.sql('gold', name)} TO VERSION AS OF {version}")
    world.control.record_cut(replace(before, recorded_at=None))
    return found


def test_what_gold_built_is_equal_and_a_sample_compares_a_part_of_it(world: World) -> None:
    whole, sample = verified(world, "parcel_line"), verified(world, "parcel_line", 0.4)
    assert (whole.equal, whole.first) == (True, ())
    assert whole.compared == len(world.shop.rows["public.order_items"])
    assert sample.equal
    assert 0 < sample.compared < whole.compared


def test_documents_that_are_missing_doubled_or_should_not_be_there_are_found(
    damage: dict[str, Verification],
) -> None:
    found = damage["parcel_line"]
    assert found.counts == {"twice": 1, "missing": 2, "surplus": 1}
    assert [(wrong.key, wrong.kind) for wrong in found.first] == [
        ('{"order_id":1,"line":1}', "missing"),
        ('{"order_id":2,"line":1}', "twice"),
        ('{"order_id":3,"line":1}', "missing"),
        ('{"order_id":900,"line":1}', "surplus"),
    ]


def test_a_value_deep_inside_is_named_by_its_path(damage: dict[str, Verification]) -> None:
    places = [wrong.difference for wrong in damage["country"].first if wrong.kind == "differs"]
    assert len(places) == damage["country"].counts["differs"] > 0
    assert all(isinstance(place, Difference) and place.path.startswith("people[") for place in places)
    assert any(place is not None and place.path.endswith(".bought[0]") for place in places)


def test_marks_that_do_not_fit_the_content_are_found(damage: dict[str, Verification]) -> None:
    found = damage["country"]
    assert {kind: number for kind, number in found.counts.items() if kind != "differs"} == {
        "hash": 1, "lsn": 1,
    }  # fmt: skip
    marks = [(wrong.key, wrong.kind) for wrong in found.first if wrong.kind != "differs"]
    assert marks == [('{"id":4}', "hash"), ('{"id":5}', "lsn")]


def test_a_document_that_was_not_built_as_its_file_says_is_not_compared(world: World) -> None:
    changed = document(COUNTRY.replace("  - name\n", "  - name\n  - code\n"))
    unbuilt = document(COUNTRY.replace("document: country", "document: fresh"))
    gold = world.start_gold([changed, unbuilt])
    for name, said in (
        ("country", "changed after it was built"),
        ("fresh", "no gold cut holds it yet"),
        ("cuntry", "did you mean 'country'?"),
    ):
        with pytest.raises(SmeltError) as caught:
            gold.built(name)
        assert said in str(caught.value)


def test_plans_for_large_tables_give_the_same_documents(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing counts as small here. Keys are sent to tasks; in a copy of the lake, tables are shuffled."""
    for module, name in ((gold_table, "_SMALL_ROWS"), (incremental, "_ONE_TASK"), (incremental, "_WALKED")):
        monkeypatch.setattr(module, name, -1)
    source, shop = random.Random(4), world.shop
    for _ in range(30):
        mutate(shop, source)
    shop.put("orders", id=1, customer_id=1, status="paid", total=money("7.00"))
    shop.put("order_items", order_id=1, line=1)
    shop.put("customers", id=1, email="sent or shuffled", country_id=1)
    shop.put("countries", id=1, code="AT")
    cut = shop.commit()
    shuffled = world.copied(tmp_path / "copy")
    for one, broadcast in ((world, 1_000_000), (shuffled, -1)):
        monkeypatch.setattr(incremental, "_BROADCAST", broadcast)
        one.cycle(cut)
        assert {run.mode for run in one.runs().values()} == {"incremental"}
        one.check()
    assert [shuffled.table(name) for name in NAMES] == [world.table(name) for name in NAMES]
    world.gold.cycle(rebuild=world.names)
    assert {(run.mode, run.changes) for run in world.runs().values()} == {("full", 0)}


def kill_a_cycle(lake: str, when: Callable[[], bool]) -> bool:
    """Start a cycle in a process, kill it and its JVM as soon as `when`; whether it was still at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gold.cycle_process", lake],
        stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "cycle\n"
        deadline = time.monotonic() + SECONDS
        while not when():
            assert time.monotonic() < deadline
            assert process.poll() is None, "the cycle ended before it was killed"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return process.stdout.read() == ""


def versions(lake: str) -> dict[str, int]:
    """The newest of each table, by its log's names: this is asked all the time while a JVM starts."""
    logs = {name: Path(lake, "gold", name, "_delta_log").iterdir() for name in NAMES}
    return {
        name: max(int(entry.stem) for entry in log if entry.suffix == ".json" and entry.stem.isdigit())
        for name, log in logs.items()
    }


def test_a_killed_cycle_leaves_whole_documents_and_the_next_one_brings_all_to_one_cut(world: World) -> None:
    """kill -9 between the commits of two documents."""
    lake = str(world.lake.path)
    last = world.control.latest_cut("gold")
    assert last is not None
    before = versions(lake)

    # One change that both documents see.
    world.shop.put("orders", id=3, customer_id=2, status="paid")
    world.shop.put("order_items", order_id=3, line=1)
    world.shop.put("customers", id=2, email="moved@example.com", country_id=2)
    world.shop.put("countries", id=2, code="DE")
    cut = world.shop.commit()

    assert kill_a_cycle(lake, lambda: versions(lake) != before)
    marks = {name: DeltaTable(f"{lake}/gold/{name}").transaction_version(GOLD_APP) for name in NAMES}
    moved = versions(lake)
    assert {marks[name] for name in NAMES if moved[name] != before[name]} == {cut.commit_lsn}
    assert all((marks[name] or 0) <= last.commit_lsn for name in NAMES if moved[name] == before[name])
    assert world.control.latest_cut("gold") == last, "a cut names every document or is not there"

    world.gold = world.start_gold(world.documents)
    world.cycle(cut)
    world.check()
    # The document that was done is not written again.
    assert all(after - before[name] == 1 for name, after in versions(lake).items())


def test_a_continuous_run_cares_for_gold_between_two_cycles(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Many documents go, by marks in their files; the run writes the rest again by itself and goes on."""
    uri, shop = world.lake.uri("gold", "parcel_line"), world.shop
    for order, line in list(shop.rows["public.order_items"])[::2]:
        shop.remove("order_items", order, line)
    shop.commit()
    deadline = time.monotonic() + SECONDS
    goal: Lsn | None = None

    def target() -> Lsn | None:
        """None until the files hold the documents and no other row; then what is written at that moment."""
        nonlocal goal
        assert time.monotonic() < deadline
        rows = sum(pa.table(DeltaTable(uri).get_add_actions())["num_records"].to_pylist())
        if goal is None and rows == len(shop.rows["public.order_items"]):
            shop.put("customers", id=3, email="after the upkeep", country_id=1)
            shop.put("orders", id=3, customer_id=3)
            shop.write()
            goal = Lsn(shop.lsn)
        return goal

    caplog.set_level("INFO", "deltasmelt.stages")
    stages = Stages(world.spark, pipeline_of(world, tmp_path), world.documents, maintain=True)
    stages.carry(target, threading.Event())
    assert any("gold.parcel_line" in text and "purged" in text for text in caplog.messages)
    cut = world.control.latest_cut("gold")
    assert cut is not None
    assert cut.commit_lsn == goal
    assert {run.mode for run in world.runs().values()} <= {"incremental", "none"}
    world.check()
    world.gold = world.start_gold(world.documents)


def test_smelt_rebuild_gold_puts_right_what_somebody_wrote_and_nothing_else(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy that `smelt verify` names for each kind of damage."""
    world.step(lambda shop: shop.put("customers", id=2, email="of both documents"))
    before = {name: world.table(name) for name in NAMES}
    cut = world.control.latest_cut("gold")
    assert cut is not None
    table = world.lake.sql("gold", "parcel_line")
    some = sorted(before["parcel_line"])[:5]
    places = [f"order_id = {order} AND number = {number}" for order, number in some]
    world.spark.sql(f"DELETE FROM {table} WHERE {places[0]}")
    world.spark.sql(
        f"""
        UPDATE {table} SET
          weight = if({places[1]}, -1, weight),
          order_id = if({places[2]}, 77777, order_id),
          _content_hash = if({places[3]}, NULL, _content_hash),
          _commit_lsn = if({places[4]}, 999999999, _commit_lsn)
        WHERE {" OR ".join(f"({place})" for place in places[1:])}"""
    )
    pipeline = pipeline_of(world, tmp_path)
    run_rebuild(pipeline, "gold", None, Output())
    said = {f"gold.{name}: rebuilt in full from silver" for name in NAMES}
    assert set(capsys.readouterr().out.splitlines()) == said
    after = world.control.latest_cut("gold")
    assert after is not None
    assert (after.commit_lsn, after.tables["country"]) == (cut.commit_lsn, cut.tables["country"])
    runs = world.runs()
    assert {(run.mode, run.reason) for run in runs.values()} == {("full", "asked for")}
    assert (runs["country"].changes, runs["parcel_line"].changes) == (0, 6)
    assert all(verified(world, name).equal for name in NAMES)
    world.check()
    kept = {key: row for key, row in world.table("parcel_line").items() if key not in some}
    assert kept == {key: row for key, row in before["parcel_line"].items() if key not in some}

    # A document that stands twice.
    world.spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE order_id = {some[0][0]}")
    # One row says what it should, the other not, beside the same hash: who reads by LSN may have had either.
    since = {key: row["_commit_lsn"] for key, row in before["parcel_line"].items()}
    order, number = other = max(key for key, lsn in since.items() if lsn < cut.commit_lsn)
    assert order != some[0][0]
    twice = world.spark.sql(f"SELECT * FROM {table} WHERE order_id = {order} AND number = {number}")
    altered = twice.withColumn("weight", lit(-1.0))
    altered.write.format("delta").mode("append").save(world.lake.uri("gold", "parcel_line"))
    run_rebuild(pipeline, "gold", "parcel_line", Output())
    assert verified(world, "parcel_line").equal
    world.check()
    assert other not in some
    after_both = world.table("parcel_line")
    assert after_both[other] == {**before["parcel_line"][other], "_commit_lsn": cut.commit_lsn}
    kept = {key: row for key, row in after_both.items() if key not in [*some, other]}
    assert kept == {key: row for key, row in before["parcel_line"].items() if key not in [*some, other]}
    # The stages go on from there by changes.
    world.gold = world.start_gold(world.documents)
    world.step(lambda shop: shop.put("customers", id=3, email="after the rebuild"))


def test_smelt_rebuild_gold_says_which_documents_it_could_not_build(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, pipeline = world.shop, pipeline_of(world, tmp_path)
    versions_before = versions(str(world.lake.path))

    # Bronze knows a shape that silver's newest cut has not.
    shop.add_column("countries", "region", "text", None)
    shop.put("countries", id=1, region="south")
    shop.write()
    with pytest.raises(Failure, match="left as they are: country"):
        run_rebuild(pipeline, "gold", None, Output())
    said = capsys.readouterr()
    assert "gold.parcel_line: rebuilt" in said.out
    assert "gold.country: rebuilt" not in said.out
    assert "is older than the new shape of public.countries" in said.out + said.err
    assert versions(str(world.lake.path))["country"] == versions_before["country"]
    world.gold = world.start_gold(world.documents)
    world.step(lambda _: None, full={})

    # A table has left silver's cuts, because changes of it are not in bronze.
    shop.put("countries", id=1, name="lost")
    shop.lose("countries")
    shop.commit(without=["public.countries"])
    with pytest.raises(Failure, match="left as they are: country"):
        run_rebuild(pipeline, "gold", "country", Output())
    said = capsys.readouterr()
    assert "gold.country: rebuilt" not in said.out
    assert "needs silver.countries" in said.out + said.err
    shop.resnapshot("countries")
    world.gold = world.start_gold(world.documents)
    world.step(lambda _: None)
