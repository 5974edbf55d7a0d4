"""What silver must hold, said independently of silver: PostgreSQL's rows as Python values, from PostgreSQL's
own text.

One value is a pair: what the Spark column holds, and PostgreSQL's text where the Spark type cannot hold the
value (else None).
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from bronze.identifiers import TableName

Held: TypeAlias = tuple[Any, str | None]
Row: TypeAlias = dict[str, Held]


def source_rows(connection: Connection[Any], table: TableName) -> list[Row]:
    """Every row of a source table, generated columns left out."""
    columns = connection.execute(
        "SELECT attname, t.typname, t.typtype, coalesce(b.typname, t.typname), atttypmod FROM pg_attribute "
        "JOIN pg_type t ON t.oid = atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' "
        "ORDER BY attnum",
        [table.quoted],
    ).fetchall()
    cells = sql.SQL(", ").join(
        # format() uses the type's output function, as the stream does; a cast drops char(n)'s padding and
        # adds a mask to inet. IS NULL would also be true for a composite of NULLs.
        sql.SQL("CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END, to_jsonb({0})::text").format(
            sql.Identifier(name)
        )
        for name, *_ in columns
    )
    name = sql.Identifier(table.schema, table.name)
    rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(cells, name)).fetchall()
    return [
        {
            column: _held(_kind(typname, typtype, base, typmod), row[2 * i], row[2 * i + 1])
            for i, (column, typname, typtype, base, typmod) in enumerate(columns)
        }
        for row in rows
    ]


def _kind(typname: str, typtype: str, base: str, typmod: int) -> str:
    if typtype == "c":
        return "composite"
    if typtype == "r":
        return "range"
    if base == "numeric" and typtype == "b" and typmod == -1:
        return "text"  # a numeric without precision has no Spark type that holds it
    return base


def _held(kind: str, text: str | None, as_json: str | None) -> Held:
    if text is None:
        return None, None
    if kind.startswith("_") and text.startswith("{{"):
        return None, text
    if kind.startswith("_") or kind == "composite":
        return json.loads(as_json or "null"), None
    try:
        return _READERS.get(kind, str)(text), None
    except (ValueError, OverflowError):
        return None, text


def _range(text: str) -> dict[str, Any]:
    if text == "empty":
        return {"lower": None, "upper": None, "lower_inc": False, "upper_inc": False, "empty": True}
    lower, upper = text[1:-1].split(",")
    return {
        "lower": int(lower) if lower else None,
        "upper": int(upper) if upper else None,
        "lower_inc": text[0] == "[",
        "upper_inc": text[-1] == "]",
        "empty": False,
    }


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


def _float4(text: str) -> float:
    """What Python has of Spark's FLOAT: the nearest number of four bytes."""
    value: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return value


_READERS: dict[str, Callable[[str], Any]] = {
    "bool": lambda text: text in {"t", "true"},
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _float4,
    "float8": float,
    "numeric": _decimal,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": lambda text: datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None),
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
    "range": _range,
}
