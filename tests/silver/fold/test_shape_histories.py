"""Random histories of shapes from a real server, through the reader, to silver: equal value by value.

Every table has a separate history; all share one database and one run. In every second round a reader runs
while the tables change. Otherwise the reader runs afterwards, with a catalog ahead of everything in the
stream. `make test` plays a few of these histories in `test_shapes_within_transactions`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.bronze.running import Running
from tests.bronze.shape_histories import AWAY, History
from tests.fix_postgres import drop_database, make_database
from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.torture, pytest.mark.timeout(3000)]

SEED = 20261122


def play(world: RealSource, seed: int, *, tables: int, rounds: int) -> None:
    """Run histories of `tables` tables in `rounds` rounds."""
    rng = random.Random(seed)
    histories = [History(f"t{number}", random.Random(rng.random())) for number in range(tables)]
    for history in histories:
        world.play(*history.begin())
    world.read()
    world.fold()
    for round_ in range(rounds):
        played = {history.name: history.transactions() for history in histories}
        if round_ % 2:
            with Running(world.source, str(world.lake.path)) as running:
                for transactions in played.values():
                    world.play(*transactions)
                assert running.error is None
        else:
            for transactions in played.values():
                world.play(*transactions)
        world.read()
        world.fold()
        differences = world.differences(played)
        report = "\n\n".join(
            f"{name}: {text}\n  " + "\n  ".join(played[name]) for name, text in differences.items()
        )
        assert not differences, (
            f"seed {seed}, round {round_}, {len(differences)} of {len(played)} tables\n{report}"
        )
        assert world.errors() == {}


@pytest.mark.parametrize(("seed", "tables", "rounds"), [(SEED + number, 25, 4) for number in range(1, 11)])
def test_any_shapes_in_any_transactions(  # noqa: PLR0917
    spark: SparkSession, server_dsn: str, tmp_path: Path, seed: int, tables: int, rounds: int
) -> None:
    dsn = make_database(server_dsn)
    world = RealSource(spark, dsn, str(tmp_path / "lake"), exclude=[f"public.{AWAY}*"])
    try:
        play(world, seed, tables=tables, rounds=rounds)
    finally:
        world.close()
        drop_database(server_dsn, dsn)
