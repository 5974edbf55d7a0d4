"""Pairs of PostgreSQL's types that `ALTER TABLE … ALTER COLUMN … TYPE` accepts without USING."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import sql

from deltasmelt.bronze.catalog.types import resolve_types

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from deltasmelt.bronze.shapes import PgType

SCHEMA: Final = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN price AS numeric(8,2);
CREATE DOMAIN small AS int;
CREATE TYPE pair AS (x int, y numeric(5,-2));
"""
MADE: Final = (
    "numeric(5,2)", "numeric(7,2)", "numeric(7,4)", "numeric(5,-2)", "numeric(7,-2)", "numeric(36,-2)",
    "numeric(37,-2)", "numeric(2,5)", "numeric(3,5)", "numeric(7,0)", "numeric(22,2)", "numeric(38,0)",
    "numeric(39,0)", "numeric(10,40)", "numeric(1000,3)", "varchar(5)", "varchar(10)", "char(5)", "char(10)",
    "bit(3)", "bit(5)", "varbit(5)", "timestamp(0)", "timestamp(3)", "timestamptz(3)", "time(0)",
    "timetz(0)", "interval(0)", "interval year", "mood", "price", "small", "pair", "int[]", "bigint[]",
    "numeric(5,2)[]", "numeric(7,2)[]", "numeric(5,-2)[]", "text[]", "varchar(5)[]", "date[]", "timestamp[]",
    "mood[]", "price[]", "pair[]",
)  # fmt: skip
"""Types with modifiers, user-defined types, and arrays."""

VALUES: Final = (
    "1", "0", "-1", "12.5", "t", "NaN", "infinity", "2024-02-29", "2024-02-29 10:00:00.5", "0044-03-15 BC",
    "10:00", "10:00:00+02", "P1Y2DT3H", "sad", "(1,100)", "{1,NULL}", "{{1}}", "{}", "{1.5}", "{sad}",
    "empty", "[1,3)", "{[1,3)}", "[2024-01-01,2024-02-01)", "{[2024-01-01,2024-02-01)}", "101", "(1,2)",
    "((1,2),(3,4))",
    "[(1,2),(3,4)]", "<(1,2),3>", "{1,2,3}", "10.1.2.3", "10.1.0.0/16",
    "08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05", "0/16B3748", "pg_class", "now", "=", "=(integer,integer)",
    "now()", "english",
    '"C"', "public", "10:20:10,14", '{"a": 1}', "$.a", "<a>1</a>", "a & b",
    "0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f", "\\x00ff",
)  # fmt: skip
"""Texts; each type accepts the texts that it can read."""

_MOST_VALUES: Final = 3


class Kind(NamedTuple):
    """A type.

    Attributes:
        name: as SQL.
        type: the reader's resolution of the type.
    """

    name: str
    type: PgType


def kinds(connection: Connection[Any]) -> list[Kind]:
    """Return every built-in scalar type, and `MADE`, in a database with `SCHEMA`."""
    rows = connection.execute(
        "SELECT format_type(oid, NULL) FROM pg_type WHERE typtype IN ('b', 'r', 'm') AND typcategory <> 'A' "
        "AND typnamespace = 'pg_catalog'::regnamespace AND typname !~ '^_' ORDER BY 1"
    )
    names = [*(row[0] for row in rows), *MADE]
    connection.execute("CREATE TABLE every_kind (id int)")
    for name in names:
        connection.execute(f"ALTER TABLE every_kind ADD {sql_name(name)} {name}".encode())
    columns = connection.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute "
        "WHERE attrelid = 'every_kind'::regclass AND attnum > 1"
    ).fetchall()
    connection.execute("DROP TABLE every_kind")
    trees = resolve_types(connection, [oid for _, oid, _ in columns])
    return [Kind(name, trees.tree(oid, typmod)) for name, oid, typmod in columns]


def sql_name(kind: str) -> str:
    """Return a column's name for a type, or a pair of types."""
    return sql.Identifier(kind).as_string()


def pairs(connection: Connection[Any], every: Sequence[Kind]) -> dict[str, list[str]]:
    """Return, by type, the other types to which the server alters a column without USING."""
    castable: dict[str, list[str]] = {}
    for before in every:
        connection.execute(f"CREATE TEMP TABLE altered (c {before.name})".encode())
        for after in every:
            if before.name == after.name:
                continue
            try:
                with connection.transaction():
                    connection.execute(f"ALTER TABLE altered ALTER c TYPE {after.name}".encode())
                    castable.setdefault(before.name, []).append(after.name)
                    raise psycopg.Rollback
            except psycopg.Error:
                continue
        connection.execute("DROP TABLE altered")
    return castable


def lasting(connection: Connection[Any], before: str, afters: Sequence[str]) -> dict[str, list[str]]:
    """Return, by new type, up to three values of the old type with which the server alters the column."""
    lossless: dict[str, list[str]] = {after: [] for after in afters}
    for text in VALUES:
        statements = (
            f"CREATE TEMP TABLE tried (c {before}); INSERT INTO tried VALUES ({sql.quote(text)})",
            *(f"ALTER TABLE tried ALTER c TYPE {after}" for after in afters),
        )
        try:
            connection.execute(statements[0].encode())
        except psycopg.Error:
            continue
        for after, altered in zip(afters, statements[1:], strict=True):
            if len(lossless[after]) == _MOST_VALUES:
                continue
            try:
                with connection.transaction():
                    connection.execute(altered.encode())
                    lossless[after].append(text)
                    raise psycopg.Rollback
            except psycopg.Error:
                continue
        connection.execute("DROP TABLE tried")
    return lossless
