"""Builds that fit into memory: plans by sizes, turns of builds, estimates compared with real documents."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.builder.build import ComputedViews
from deltasmelt.gold.builder.growth import Growth, growth_query
from deltasmelt.gold.builder.memory import Machine, Room, Sizes, assembly_plan, bytes_of
from deltasmelt.gold.builder.sizing import LARGEST, Sizing
from deltasmelt.gold.builder.spark_settings import LEAN
from deltasmelt.gold.builder.weights import Roots, fans_query, weights_query
from deltasmelt.gold.builder.widths import average, below, many, most
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.incremental.affected import SIDE
from deltasmelt.gold.language.document import parse_document
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.gold.verify.verify import verify
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.tuning import settings
from tests.benchmarks.gold_work import NESTED, SHAPES, GoldWork
from tests.fix_spark import rows_of
from tests.gold.shop import relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.schema.catalog import SilverTable

GB = 2**30
MB = 2**20
heaps = st.integers(400 * MB, 64 * GB)


@given(heaps, st.integers(1, 64), st.integers(1, 10**7), st.integers(1, 10**12), st.integers(1, 10**9))
def test_documents_assembled_together_fit_the_heap(
    heap: int, cores: int, documents: int, total: int, largest: int
) -> None:
    machine = Machine(heap, cores)
    sizes = Sizes(documents, max(total, largest), min(largest, machine.room))
    for tasks in (1, 2, 200):
        plan = assembly_plan(sizes, machine, tasks=tasks)
        if plan.together:
            assert sizes.total <= machine.room // 8
            assert plan.needed <= machine.room // 8
        assert plan.needed <= sizes.largest * cores
        assert plan.partitions is None or plan.partitions > tasks
        assert sizes.total // max(plan.partitions or tasks, 1) <= 64 * MB or plan.partitions is not None
        assert 1 <= plan.batch <= 4096
        assert plan.batch == 1 or plan.batch * (sizes.total // documents) <= machine.room // 8


@given(heaps, st.integers(0, 10**10))
def test_the_named_heap_has_room(heap: int, document: int) -> None:
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


def test_builds_share_room_in_order() -> None:
    room, order, used = Room(10), list[str](), [0]
    lock = threading.Lock()

    def build(name: str, size: int) -> Callable[[], None]:
        def run() -> None:
            with room.reserve(size):
                with lock:
                    order.append(name)
                    used[0] += min(size, 10)
                    assert used[0] <= 10
                time.sleep(0.05)
                with lock:
                    used[0] -= min(size, 10)

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


@cache
def nested() -> tuple[Tree, dict[TableName, SilverTable]]:
    """Return a document of three levels, over tables with known columns and nothing else known."""
    catalog = {name: silver_table(relation(str(name), SHAPES[str(name)], ("id",)), SilverSettings())
               for name in map(TableName.parse, SHAPES)}  # fmt: skip
    tree, _ = resolve(parse_document(parse_yaml(NESTED, Path("nested.yml"))), catalog)
    assert tree is not None
    return tree, catalog


@given(rows, rows, rows, st.integers(1, 500), st.integers(1, 10**4))
def test_no_estimate_exceeds_the_tables(customers: int, orders: int, items: int, wide: int, fan: int) -> None:
    tree, catalog = nested()
    numbers = {"public.customers": customers, "public.orders": orders, "public.items": items}
    sizes = {name: (numbers.get(str(name), 0), wide * numbers.get(str(name), 0)) for name in catalog}
    whole = most(tree, sizes)
    assert average(tree, sizes) <= whole + 1
    fans = {node.id: fan for node in many(tree)}
    assert most(tree, sizes, fans) <= whole
    assert most(tree, sizes, {node.id: 10**9 for node in many(tree)}) == whole
    doubled = {name: (2 * number, 2 * size) for name, (number, size) in sizes.items()}
    assert most(tree, doubled) >= whole
    bound = below(tree, sizes)
    assert bound[TableName.parse("public.orders")] >= bound[TableName.parse("public.items")] > 0


class _Weighing(Sizing):
    """Sizes without tables: the bound exceeds the room, and each weighing finds a small document."""

    def __init__(self, machine: Machine, largest: int) -> None:
        self.machine, self.largest = machine, largest
        self.weighed: list[str] = []
        self._heaviest = 0

    def _fans(self, *_: object) -> dict[int, int]:
        self.weighed.append("fans")
        return {}

    def _weighed(self, *given: object, refuses: bool = True) -> int:
        roots = given[3]
        self.weighed.append("all" if roots is None else "some")
        assert refuses == (roots is not None), "one that is not built now stops no other"
        return self.largest if roots is None else 1000


def sized(
    sizing: Sizing,
    known: int | None,
    rows: int,
    texts: int = 0,
    *,
    of: tuple[Tree, dict[TableName, SilverTable]] | None = None,
    name: str = "public.orders",
) -> int | None:
    """Return the bytes of the largest document after a build with so many new rows of a table."""
    tree, catalog = of or nested()
    grown = {TableName.parse(name): Growth(rows, texts)}
    some, of_all = sizing.of_some(
        tree,
        str,
        dict.fromkeys(catalog, (10**6, 10**8)),
        roots=Roots("affected", frozenset()),
        number=1,
        grown=grown,
        known=known,
        tasks=2,
    )
    assert some.needed <= (of_all or 1000)
    return of_all


def test_documents_not_built_now_keep_their_size() -> None:
    machine = Machine(2 * GB, 2)
    for bound, expected in ((50 * MB, 50 * MB), (10, 1000), (None, None)):
        sizing = _Weighing(machine, machine.room + 1)
        assert sized(sizing, bound, 10**7) == expected
        assert sizing.weighed == ["fans", "all", "some"]
        assert sized(sizing, bound, 10**7) == expected
        assert sizing.weighed[3:] == ["fans", "some"], "all of them only once, where they really are large"


def test_a_grown_bound_is_weighed_once() -> None:
    """A heap with room for 60 MB, documents of 2 MB, and a thousand new rows in each cycle."""
    sizing = _Weighing(Machine(2 * GB, 2), 2 * MB)
    bound: int | None = 2 * MB
    for _ in range(1000):
        bound = sized(sizing, bound, 1000)
        assert bound is not None
    assert 2 < sizing.weighed.count("all") < 20
    assert sizing.weighed == ["fans", "all"] * (len(sizing.weighed) // 2)


def test_updates_without_text_let_no_size_grow() -> None:
    sizing = _Weighing(Machine(2 * GB, 2), 2 * MB)
    bound: int | None = 50 * MB
    for _ in range(1000):
        bound = sized(sizing, bound, 0)
    assert (bound, sizing.weighed) == (50 * MB, [])
    assert sized(sizing, bound, 0, 5 * MB) == 55 * MB


def test_a_new_recursion_row_weighs_its_documents_alone() -> None:
    """The row may bring a subtree. Each cycle may have such rows, so gold cannot weigh all documents."""
    sizing = _Weighing(Machine(2 * GB, 2), 2 * MB)
    for _ in range(20):
        assert sized(sizing, 3 * MB, 1, of=threads(), name="public.posts") == 3 * MB
    assert sizing.weighed == ["some"] * 20
    assert sized(sizing, 3 * MB, 0, 9, of=threads(), name="public.posts") == 3 * MB + 9
    assert sizing.weighed == ["some"] * 20


def threads() -> tuple[Tree, dict[TableName, SilverTable]]:
    """Return customers with a recursion of posts."""
    posts = {"id": "int8", "customer_id": "int8", "parent_id": "int8", "text": "text"}
    shapes = {"public.customers": {"id": "int8"}, "public.posts": posts}
    tables = [
        silver_table(relation(name, shape, ("id",)), SilverSettings()) for name, shape in shapes.items()
    ]
    catalog = {table.table: table for table in tables}
    tree, _ = resolve(parse_document(parse_yaml(TREES, Path("threads.yml"))), catalog)
    assert tree is not None
    return tree, catalog


@pytest.mark.spark
def test_changed_rows_add_rows_and_longer_texts(spark: SparkSession) -> None:
    tree, _ = nested()
    spark.sql("""
      SELECT * FROM VALUES
        (1L, 7L, 'new', 'old'), (1L, 7L, 'paid', 'new'),                            -- a byte longer
        (2L, 7L, 'shipped', 'old'), (2L, 7L, 'new', 'new'),                         -- shorter
        (3L, 7L, 'new', 'old'), (3L, 8L, 'new', 'new'),                             -- to another customer
        (4L, 7L, 'new', 'new'), (5L, 7L, 'done', 'old'), (6L, NULL, NULL, 'new')    -- came, left, came
      AS t(id, customer_id, status, _side)""").createOrReplaceTempView("images_of_orders")
    images = "(SELECT * EXCEPT (_side), _side AS " + SIDE + " FROM images_of_orders)"
    columns = ["customer_id", "id", "status"]
    query = growth_query(tree, TableName.parse("public.orders"), images, columns)
    (row,) = rows_of(spark, query)
    assert tuple(row) == (3, 1)


TREES = """
document: threads
root: public.customers
fields:
  - id
  - posts:
      many: public.posts
      on: {customer_id: id}
      recurse: {on: {parent_id: id}, max_depth: 16}
      fields: [id, text]
