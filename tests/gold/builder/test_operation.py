"""Two documents over one shop, in operation: verified, damaged, killed, maintained, rebuilt.

All tests share one lake; after each test gold equals plain Python.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.gold.builder import gold_table, incremental
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.gold.verify.verify import Difference
from deltasmelt.pipelines.commands.maintain import run_maintain
from deltasmelt.pipelines.commands.rebuild import run_rebuild
from deltasmelt.pipelines.runtime.stages import Stages
from deltasmelt.pipelines.terminal.failures import Failure
from deltasmelt.pipelines.terminal.output import Output
from tests.gold.damage import damaged_and_rebuilt, verified
from tests.gold.shop import SHAPES, money
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE, document
from tests.gold.world import Model, World, mutate, pipeline_of
from tests.pipelines.aged import age

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lsn import Lsn
    from tests.gold.damage import Damage
    from tests.gold.shop import Shop

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

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
    # Silver rewrites its tables as a whole, which is cheaper; this module tests gold's files.
    world = World(spark, lake, [PARCEL_LINE, COUNTRY], Model(shapes=READ, tiny=True))
    world.first()
    yield world
    world.shop.silver.close()


def files(world: World, name: str) -> set[str]:
    """Return files of a gold table on the disk."""
    return {path.name for path in Path(str(world.lake.path), "gold", name).rglob("*.parquet")}


def move(shop: Shop, one: int, other: int) -> None:
    """Move two customers to these countries: both countries change, and no line of an order does."""
    shop.put("customers", id=1, country_id=one)
    shop.put("customers", id=3, country_id=other)


def test_upkeep_keeps_what_gold_has_to_read(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gold is days behind silver; upkeep removes the files past retention alone. (`age` needs short logs.)

    At first only one document changes: this document leaves files behind.
    """
    shop, root = world.shop, Path(str(world.lake.path))

    superseded = files(world, "country")
    world.step(lambda shop: move(shop, 1, 2))
    age(world.spark, root, days=3)
    world.step(lambda shop: move(shop, 2, 1))
    shop.put("customers", id=1, email="third")
    shop.remove("customers", 2)
    shop.commit()  # gold does not see this one yet
    age(world.spark, root, days=9)
    shop.put("customers", id=1, email="fourth")
    for number, code in enumerate(("CH", "FR", "ES", "PT", "NO"), 4):
        shop.put("countries", id=number, code=code, name=f"Country {code}")
    cut = shop.commit()
    run_maintain(pipeline_of(world, tmp_path), Output())
    output = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert output.keys() == {f"silver.{name}" for name in cut.tables} | {f"gold.{name}" for name in NAMES}
    assert "vacuumed" in output["gold.country"]
    assert not superseded & files(world, "country")
    for name in NAMES:
        assert len(DeltaTable(world.lake.uri("gold", name)).file_uris()) == 1
    verdict = verified(world, "parcel_line")
    assert verdict.equal
    assert verdict.first == ()
    assert verdict.compared == len(shop.rows["public.order_items"])
    world.gold = world.start_gold(world.documents)
    world.cycle(cut)
    world.check()


@pytest.fixture(scope="module")
def damage(world: World, tmp_path_factory: pytest.TempPathFactory) -> Damage:
    """Damage, verify and rebuild both tables."""
    return damaged_and_rebuilt(world, tmp_path_factory.mktemp("rebuild"))


def test_missing_doubled_and_surplus_documents_are_found(damage: Damage) -> None:
    verdict = damage.found["parcel_line"]
    assert verdict.counts == {"twice": 2, "missing": 2, "surplus": 1}
    assert [(wrong.key, wrong.kind) for wrong in verdict.first] == [
        ('{"order_id":1,"line":1}', "missing"),
        ('{"order_id":2,"line":1}', "twice"),
        ('{"order_id":3,"line":1}', "missing"),
        ('{"order_id":15,"line":1}', "twice"),
        ('{"order_id":900,"line":1}', "surplus"),
    ]


