"""What fits into memory: plans by sizes, turns of builds, estimates beside what documents really are."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bronze.config.yaml_file import parse_yaml
from bronze.identifiers import TableName
from gold.builder.memory import Machine, Room, Sizes, assembly_plan, bytes_of
from gold.builder.sizing import LARGEST, Sizing
from gold.builder.weights import Roots
from gold.builder.widths import average, below, many, most
from gold.cycle import Gold
from gold.language.document import parse_document
from gold.tree.resolve import resolve
from gold.verify.verify import verify
from silver.schema.catalog import silver_table
from silver.settings import SilverSettings
from tests.benchmarks.gold_work import NESTED, SHAPES, GoldWork
from tests.fix_spark import rows_of
from tests.gold.shop import relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from gold.tree.nodes import Tree
    from silver.schema.catalog import SilverTable

GB = 2**30
MB = 2**20
heaps = st.integers(400 * MB, 64 * GB)


@given(heaps, st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 10**12), st.integers(1, 10**9))
def test_what_is_assembled_at_once_follows_from_the_heap(
    heap: int, cores: int, documents: int, total: int, largest: int
) -> None:
    machine = Machine(heap, cores)
    sizes = Sizes(documents, max(total, largest), min(largest, machine.room))
    for tasks in (1, 2, 200):
        made = assembly_plan(sizes, machine, tasks=tasks)
        if made.together:
            assert sizes.total <= machine.room // 8
            assert made.needed <= machine.room // 8
        assert made.needed <= sizes.largest * cores
        assert made.partitions is None or made.partitions > tasks
        assert sizes.total // max(made.partitions or tasks, 1) <= 64 * MB or made.partitions is not None
        assert 1 <= made.batch <= 4096
        assert made.batch == 1 or made.batch * (sizes.total // documents) <= machine.room // 8


@given(heaps, st.integers(0, 10**10))
def test_the_heap_that_is_named_has_room(heap: int, document: int) -> None:
    machine = Machine(heap, 2)
    assert Machine(machine.heap_for(document) + MB, 2).room >= document
    assert 1 <= machine.side_by_side <= 4


def test_two_gigabytes() -> None:
    machine = Machine(2 * GB, 2)
    assert 55 * MB < machine.room < 65 * MB
    assert machine.side_by_side == 4
    assert Machine(512 * MB, 2).side_by_side == 1


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [("2g", "b", 2 * GB), ("1536m", "b", 1536 * MB), ("1.5G", "b", 3 * GB // 2), ("1024", "m", GB)],
)  # fmt: skip
def test_sizes_as_spark_writes_them(text: str, unit: str, size: int) -> None:
    assert bytes_of(text, unit=unit) == size


def test_builds_share_a_room_and_none_is_passed_by() -> None:
    room, order, taken = Room(10), list[str](), [0]
    lock = threading.Lock()

    def build(name: str, size: int) -> Callable[[], None]:
        def run() -> None:
            with room.of(size):
                with lock:
                    order.append(name)
                    taken[0] += min(size, 10)
                    assert taken[0] <= 10
                time.sleep(0.05)
                with lock:
                    taken[0] -= min(size, 10)

        return run

    threads = []
    for name, size in (("a", 6), ("whole", 99), ("b", 1), ("c", 4)):
        threads.append(threading.Thread(target=build(name, size)))
        threads[-1].start()
        time.sleep(0.01)
    for thread in threads:
        thread.join(10)
    assert order == ["a", "whole", "b", "c"]


rows = st.integers(1, 10**7)


def nested() -> tuple[Tree, dict[TableName, SilverTable]]:
    """A document of three levels, over tables of which nothing is known but their columns."""
    catalog = {name: silver_table(relation(str(name), SHAPES[str(name)], ("id",)), SilverSettings())
               for name in map(TableName.parse, SHAPES)}  # fmt: skip
    tree, _ = resolve(parse_document(parse_yaml(NESTED, Path("nested.yml"))), catalog)
    assert tree is not None
    return tree, catalog


@given(rows, rows, rows, st.integers(1, 500), st.integers(1, 10**4))
def test_no_document_is_estimated_larger_than_all_its_tables_and_a_fan_makes_it_smaller(
    customers: int, orders: int, items: int, wide: int, fan: int
) -> None:
    tree, catalog = nested()
    numbers = {"public.customers": customers, "public.orders": orders, "public.items": items}
    sizes = {name: (numbers.get(str(name), 0), wide * numbers.get(str(name), 0)) for name in catalog}
    whole = most(tree, sizes)
    assert average(tree, sizes) <= whole + 1
    fans = {node.id: fan for node in many(tree)}
    assert most(tree, sizes, fans) <= whole
    assert most(tree, sizes, {node.id: 10**9 for node in many(tree)}) == whole
    more = {name: (2 * number, 2 * size) for name, (number, size) in sizes.items()}
    assert most(tree, more) >= whole
    each = below(tree, sizes)
    assert each[TableName.parse("public.orders")] >= each[TableName.parse("public.items")] > 0


class _Weighing(Sizing):
    """Sizes without tables: the bound is above the room, and each weighing finds a small document."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def _bound(self, *_: object) -> int:
        return self.machine.room + 1

    def _weighed(self, *_: object) -> int:
        return 1000