"""


@pytest.mark.spark
def test_a_recursion_weighs_what_its_levels_hold(spark: SparkSession) -> None:
    """The first recursion has three levels of 20, with 20 below each; the second is a line of 20 posts."""
    tree, catalog = threads()
    spark.sql("SELECT id FROM VALUES (1L), (2L), (3L) AS t(id)").createOrReplaceTempView("of_customers")
    spark.sql("""
      SELECT id, IF(id < 20, 1L, NULL) AS customer_id, IF(id < 20, NULL, id DIV 20 - 1) AS parent_id,
        repeat('x', 100) AS text FROM range(20 + 400 + 8000)
      UNION ALL SELECT 1000000 + id, IF(id = 0, 2L, NULL), IF(id = 0, 1000000L, 999999 + id), repeat('y', 10)
        FROM range(20)""").createOrReplaceTempView("of_posts")
    view_names = {"public.customers": "of_customers", "public.posts": "of_posts"}
    sizes = dict.fromkeys(catalog, (8440, 257000))
    view = "(SELECT id AS k0 FROM of_customers)"
    rows, kept_rows = (
        compile_tree(tree, lambda name: view_names[str(name)], roots=view).shared,
        ComputedViews(spark),
    )
    with settings(spark, LEAN):
        for step in rows:
            kept_rows.keep(step.sql, step.name)
    for roots in (None, Roots(view, frozenset(step.name for step in rows))):
        query = weights_query(tree, lambda name: view_names[str(name)], sizes, roots)
        with settings(spark, LEAN):
            weighed = {row["k0"]: row["bytes"] for row in rows_of(spark, query)}
        assert 8420 * 115 < weighed[1] < 8420 * 150, "with their names, of each level"
        assert 16 * 20 < weighed[2] < 16 * 60, "its first post is its own parent, and levels end"
        assert weighed[3] < 100
    kept_rows.forget()
    (node,) = tree.nodes()
    whole = dict.fromkeys(sizes, (20_000, 10**6))
    query = fans_query([node], lambda name: view_names[str(name)], whole)
    fans = {row["node"]: row["most"] for row in rows_of(spark, query)}
    assert fans == {node.id: 20, -node.id: 20}
    assert most(tree, sizes, fans) > 8420 * 100, "bounded by the table"
    assert most(tree, sizes, {node.id: 1, -node.id: 1}) < 20 * 300


CLERK = """
document: clerk
root: public.employees
fields: [id, name]
"""


@pytest.mark.spark
def test_a_document_without_room_is_its_own_error(spark: SparkSession, tmp_path: Path) -> None:
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
    assert "the document with the key 7 needs about" in error.message
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
    for largest in (before.details[LARGEST], run.details[LARGEST]):
        assert row["n"] <= int(str(largest)) <= 3 * row["n"]
