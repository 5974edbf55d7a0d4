"""The subjects of `smelt forget`: given keys in bronze's spelling, and whether their rows live.

A key has one spelling in bronze: PostgreSQL's text of the value, or its hash if a rule hashes the column. A
cast of PostgreSQL cuts texts, rounds numbers and times, and drops offsets without an error. So a value that
PostgreSQL would write in another way is refused: it could name another row.

While a rule came or went, bronze may have both spellings. `Subjects.others` has the spellings that bronze
must not have.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg

from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.rules import hashed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.store.erasure import Key
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable

CATCH_UP = "smelt run FILE --until-caught-up"


@dataclass(frozen=True, slots=True)
class Subjects:
    """The keys of the subjects."""

    # as bronze has them by the present rules, in the order of the call
    keys: tuple[Key, ...]
    # other spellings, from before or after a rule
    others: frozenset[Key]
    # texts of the keys in clear
    clear: frozenset[str]

    @property
    def texts(self) -> set[str]:
        """The texts of the keys in the lake and in clear."""
        return {text for key in self.keys for text in key} | self.clear


def given(values: Sequence[str]) -> list[str]:
    """Return the values of `--key`; a single `-` stands for the lines of standard input."""
    if list(values) != ["-"]:
        return list(values)
    # A text may be empty, or have other characters that end lines, for instance U+2028.
    text = sys.stdin.read()
    return text.removesuffix("\n").split("\n") if text else []


def subjects_of(pipeline: Pipeline, table: SilverTable, values: Sequence[str]) -> Subjects:
    """Return the subjects; refuse a row that lives at the source.

    Args:
        values: one value for each column of the key, of one subject after the other.

    Raises:
        ConfigurationError: ``erasure-key``: the values do not fit the table's key.
        DefiniteError: ``erasure-alive``.
    """
    width = len(table.key)
    if not width or not values or len(values) % width:
        raise _unfit(table, f"the key has {width} column(s), {len(values)} value(s) given")
    named = [tuple(values[start : start + width]) for start in range(0, len(values), width)]
    _require_dead(pipeline, table, named)
    rules = pipeline.source.rules
    hides = [rules.table(table.table).action(column) == "hash" for column in table.key]
    keys: dict[Key, None] = {}
    others: set[Key] = set()
    for key in named:
        both = [(text, hashed(text, rules.key)) if rules.key else (text,) for text in key]
        keys[tuple(pair[-1] if hide else pair[0] for pair, hide in zip(both, hides, strict=True))] = None
        others |= set(product(*both))
    clear = frozenset(text for key in named for text in key)
    return Subjects(tuple(keys), frozenset(others - set(keys)), clear)


def _require_dead(pipeline: Pipeline, table: SilverTable, named: Sequence[Key]) -> None:
    """Require keys in PostgreSQL's own spelling, of which none is a living row's key."""
    source, name = pipeline.source, table.table
    with connect(source) as connection, translated(source):
        require_own(connection, source, pipeline.lake_address(), pipeline.pipeline)
        found = connection.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod), relkind::text FROM pg_attribute "
            "JOIN pg_class ON pg_class.oid = attrelid "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [name.quoted],
        ).fetchall()
        types = {column: stated.replace("%", "%%") for column, stated, _ in found}
        if any(column not in types for column in table.key):
            raise gone(name, "the source no longer has the table, or a column of its key")
        kinds = [types[column] for column in table.key]
        for key in named:
            _require_texts(connection, table, kinds, key)
        same = " AND ".join(
            f"{_quoted(column)} = %s::{stated}" for column, stated in zip(table.key, kinds, strict=True)
        )
        # A table that inherits may have a row with the same key; silver has the parent's own rows.
        only = "" if found[0][2] == "p" else "ONLY "
        query = f"SELECT EXISTS (SELECT FROM {only}{name.quoted.replace('%', '%%')} WHERE {same})".encode()
        # A row that a policy hides lives nevertheless: PostgreSQL then raises an error.
        connection.execute("SET row_security = off")
        for number, key in enumerate(named, 1):
            row = connection.execute(query, list(key)).fetchone()
            if row is not None and row[0]:
                raise alive(name, f"the row of key {number} of {len(named)}", f"at {address_of(source)}")


def _require_texts(
    connection: psycopg.Connection[Any], table: SilverTable, types: Sequence[str], key: Key
) -> None:
    """Require values as PostgreSQL itself writes them.

    Raises:
        ConfigurationError: ``erasure-key``.
    """
    try:
        casts = ", ".join(f"%s::{stated}" for stated in types)
        cursor = connection.execute(f"SELECT {casts}".encode(), list(key))
    except (psycopg.DataError, psycopg.IntegrityError):  # not of the type, or refused by a domain
        raise _unfit(table, "the source cannot read the key") from None
    result = cursor.pgresult
    assert result is not None  # noqa: S101 - the statement returns a row
    if [(result.get_value(0, index) or b"").decode() for index in range(len(key))] != list(key):
        raise _unfit(table, "PostgreSQL writes a given value in another way")


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""').replace("%", "%%") + '"'


def _unfit(table: SilverTable, reason: str) -> ConfigurationError:
    columns = ", ".join(f"{column} {table.column(column).type.name}" for column in table.key)
    return ConfigurationError(
        f"{reason}: {table.table} has the key ({columns})",
        code="erasure-key",
        where=str(table.table),
        remedy="give one --key for each column of the key, in this order, and so on for each further row; "
        "each value as `psql -At` prints it with PGTZ=UTC",
    )


def gone(table: TableName, reason: str) -> DefiniteError:
    """Return ``erasure-table``."""
    return DefiniteError(
        f"{reason}, so no cut of silver can state that its rows are gone",
        code="erasure-table",
        where=str(table),
        remedy="select the table again if the source has it; otherwise start a new lake, and remove this "
        "lake",
    )


def alive(table: TableName, row: str, place: str) -> DefiniteError:
    """Return ``erasure-alive``."""
    return DefiniteError(
        f"{row} still exists {place}, so the next snapshot would bring it back",
        code="erasure-alive",
        where=str(table),
        remedy=f"delete the row at the source, then: {CATCH_UP}; then run this command again",
    )