def test_a_nested_value_is_named_by_its_path(damage: Damage) -> None:
    verdict = damage.found["country"]
    places = [wrong.difference for wrong in verdict.first if wrong.kind == "differs"]
    assert len(places) == verdict.counts["differs"] > 0
    assert all(isinstance(place, Difference) and place.path.startswith("people[") for place in places)
    assert any(place is not None and place.path.endswith(".bought[0]") for place in places)


def test_marks_unlike_the_content_are_found(damage: Damage) -> None:
    verdict = damage.found["country"]
    assert {kind: number for kind, number in verdict.counts.items() if kind != "differs"} == {
        "missing": 1, "surplus": 1, "hash": 2, "lsn": 1,
    }  # fmt: skip
    marks = [(wrong.key, wrong.kind) for wrong in verdict.first if wrong.kind in {"hash", "lsn"}]
    assert marks == [('{"id":4}', "hash"), ('{"id":5}', "lsn"), ('{"id":7}', "hash")]


def test_a_rebuild_repairs_damage_and_nothing_else(world: World, damage: Damage) -> None:
    """The test runs the remedy that `smelt verify` names for each kind of damage.

    A MERGE corrects one table, and a full build replaces the table with documents that exist twice. (Gold
    leaves an undamaged table unchanged: `tests.gold.test_cycle`.)
    """
    lines_expected = {f"gold.{name}: rebuilt in full from silver" for name in NAMES}
    assert set(damage.said.splitlines()) == lines_expected
    assert damage.cut_after.commit_lsn == damage.cut.commit_lsn
    assert {(run.mode, run.reason) for run in damage.runs.values()} == {("full", "requested")}
    assert damage.runs["country"].changes == sum(damage.found["country"].counts.values())
    world.check()
    # Right documents keep their LSN, and so do documents that existed twice with one content. Of two contents
    # with one hash and LSN, a reader by LSN may have read either.
    lsn = damage.cut.commit_lsn
    wrong: dict[str, set[tuple[int, ...]]] = {
        "parcel_line": {(1, 1), (3, 1), (15, 1)},
        "country": {(2,), (4,), (5,), (6,), (7,)},
    }
    assert damage.before["country"][1,]["_commit_lsn"] < lsn
    for name, before in damage.before.items():
        assert damage.after[name] == {
            key: {**row, "_commit_lsn": lsn} if key in wrong[name] else row for key, row in before.items()
        }
    assert damage.before["parcel_line"][2, 1]["_commit_lsn"] < lsn
    assert damage.before["parcel_line"][15, 1]["_commit_lsn"] < lsn


def test_a_sample_compares_a_part_of_documents(world: World) -> None:
    sample = verified(world, "parcel_line", 0.4)
    assert sample.equal
    assert 0 < sample.compared < len(world.shop.rows["public.order_items"])


def test_a_document_with_another_definition_is_not_compared(world: World) -> None:
    changed = document(COUNTRY.replace("  - name\n", "  - name\n  - code\n"))
    unbuilt = document(COUNTRY.replace("document: country", "document: fresh"))
    gold = world.start_gold([changed, unbuilt])
    for name, reason in (
        ("country", "changed after the last build"),
        ("fresh", "no gold cut contains the document yet"),
        ("cuntry", "did you mean 'country'?"),
    ):
        with pytest.raises(SmeltError) as caught:
            gold.built(name)
        assert reason in str(caught.value)


