"""Random documents over random tables, through random histories: incremental = full = plain Python.

Each world has tables, documents and a history of its own; every kind of aggregate is in each. Rows go through
real bronze and silver; tables are emptied and taken again, also with changes that bronze lacks, and their
files are joined and purged. Gold runs after one or several cuts of silver. Silver and gold are ended where a
crash would end them: after the commits of some documents, or of all tables, before the cut that names them is
recorded. Every world has such an end of each, and each of what can happen to a table as a whole.

One small world is in every run, larger ones are torture. `SMELT_SEEDS` gives other seeds for larger ones:
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

pytestmark = pytest.mark.spark

SEED = 103
"""Of the small world: its few documents have `EVERY` verb and option among them. After gold's first build a
table is emptied, another lacks changes until it is copied again, silver is killed, and upkeep takes its turn.
"""
MORE_SEEDS = (1, *range(100, 112))
EVERY = (
    "one", "many", "through", "recurse", "flatten", "key_by", "values", "limit", "cap", "order_by", "where",
    "object", *AGGREGATES,
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How large a world is.

    Attributes:
        documents: how many, over all of which the aggregates are spread.
        rounds: of silver and gold.
        windows: of silver in a round, at most.
        verified: how many documents `smelt verify` compares at the end. All are compared with plain Python
            after each round, and with a full build at the end.
    """

    documents: int
    rounds: int
    windows: int
    verified: int


SMALL = Size(documents=2, rounds=2, windows=2, verified=1)
LARGE = Size(documents=3, rounds=3, windows=3, verified=3)


class KilledError(Exception):
    """The end of a process."""


class Killed(ControlTables):
    """Control tables of a process that ends before it records a cut."""

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
    """Some transactions, in one window of silver or several, with everything that can happen to rows.

    Args:
        world: whose rows.
        source: of chance.
        windows: of silver, at most.
        happenings: what happens to whole tables, one in each transaction.
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


def larger() -> Iterable[Any]:
    """Larger worlds: those of torture, or those that are asked for."""
    given = os.environ.get("SMELT_SEEDS")
    if given is not None:
        return [(int(seed), LARGE) for seed in given.split(",")]
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
    happenings = {what: source.randrange(size.rounds) for what in ("truncated", "lost", "taken again")}
    gold_ends, silver_ends, upkeep = (source.randrange(size.rounds) for _ in range(3))
    unbuilt = set(world.names)
    for number in range(size.rounds):
        random_changes(world, source, size.windows, [what for what, at in happenings.items() if at == number])
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
