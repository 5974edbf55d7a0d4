"""Filters as PostgreSQL's SQL: a translation has the same meaning, and a doubtful filter is refused."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.gold.expressions.expressions import parse_expression
from deltasmelt.gold.reference.conditions import UntranslatableError, condition
from deltasmelt.silver.schema.catalog import SilverTable, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, UUID

MOOD = PgType("enum", "mood", schema="public", labels=("sad", "ok"))
KINDS = {
    "id": INT, "n": NUMERIC, "name": TEXT, "u": UUID, "m": MOOD, "b": PgType("base", "bool"),
    "c": PgType("base", "bpchar", typmod=8), "d": PgType("base", "date"), "t": PgType("base", "timestamptz"),
    "ip": PgType("base", "inet"),
}  # fmt: skip


def table() -> SilverTable:
    columns = [Column(name, place, kind, kind.name) for place, (name, kind) in enumerate(KINDS.items(), 1)]
    relation = Relation(1, TableName("public", "rows"), tuple(columns), ("id",), "d", Lsn(0))
    return silver_table(relation, SilverSettings())


def translated(text: str) -> str:
    rows = table()
    columns = {column.name: column.spark_type for column in rows.columns}
    return condition(parse_expression(text, columns, "public.rows"), rows, "t")


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("name = 'a'", """((t."name" COLLATE "C") = 'a')"""),
        ("NAME <> 'it''s'", """((t."name" COLLATE "C") <> 'it''s')"""),
        (r"name = 'a\'b'", """((t."name" COLLATE "C") = 'a''b')"""),
        ("id + 1 * 2 >= n", """((t."id"::numeric + (1::numeric * 2::numeric)::numeric) >= t."n")"""),
        ("n * 2 > 1", """((t."n"::numeric * 2::numeric) > 1)"""),
        ("id % 2 = id div 3", """((t."id"::numeric % 2::numeric) = div(t."id"::numeric, 3::numeric))"""),
        ("id || name = '1a'", """(((t."id"::text || (t."name" COLLATE "C")::text) COLLATE "C") = '1a')"""),
        ("case when b then id else 2 end = 2", """((CASE WHEN t."b" THEN t."id" ELSE 2 END) = 2)"""),
        ("case id when 1 then name end = 'a'",
         """((CASE WHEN (t."id" = 1) THEN (t."name" COLLATE "C") ELSE NULL END) = 'a')"""),
        ("greatest(n, 1) = least(id, n)", """(greatest(t."n", 1) = least(t."id", t."n"))"""),
        ("b and not id = 1", """(t."b" AND (NOT (t."id" = 1)))"""),
        ("id = 1 or id = 2 and b", """((t."id" = 1) OR ((t."id" = 2) AND t."b"))"""),
        ("id not in (1, 2)", """(t."id" NOT IN (1, 2))"""),
        ("d between '2024-01-01' and '2024-12-31'",
         """(((t."d" >= '2024-01-01') AND (t."d" <= '2024-12-31')))"""),
        ("ip is not null", """(t."ip" IS DISTINCT FROM NULL)"""),
        ("name is null", """((t."name" COLLATE "C") IS NOT DISTINCT FROM NULL)"""),
        ("m = 'ok'", """(t."m" = 'ok')"""),
        ("coalesce(n, 0) > 1.5", """(coalesce(t."n", 0) > 1.5)"""),
        ("c like 'a%'", """((t."c" COLLATE "C") LIKE 'a%')"""),
        ("ip = '10.0.0.1'", """(t."ip" = '10.0.0.1')"""),
        ("b is not true", """(t."b" IS NOT TRUE)"""),
        ("id = null", "(NULL::boolean)"),
        ("t >= '2024-01-01 00:00:00'", """(t."t" >= '2024-01-01 00:00:00')"""),
    ],
)  # fmt: skip
def test_a_filter_that_means_the_same_is_translated(text: str, sql: str) -> None:
    assert translated(text) == sql


@pytest.mark.parametrize(
    "text",
    [
        "lower(name) = 'a'",  # of letters beyond ASCII, by the server's collation
        "m = 'unknown'",
        "u = 'no uuid'",
        "d > '2024'",
        "name like 'a\\\\_b'",
        "name rlike 'a'",
        "n || 'x' = 'ax'",
        "id <=> 1",
        "id",
        "name",
    ],
)
def test_what_is_not_certain_is_not_translated(text: str) -> None:
    with pytest.raises(UntranslatableError):
        translated(text)
