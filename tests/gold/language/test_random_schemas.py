"""Random documents over random tables, through random histories: incremental = full = plain Python.

Each world has tables, documents and a history of its own; every kind of aggregate is in each. Rows go through
real bronze and silver; tables are emptied and taken again, also with changes that bronze lacks, and their
files are joined and purged. Gold runs after one or several cuts of silver. Silver and gold are ended where a
crash would end them: after the commits of some documents, or of all tables, before the cut that names them is
recorded. Every world has such an end of each. `SMELT_SEEDS` gives other seeds: ``SMELT_SEEDS=100,101``.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from bronze.lake.control_tables import ControlTables
from gold.verify.verify import verify
from pipelines.runtime.maintenance import Maintenance
from silver.settings import SilverSettings
from tests.gold.random_documents import AGGREGATES, Writer, random_shapes
from tests.gold.world import Model, World, mutate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut

pytestmark = pytest.mark.spark

SEEDS = [int(seed) for seed in os.environ.get("SMELT_SEEDS", "1").split(",")]
MORE_SEEDS = range(100, 112)
DOCUMENTS = 3
ROUNDS = 3


class KilledError(Exception):
    """The end of a process."""


class Killed(ControlTables):
    """Control tables of a process that ends before it records a cut."""

    def record_cut(self, cut: Cut) -> None:
        raise KilledError(cut.layer)


def random_world(spark: SparkSession, path: Path, source: random.Random) -> World:
    snippets: dict[str, object] = {}
    shapes = random_shapes(source)
    functions = list(AGGREGATES)
    source.shuffle(functions)
    shares = [functions[number::DOCUMENTS] for number in range(DOCUMENTS)]
    texts = [
        Writer(source, shapes, snippets).document(f"d{number}", aggregates=share)
        for number, share in enumerate(shares)
    ]
    silver = SilverSettings(deletes=source.choice(["hard", "soft"]))
    model = Model(shapes, snippets, silver, tiny=source.random() < 0.3)  # type: ignore[arg-type]
    return World(spark, str(path / "lake"), texts, model)


def random_changes(world: World, source: random.Random) -> None:
    """Some transactions, in one window of silver or several, with everything that can happen to rows."""
    shop = world.shop
    for _ in range(source.randint(1, 3)):
        for _ in range(source.randint(1, 8)):
            mutate(shop, source, most=6)
        name = source.choice(list(shop.shapes))
        happens = source.random()
        if happens < 0.15:
            shop.truncate(name)
        elif happens < 0.3:
            shop.resnapshot(name)
        elif happens < 0.4:
            shop.lose(name)
            shop.resnapshot(name)
        if source.random() < 0.4:
            shop.commit()
        else:
            shop.transaction()


def kill_silver(world: World) -> None:
    """A cycle of silver that ends before its cut is recorded."""
    shop = world.shop
    shop.write()
    with pytest.raises(KilledError, match="silver"):
        shop.fold(shop.start_silver(Killed(world.lake)))
    shop.silver = shop.start_silver()


def kill_gold(world: World, source: random.Random) -> Iterable[str]:
    """A cycle of some documents, or of all, that ends before its cut is recorded; says which."""
    some = source.sample(world.documents, source.randint(1, len(world.documents)))
    with pytest.raises(KilledError, match="gold"):
        world.start_gold(some, Killed(world.lake)).cycle()
    world.gold = world.start_gold(world.documents)
    return [doc.name for doc in some]


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.torture) for seed in MORE_SEEDS)]
)
def test_random_documents_over_random_tables(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    world = random_world(spark, tmp_path, source)
    for _ in range(40):
        mutate(world.shop, source, most=6)
    world.shop.commit()
    gold_ends, silver_ends, upkeep = (source.randrange(ROUNDS) for _ in range(3))
    unbuilt = set(world.names)
    for number in range(ROUNDS):
        random_changes(world, source)
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
    for doc in world.documents:
        assert verify(spark, world.lake, world.gold.built(doc.name)).equal, doc.name
    world.gold.cycle(rebuild=world.names)
    assert {run.changes for run in world.runs().values()} == {0}
    world.shop.silver.close()