def test_documents_that_are_not_built_now_stay_as_large_as_they_were() -> None:
    tree, catalog = nested()
    machine = Machine(2 * GB, 2)
    sizes = dict.fromkeys(catalog, (10**6, 10**8))
    for known, told in ((50 * MB, 50 * MB), (10, 1000), (None, None)):
        some, of_all = _Weighing(machine).of_some(
            tree, str, sizes, roots=Roots("affected", frozenset()), number=1, changed={}, known=known, tasks=2
        )
        assert of_all == told
        assert some.needed <= 1000


CLERK = """
document: clerk
root: public.employees
fields: [id, name]
"""


@pytest.mark.spark
def test_a_document_without_room_is_its_own_error_and_with_it_they_are_built_one_by_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One customer has most of the orders: a heap of 300 MB has room for 1 MB of documents."""
    work = GoldWork(spark, tmp_path, NESTED, CLERK)
    work.fill("customers", 50)
    work.fill("orders", 13_000, "IF(n <= 12000, 7, 1 + n % 50)")
    work.fill("items", 20_000)
    work.fill("employees", 5)
    work.cut()

    def gold(heap: int) -> Gold:
        machine = Machine(heap, 2)
        return Gold(spark, work.lake, work.documents, lambda: work.catalog, work.control, machine=machine)

    cut = gold(300 * MB).cycle()
    assert cut is not None
    assert set(cut.tables) == {"clerk"}
    (error,) = work.control.open_errors()
    assert (error.name, error.code) == ("nested", "document-too-large")
    assert "the document with the key 7 would have about" in error.message
    assert "a heap of 300 MB has room for 1 MB" in error.message
    assert "spark.driver.memory: 1g" in str(error.remedy)

    roomy = gold(500 * MB)  # room for 5 MB: for each of them, but not to assemble all together
    cut = roomy.cycle()
    assert cut is not None
    assert set(cut.tables) == {"nested", "clerk"}
    assert not work.control.open_errors()
    work.touch("SELECT 5L * id AS id FROM range(1, 200)", "changed")
    work.cut()
    assert roomy.cycle() is not None
    assert verify(spark, work.lake, roomy.built("nested")).equal
    run, before = work.control.runs("gold", "nested")[:2]
    assert (before.mode, run.mode, run.updates) == ("full", "incremental", 1)
    content = "struct(* EXCEPT (_commit_lsn, _content_hash))"
    (row,) = rows_of(
        spark, f"SELECT max(length(to_json({content}))) AS n FROM {work.lake.sql('gold', 'nested')}"
    )
    assert abs(int(str(run.details["largest_bytes"])) - row["n"]) < 0.05 * row["n"]
    for told in (before.details[LARGEST], run.details[LARGEST]):
        assert row["n"] <= int(str(told)) <= 3 * row["n"]
