"""Whether silver's tables hold what PostgreSQL's do, by content: each side counts on its own. Pure: SQL out.

Each side makes one text of a row's values, in a form that both can write, and takes 60 bits of its MD5 as a
number. Sum and count of these are compared. So one altered, missing, surplus or doubled row shows, whatever
the size of the table, and no row leaves its side.

Each value comes after its length, and a NULL is a dash, so that no two rows have one text. Forms that differ
are made alike: times are microseconds since 1970, arrays are JSON, a `double precision` has
six decimals. Other types have the text that PostgreSQL sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.identifiers import quote_identifier
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bronze.identifiers import TableName
    from silver.schema.catalog import SilverTable

_PLAIN: Final = frozenset(
    ("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT")
)  # whose text is the same on both sides


@dataclass(frozen=True, slots=True)
class Content:
    """A table's content on one side.

    Attributes:
        rows: how many.
        digest: sum of the rows' digests; 0 of none.
    """

    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A table on both sides."""

    table: TableName
    source: Content
    silver: Content

    @property
    def equal(self) -> bool:
        """Whether the contents are."""
        return self.source == self.silver


def source_query(table: SilverTable) -> str:
    """PostgreSQL's statement: count and digest of a table.

    Raises:
        ValueError: a column's type has no form that both sides write alike.
    """
    forms = (_in_postgres(quote_identifier(column.name), column.spark_type) for column in table.columns)
    text = " || ".join(f"coalesce(length({form}) || ':' || {form}, '-')" for form in forms)
    digest = f"('x' || substr(md5(convert_to({text}, 'UTF8')), 1, 15))::bit(60)::bigint::numeric"
    return f"SELECT count(*), coalesce(sum({digest}), 0) FROM {table.table.quoted}"


def silver_query(tables: Sequence[SilverTable]) -> str:
    """Spark's statement: `place`, `rows` and `digest` of each table, by its place in the sequence."""
    parts = []
    for place, table in enumerate(tables):
        forms = (_in_spark(quote(column.name), column.spark_type) for column in table.columns)
        text = ", ".join(f"coalesce(concat(length({form}), ':', {form}), '-')" for form in forms)
        digest = f"CAST(conv(substr(md5(concat({text})), 1, 15), 16, 10) AS DECIMAL(20, 0))"
        parts.append(
            f"SELECT {place} AS place, count(*) AS rows, coalesce(sum({digest}), 0) AS digest "
            f"FROM {quote('silver', table.name)}"
        )
    return " UNION ALL ".join(parts)


def _in_postgres(column: str, spark_type: str) -> str:
    if spark_type == "DATE":
        return f"to_char({column}, 'YYYY-MM-DD')"
    if spark_type in _PLAIN or spark_type.startswith("DECIMAL"):
        return f"{column}::text"
    if spark_type.startswith("TIMESTAMP"):
        return f"(extract(epoch FROM {column}) * 1000000)::bigint::text"
    if spark_type == "DOUBLE":
        return f"round({column}::numeric, 6)::text"
    if spark_type.startswith("ARRAY"):
        return f"array_to_json({column})::text"
    raise ValueError(f"{spark_type} is not compared")


def _in_spark(column: str, spark_type: str) -> str:
    if spark_type == "TIMESTAMP_NTZ":
        return f"CAST(unix_micros(CAST({column} AS TIMESTAMP)) AS STRING)"
    if spark_type == "TIMESTAMP":
        return f"CAST(unix_micros({column}) AS STRING)"
    if spark_type == "DOUBLE":
        return f"CAST(CAST({column} AS DECIMAL(38, 6)) AS STRING)"
    if spark_type.startswith("ARRAY"):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"