def test_plans_for_large_tables_give_equal_documents(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this test no table counts as small. Gold sends keys to tasks; in a copy, Spark shuffles tables.

    Both plans differ by a hint at each table read for some roots, the same for all kinds of fields. So one
    document is enough for the test.
    """
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
    shuffled.define([PARCEL_LINE])
    for joined_world, broadcast in ((world, 1_000_000), (shuffled, -1)):
        monkeypatch.setattr(incremental, "_BROADCAST", broadcast)
        joined_world.cycle(cut)
        runs = joined_world.runs()
        assert {runs[name].mode for name in joined_world.names} == {"incremental"}
        joined_world.check()
    assert shuffled.table("parcel_line") == world.table("parcel_line")


def kill_a_cycle(lake: str, when: Callable[[], bool]) -> bool:
    """Start a cycle in a process, kill it and its JVM once `when` holds; return whether the cycle ran."""
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
    """Return the newest version of each table, by names in its log: cheap enough to poll all the time."""
    logs = {name: Path(lake, "gold", name, "_delta_log").iterdir() for name in NAMES}
    return {
        name: max(int(entry.stem) for entry in log if entry.suffix == ".json" and entry.stem.isdigit())
        for name, log in logs.items()
    }


@pytest.mark.torture
def test_a_killed_cycle_leaves_whole_documents(world: World) -> None:
    """`kill -9` between the commits of two documents; the next cycle carries all documents to one cut.

    `tests.gold.language.test_random_schemas` ends each world's cycle there from inside.
    """
    lake = str(world.lake.path)
    last = world.control.latest_cut("gold")
    assert last is not None
    before = versions(lake)

    # A change that both documents read.
    world.shop.put("customers", id=1, email="moved@example.com")
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
    # The next cycle does not write the finished document again.
    assert all(after - before[name] == 1 for name, after in versions(lake).items())


def test_a_continuous_run_maintains_gold_between_cycles(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Deletion vectors mark many documents; the run rewrites all others by itself and continues.

    The run is gold's: `tests.pipelines.runtime.test_maintenance` tests silver's tables.
    """
    uri, shop = world.lake.uri("gold", "parcel_line"), world.shop
    for order, line in list(shop.rows["public.order_items"])[::2]:
        shop.remove("order_items", order, line)
    shop.commit()
    deadline = time.monotonic() + SECONDS
    goal: Lsn | None = None

    def target() -> Lsn | None:
        """Return None until the files hold exactly the documents; then commit a change and return its LSN."""
        nonlocal goal
        assert time.monotonic() < deadline
        rows = sum(pa.table(DeltaTable(uri).get_add_actions())["num_records"].to_pylist())
        if goal is None and rows == len(shop.rows["public.order_items"]):
            order, line = next(iter(shop.rows["public.order_items"]))
            shop.put("logistics.parcels", id=1, order_id=order, line=line, weight=9.5)
            goal = shop.commit().commit_lsn
        return goal

    caplog.set_level("INFO", "deltasmelt.stages")
    pipeline = pipeline_of(world, tmp_path)
    stages = Stages(world.spark, pipeline, world.documents, layers=("gold",), maintain=True)
    stages.carry(target, threading.Event())
    assert any("gold.parcel_line" in text and "purged" in text for text in caplog.messages)
    cut = world.control.latest_cut("gold")
    assert cut is not None
    assert cut.commit_lsn == goal
    assert {run.name for run in world.control.runs("gold") if run.to_lsn == goal} == {"parcel_line"}
    world.check()
    world.gold = world.start_gold(world.documents)


def test_a_rebuild_names_documents_it_cannot_build(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, pipeline = world.shop, pipeline_of(world, tmp_path)
    versions_before = versions(str(world.lake.path))

    # A table is no longer in silver's cuts, because bronze lacks some of its changes.
    shop.put("countries", id=1, name="lost")
    shop.lose("countries")
    shop.commit(without=["public.countries"])
    with pytest.raises(Failure, match="not rebuilt: country"):
        run_rebuild(pipeline, "gold", "country", Output())
    captured = capsys.readouterr()
    assert "rebuilt" not in captured.out
    assert "needs silver.countries" in captured.out + captured.err

    # Bronze has the table's copy, and a shape that silver's newest cut lacks.
    shop.resnapshot("countries")
    shop.add_column("countries", "region", "text", None)
    shop.put("countries", id=1, region="south")
    shop.write()
    with pytest.raises(Failure, match="not rebuilt: country"):
        run_rebuild(pipeline, "gold", None, Output())
    captured = capsys.readouterr()
    assert "gold.parcel_line: rebuilt" in captured.out
    assert "gold.country: rebuilt" not in captured.out
    assert "is older than the new shape of public.countries" in captured.out + captured.err
    assert versions(str(world.lake.path))["country"] == versions_before["country"]

    # Once silver has reached this LSN, neither case is an error.
    world.gold = world.start_gold(world.documents)
    world.step(lambda _: None)
