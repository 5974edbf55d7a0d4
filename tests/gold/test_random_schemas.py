"""Random documents over random tables, through random histories: incremental = full = plain Python.

Each world has tables, documents and a history of its own. Gold runs after some commits of several, and is
ended at times where a crash would end it: after the commits of some documents, or of all, before the cut that
names them is recorded. `SMELT_SEEDS` gives other seeds: ``SMELT_SEEDS=100,101``.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from bronze.control_tables import ControlTables
from gold.verify import verify
from tests.gold.random_documents import Writer, random_shapes
from tests.gold.world import Model, World, mutate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bronze.control import Cut

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
    texts = [Writer(source, shapes, snippets).document(f"d{number}") for number in range(DOCUMENTS)]
    soft = [name for name in shapes if source.random() < 0.3]
    return World(spark, str(path / "lake"), texts, Model(shapes, soft, snippets))  # type: ignore[arg-type]


def random_changes(world: World, source: random.Random) -> None:
    """Some commits, with everything that can happen to rows."""
    for _ in range(source.randint(1, 3)):
        for _ in range(source.randint(1, 8)):
            mutate(world.shop, source, most=6)
        if source.random() < 0.1:
            world.shop.truncate(source.choice(list(world.shop.shapes)))
        world.shop.commit()


def kill_a_cycle(world: World, source: random.Random) -> None:
    """A cycle of some documents, or of all, that ends before its cut is recorded."""
    some = source.sample(world.documents, source.randint(1, len(world.documents)))
    with pytest.raises(KilledError):
        world.start_gold(some, Killed(world.lake)).cycle()
    world.gold = world.start_gold(world.documents)


@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.torture) for seed in MORE_SEEDS)]
)
def test_random_documents_over_random_tables(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    world = random_world(spark, tmp_path, source)
    for _ in range(40):
        mutate(world.shop, source, most=6)
    for number in range(ROUNDS):
        random_changes(world, source)
        if source.random() < 0.4:
            kill_a_cycle(world, source)
        world.cycle(world.shop.commit())
        world.check()
        modes = {name: run.mode for name, run in world.runs().items()}
        assert number == 0 or "full" not in modes.values(), modes
    for doc in world.documents:
        assert verify(spark, world.lake, world.gold.built(doc.name)).equal, doc.name
    world.gold.cycle(rebuild=[doc.name for doc in world.documents])
    assert {run.changes for run in world.runs().values()} == {0}
