"""Test a change of a column's type, for every pair of types that a server has."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.retypes import same_text
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema.alter import steps, widens
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.fields import DeltaColumn
from deltasmelt.silver.schema.types import reading
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation
from tests.silver.retypes import SCHEMA, kinds

if TYPE_CHECKING:
    from tests.silver.retypes import Kind

pytestmark = pytest.mark.postgres

UNBOUNDED = {"DECIMAL(38,18)", "DECIMAL(38,3)"}
IN_PLACE = {
    "SMALLINT": {"INT", "BIGINT", "DOUBLE", "DECIMAL(22,2)", "DECIMAL(38,0)", *UNBOUNDED},
    "INT": {"BIGINT", "DOUBLE", "DECIMAL(22,2)", "DECIMAL(38,0)", *UNBOUNDED},
    "BIGINT": {"DECIMAL(22,2)", "DECIMAL(38,0)", *UNBOUNDED},
    "FLOAT": {"DOUBLE"},
    "DATE": {"TIMESTAMP_NTZ"},
    "DECIMAL(5,2)": {"DECIMAL(7,2)", "DECIMAL(8,2)", "DECIMAL(22,2)", "DECIMAL(7,4)", *UNBOUNDED},
    "DECIMAL(7,2)": {"DECIMAL(8,2)", "DECIMAL(22,2)", *UNBOUNDED},
    "DECIMAL(8,2)": {"DECIMAL(22,2)", *UNBOUNDED},
    "DECIMAL(7,4)": {"DECIMAL(38,18)"},
    "DECIMAL(5,5)": {"DECIMAL(38,18)"},
    "DECIMAL(7,0)": {"DECIMAL(9,0)", "DECIMAL(22,2)", "DECIMAL(38,0)", *UNBOUNDED},
    "DECIMAL(9,0)": {"DECIMAL(22,2)", "DECIMAL(38,0)", *UNBOUNDED},
    "DECIMAL(22,2)": UNBOUNDED,
    "DECIMAL(38,0)": set[str](),
    "DECIMAL(38,3)": set[str](),
    "DECIMAL(38,18)": set[str](),
}  # fmt: skip
"""For each existing type, the types to which Delta widens it; from Delta's table of type changes."""


@pytest.fixture(scope="module")
def every(server_dsn: str) -> list[Kind]:
    with (
        psycopg.connect(server_dsn, autocommit=True) as connection,
        connection.transaction(force_rollback=True),
    ):
        connection.execute("CREATE SCHEMA of_every_kind; SET LOCAL search_path = of_every_kind")
        connection.execute(SCHEMA)
        return kinds(connection)


def outcome(before: PgType, after: PgType) -> str:
    """Return ``same``, ``in place``, or ``copy``: only a copy changes the type; the error names the copy."""
    was, is_ = reading(before).ddl, reading(after).ddl
    table = silver_table(relation("t", [("id", INT), ("c", after)], ["id"], relation_id=1), SilverSettings())
    actual = [DeltaColumn("id", 1, "INT"), DeltaColumn("c", 2, was)]
    emptied = steps("t", table, actual, SilverSettings(), emptied=True)
    if was == is_:
        assert emptied == steps("t", table, actual, SilverSettings(), emptied=False) == []
        return "same"
    if widens(was, is_):
        assert emptied == steps("t", table, actual, SilverSettings(), emptied=False)
        assert emptied[-1] == f"ALTER TABLE t ALTER COLUMN `c` TYPE {is_}"
        return "in place"
    with pytest.raises(TableError, match=f"from {re.escape(was)} to {re.escape(is_)}") as caught:
        steps("t", table, actual, SilverSettings(), emptied=False)
    assert caught.value.remedy == "resnapshot the table: smelt snapshot FILE public.t"
    assert [
        statement for statement in emptied if "CLUSTER" not in statement and "PROPERTIES" not in statement
    ] == [
        "ALTER TABLE t DROP COLUMN `c`",
        f"ALTER TABLE t ADD COLUMNS (`c` {is_} COMMENT 'attribute 2' AFTER `id`)",
    ]
    return "copy"


def test_every_type_pair_is_equal_widened_or_copied(every: list[Kind]) -> None:
    pairs: dict[str, set[str]] = {}
    for before, after in itertools.permutations(every, 2):
        if outcome(before.type, after.type) == "in place":
            pairs.setdefault(reading(before.type).ddl, set()).add(reading(after.type).ddl)
    assert pairs == {name: wider for name, wider in IN_PLACE.items() if wider}
    assert {reading(kind.type).ddl for kind in every if "DECIMAL" in reading(kind.type).ddl[:7]} <= set(
        IN_PLACE
    )


def test_retype_without_requested_copy_needs_none(every: list[Kind]) -> None:
    wrong = [
        (before.name, after.name)
        for before, after in itertools.permutations(every, 2)
        if same_text(before.type, after.type) and outcome(before.type, after.type) == "copy"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("precision", "scale", "ddl"),
    [
        (5, -2, "DECIMAL(7,0)"), (36, -2, "DECIMAL(38,0)"), (37, -2, "DECIMAL(38,0)"),
        (1, -1000, "DECIMAL(38,0)"), (2, 5, "DECIMAL(5,5)"), (38, 38, "DECIMAL(38,38)"),
        (2, 39, "DECIMAL(38,18)"), (38, 0, "DECIMAL(38,0)"), (39, 0, "DECIMAL(38,0)"),
        (39, 17, "DECIMAL(38,17)"), (60, 40, "DECIMAL(38,18)"), (1, 0, "DECIMAL(1,0)"),
    ],
)  # fmt: skip
def test_a_numerics_digits(precision: int, scale: int, ddl: str) -> None:
    plain = PgType("base", "numeric", typmod=(precision << 16 | scale & 0x7FF) + 4)
    assert reading(plain).ddl == ddl
    assert reading(PgType("array", "_numeric", element=plain)).ddl == f"ARRAY<{ddl}>"
    assert reading(PgType("domain", "d", element=plain, typmod=plain.typmod)).ddl == ddl
    assert reading(PgType("composite", "c", fields=(("x", plain),))).ddl == f"STRUCT<`x`: {ddl}>"


@pytest.mark.parametrize("type_", ["timestamp", "_timestamp", "tsrange"])
def test_first_timestamp_column_sets_property_beforehand(type_: str) -> None:
    plain = PgType("base", "timestamp")
    new = {
        "timestamp": plain,
        "_timestamp": PgType("array", "_timestamp", element=plain),
        "tsrange": PgType("range", "tsrange", element=plain),
    }[type_]
    shape = relation("t", [("id", INT), ("at", new), ("later", new)], ["id"], relation_id=1)
    table = silver_table(shape, SilverSettings())
    statement = "ALTER TABLE t SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    first = steps("t", table, [DeltaColumn("id", 1, "INT")], SilverSettings(), emptied=False)
    assert first.index(statement) == 0
    actual = [DeltaColumn("id", 1, "INT"), DeltaColumn("at", 2, reading(new).ddl)]
    assert statement not in steps("t", table, actual, SilverSettings(), emptied=False)
