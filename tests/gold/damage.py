"""A user writes to gold's tables; `smelt verify` and `smelt rebuild gold` find and repair the damage."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable

from deltasmelt.gold.verify.verify import Verification, verify
from deltasmelt.pipelines.commands.rebuild import run_rebuild
from deltasmelt.pipelines.terminal.output import Output
from tests.gold.world import pipeline_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lake.control import Cut, Run
    from tests.gold.world import Documents, World


@dataclass(frozen=True)
class Damage:
    """Findings in tables that a user wrote to, and the result of `smelt rebuild gold`.

    Attributes:
        cut: gold's cut before the rebuild.
        before: the documents before the damage.
        found: the findings of `smelt verify`.
        said: the output of the rebuild.
        cut_after: gold's cut after the rebuild.
        runs: of the rebuild.
        after: the documents after the rebuild.
    """

    cut: Cut
    before: dict[str, Documents]
    found: dict[str, Verification]
    said: str
    cut_after: Cut
    runs: dict[str, Run]
    after: dict[str, Documents]


# One line is missing, one has another key, one exists twice, and one exists twice with two contents and the
# same hash.
DAMAGED_LINES: Final = """
INSERT OVERWRITE {table}
SELECT * FROM {table} WHERE NOT (order_id IN (1, 3) AND number = 1)
UNION ALL
SELECT number, 900 AS order_id, * EXCEPT (number, order_id) FROM {table} WHERE order_id = 3 AND number = 1
UNION ALL
SELECT * FROM {table} WHERE order_id = 2 AND number = 1
UNION ALL
SELECT number, order_id, -1.0 AS weight, * EXCEPT (number, order_id, weight)
FROM {table} WHERE order_id = 15 AND number = 1
"""
# Each country once: one has different nested values, the others a different key, hash or LSN.
DAMAGED_COUNTRIES: Final = """
UPDATE {table} SET
  people = if(_key.id <> 2, people, transform(
    people, p -> named_struct('email', p.email, 'bought', transform(p.bought, b -> b + 1))
  )),
  _key = if(_key.id = 6, named_struct('id', 77S), _key),
  _content_hash = CASE _key.id WHEN 4 THEN repeat('0', 64) WHEN 7 THEN NULL ELSE _content_hash END,
  _commit_lsn = if(_key.id = 5, 999999999, _commit_lsn)
WHERE _key.id IN (2, 4, 5, 6, 7)
"""


def verified(world: World, name: str, sample: float | None = None, *, most: int = 5) -> Verification:
    """Return the findings of `smelt verify` for one document."""
    return verify(world.spark, world.lake, world.gold.built(name), sample=sample, most=most)


def damaged_and_rebuilt(world: World, folder: Path) -> Damage:
    """Damage the documents `parcel_line` and `country`, verify, and rebuild as `smelt verify` advises."""
    before = {name: world.table(name) for name in world.names}
    cut = world.control.latest_cut("gold")
    assert cut is not None
    for name, statement in (("parcel_line", DAMAGED_LINES), ("country", DAMAGED_COUNTRIES)):
        world.spark.sql(statement.format(table=world.lake.sql("gold", name)))
    tables = {name: DeltaTable(world.lake.uri("gold", name)).version() for name in world.names}
    # `smelt verify` reads the version in the newest cut.
    world.control.record_cut(replace(cut, tables=tables, recorded_at=None))
    verdicts = {name: verified(world, name, most=10) for name in world.names}
    world.control.record_cut(replace(cut, recorded_at=None))
    with redirect_stdout(StringIO()) as printed:
        run_rebuild(pipeline_of(world, folder), "gold", None, Output())
    cut_after = world.control.latest_cut("gold")
    assert cut_after is not None
    after = {name: world.table(name) for name in world.names}
    world.gold = world.start_gold(world.documents)
    return Damage(cut, before, verdicts, printed.getvalue(), cut_after, world.runs(), after)
