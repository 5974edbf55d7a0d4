"""Random documents over random tables, through random histories: incremental = full = plain Python.

Each world has separate tables, documents and a history, with every kind of aggregate. Rows pass through real
bronze and silver. A world empties and copies tables again, also with changes missing in bronze, and compacts
and purges their files. Gold runs after one or several cuts of silver. The tests end silver and gold at the
points of a crash: after the commits of some documents, or of all tables, before the record of the cut. Every
world has each such end, and each event of a table as a whole.

Every run has one small world; larger worlds are torture. `SMELT_SEEDS` sets the seeds of larger worlds:
``SMELT_SEEDS=100,101``.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.gold.verify.verify import verify
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.silver.settings import SilverSettings
from tests.gold.random_documents import AGGREGATES, Writer, random_shapes
from tests.gold.world import Model, World, mutate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("interpreted")]

SEED = 103
"""Seed of the small world, whose few documents contain `EVERY` verb and option.

After gold's first build the world empties a table, another table lacks changes until a new copy, silver is
killed, and upkeep runs.
"""
MORE_SEEDS = (1, *range(100, 112))
EVERY = (
    "one", "many", "through", "recurse", "flatten", "key_by", "values", "limit", "cap", "order_by", "where",
    "object", *AGGREGATES,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """The size of a world.

    Attributes:
        documents: the number of documents, over which all aggregates are spread.
        rounds: of silver and gold.
        windows: of silver in a round, at most.
        verified: number of documents that `smelt verify` compares at the end. After each round the test
            compares all documents with plain Python, and at the end with a full build.
    """

    documents: int
    rounds: int
    windows: int
    verified: int


SMALL = Size(documents=2, rounds=2, windows=2, verified=0)
LARGE = Size(documents=3, rounds=3, windows=3, verified=3)


class KilledError(Exception):
    """The end of a process."""


class Killed(ControlTables):
    """Control tables of a process that ends before the record of a cut."""

    def record_cut(self, cut: Cut) -> None:
        raise KilledError(cut.layer)


def random_world(spark: SparkSession, path: Path, source: random.Random, documents: int) -> World:
    snippets: dict[str, object] = {}
    shapes = random_shapes(source)
    functions = list(AGGREGATES)
    source.shuffle(functions)
    shares = [functions[number::documents] for number in range(documents)]
    texts = [
        Writer(source, shapes, snippets).document(f"d{number}", aggregates=share)
        for number, share in enumerate(shares)
    ]
    silver = SilverSettings(deletes=source.choice(["hard", "soft"]))
    model = Model(shapes, snippets, silver, tiny=source.random() < 0.3)  # type: ignore[arg-type]
    return World(spark, str(path / "lake"), texts, model)


def random_changes(world: World, source: random.Random, windows: int, happenings: Sequence[str]) -> None:
    """Make some transactions, in one window of silver or several, with every possible event of rows.

    Args:
        world: the world whose rows change.
        source: the source of random numbers.
        windows: the largest number of silver's windows.
        happenings: events of whole tables, one in each transaction.
    """
    shop = world.shop
    for number in range(max(source.randint(1, windows), len(happenings))):
        for _ in range(source.randint(1, 8)):
            mutate(shop, source, most=6)
        name = source.choice(list(shop.shapes))
        happens = "" if number >= len(happenings) else happenings[number]
        if happens == "truncated":
            shop.truncate(name)
        if happens == "lost":
            shop.lose(name)
        if happens in {"lost", "taken again"}:
            shop.resnapshot(name)
        if source.random() < 0.4:
            shop.commit()
        else:
            shop.transaction()


def kill_silver(world: World) -> None:
    """Run a cycle of silver that ends before the record of its cut."""
    shop = world.shop
    shop.write()
    with pytest.raises(KilledError, match="silver"):
        shop.fold(shop.start_silver(Killed(world.lake)))
    shop.silver = shop.start_silver()


def kill_gold(world: World, source: random.Random) -> Iterable[str]:
    """Run a cycle of some or all documents that ends before the record of its cut; return which."""
    some = source.sample(world.documents, source.randint(1, len(world.documents)))
    with pytest.raises(KilledError, match="gold"):
        world.start_gold(some, Killed(world.lake)).cycle()
    world.gold = world.start_gold(world.documents)
    return [doc.name for doc in some]


def larger() -> Iterable[Any]:
    """Return larger worlds: the worlds of torture, or of the requested seeds."""
    value = os.environ.get("SMELT_SEEDS")
    if value is not None:
        return [(int(seed), LARGE) for seed in value.split(",")]
    return [pytest.param(seed, LARGE, marks=pytest.mark.torture) for seed in MORE_SEEDS]


@pytest.mark.parametrize(("seed", "size"), [(SEED, SMALL), *larger()])
def test_random_documents_over_random_tables(
    spark: SparkSession, tmp_path: Path, seed: int, size: Size
) -> None:
    source = random.Random(seed)
    world = random_world(spark, tmp_path, source, size.documents)
    if seed == SEED and size is SMALL:
        assert all(any(f'"{word}": ' in text for text in world.texts.values()) for word in EVERY)
    for _ in range(40):
        mutate(world.shop, source, most=6)
    world.shop.commit()
    happenings = {
        happening: source.randrange(size.rounds) for happening in ("truncated", "lost", "taken again")
    }
    gold_ends, silver_ends, upkeep = (source.randrange(size.rounds) for _ in range(3))
    unbuilt = set(world.names)
    for number in range(size.rounds):
        random_changes(
            world, source, size.windows, [happening for happening, at in happenings.items() if at == number]
        )
        if number == silver_ends:
            kill_silver(world)
            mutate(world.shop, source, most=6)
        if number == upkeep:
            list(Maintenance(spark, world.lake, world.control, retention=86400, documents=True).all_tables())
            mutate(world.shop, source, most=6)
        cut = world.shop.commit()
        if number == gold_ends:
            unbuilt -= set(kill_gold(world, source))
            mutate(world.shop, source, most=6)
            cut = world.shop.commit()
        world.cycle(cut, full=dict.fromkeys(unbuilt, "first build"))
        unbuilt = set()
        world.check()
    for doc in source.sample(world.documents, size.verified):
        assert verify(spark, world.lake, world.gold.built(doc.name)).equal, doc.name
    world.gold.cycle(rebuild=world.names)
    assert {run.changes for run in world.runs().values()} == {0}
    world.shop.silver.close()
