"""Documents over columns of every type equal the documents that PostgreSQL computes from the same rows.

The tables of a world have every type among them. Documents order, join, compare and aggregate by all types. A
document that `smelt check` refuses is right. A document that gold accepts must equal the server's document,
and the server must be able to compute the document. ``SMELT_SEEDS=7,8`` gives other worlds. Worlds with odd
seeds use a server with citext and with collations under which different texts are equal. Worlds with even
seeds use a server with vector.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.silver.spark.semantics import PINNED
from deltasmelt.silver.spark.tuning import settings
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import reading
from tests.gold.postgres_world import PostgresWorld, Tally, every_type, values_of
from tests.gold.random_documents import EveryType
from tests.installations import installation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.postgres

EXACT = "spark.sql.decimalOperations.allowPrecisionLoss"
SEED = 1
BATCH = 12
"""Number of documents in one statement of Spark."""

SAMPLE = 4
"""Number of documents of the smallest world."""

CONDITIONS, MANY = 60, 600
"""Number of conditions per table and statement of Spark: of the smallest world, and of larger worlds."""

SECONDS = 60.0
"""Seconds for each larger world; five larger worlds are torture."""


def larger() -> Iterable[Any]:
    """Return worlds of torture, or of the requested seeds."""
    value = os.environ.get("SMELT_SEEDS")
    if value is not None:
        return [(int(seed), SECONDS) for seed in value.split(",")]
    return [pytest.param(seed, SECONDS, marks=pytest.mark.torture) for seed in range(100, 105)]


def documents(
    world: PostgresWorld, writer: EveryType, source: random.Random, tally: Tally, *, size: int = BATCH
) -> Iterator[list[str]]:
    """Yield batches of documents whose fields gold accepts, each field tried alone before."""
    batch: list[str] = []
    for number in range(1_000_000):
        root = source.choice(list(world.shapes))
        tried = [writer.field(root) for _ in range(4)]
        accepted = [entry for entry in tried if world.accepted([writer.over("tried", root, [entry])], tally)]
        if accepted:
            batch.append(writer.over(f"d{number}", root, accepted[:2]))
        if len(batch) == size:
            yield batch
            batch = []


def named(world: PostgresWorld, tally: Tally) -> list[str]:
    """Return documents with a map by each column whose values can be the names of a map."""
    fields_named = []
    for number, (table, (columns, _)) in enumerate(world.shapes.items()):
        document: dict[str, Any] = {"document": f"named{number}", "root": table}
        maps = [
            {f"by_{column}": {"many": table, "on": {"j1": "j1"}, "key_by": column, "values": "r"}}
            for column in columns
        ]
        accepted = [
            map_field
            for map_field in maps
            if world.accepted([json.dumps({**document, "fields": [map_field]})], tally)
        ]
        fields_named.append(json.dumps({**document, "fields": accepted}))
    return fields_named


def check(tally: Tally) -> None:
    """Check that PostgreSQL agrees with everything that gold accepts, and that each refusal has a remedy."""
    assert not tally.wrong, "\n".join(f"{wrong}\n  {definition}" for wrong, definition in tally.wrong)
    assert not tally.unanswered, "\n".join(f"{reason}: {query}" for query, reason in tally.unanswered.items())
    phrases = (";", "cannot be", "write ")
    bare = [message for message in tally.refused if not any(phrase in message for phrase in phrases)]
    assert not bare, "a refusal says what to do instead"


@pytest.fixture(scope="module")
def servers(server_dsn: str) -> Iterator[tuple[str, str]]:
    """Return DSNs of the packaged server, and of a server with the extension citext and collations of ICU."""
    with installation(14) as installed, EmbeddedServer(version=18, installation=installed) as server:
        yield server_dsn, server.dsn()


@pytest.mark.parametrize("lettered", [False, True], ids=["with vector", "with citext and collations"])
def test_what_gold_takes_postgresql_can_compute(servers: tuple[str, str], *, lettered: bool) -> None:
    """Without Spark, so that many documents are affordable."""
    source, tally = random.Random(SEED), Tally()
    server_dsn = servers[lettered]
    dsn = make_database(server_dsn)
    values = values_of(dsn)
    world = PostgresWorld(dsn, every_type(source, values), source)
    writer = EveryType(source, world.shapes, values)
    answers = 0
    for _, batch in zip(range(12), documents(world, writer, source, tally), strict=False):
        answers += sum(len(texts_answered) for _, texts_answered in world.answered(batch, tally))
    drop_database(server_dsn, dsn)
    assert answers > 500
    check(tally)
    assert lettered == any("its collation loose is not deterministic" in message for message in tally.refused)


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "seconds"), [(SEED, 0.0), *larger()])
def test_documents_are_those_of_postgresql(
    spark: SparkSession, servers: tuple[str, str], tmp_path: Path, seed: int, seconds: float
) -> None:
    source, tally = random.Random(seed), Tally()
    server_dsn = servers[seed % 2]
    dsn = make_database(server_dsn)
    values = values_of(dsn)
    world = PostgresWorld(dsn, every_type(source, values), source)
    writer = EveryType(source, world.shapes, values)
    with reading(spark), settings(spark, {EXACT: PINNED[EXACT]}):
        world.load(spark, tmp_path)
        conditions_each = MANY if seconds else CONDITIONS
        conditions_asked = {
            name: dict.fromkeys(writer.condition(name) for _ in range(conditions_each))
            for name in world.shapes
        }
        world.compare_conditions(spark, conditions_asked, tally)
        world.compare(spark, named(world, tally), tally, restricted=True)
        until, size = time.monotonic() + seconds, BATCH if seconds else SAMPLE
        for number, batch in enumerate(documents(world, writer, source, tally, size=size)):
            world.compare(spark, batch, tally, restricted=number % 2 == 0)
            if time.monotonic() > until:
                break
    drop_database(server_dsn, dsn)
    assert tally.conditions > CONDITIONS / 2
    assert tally.compared > 2
    check(tally)
