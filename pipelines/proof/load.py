"""Load limits of a comparison, and the compared sample.

A sample is a fraction of a table's keys: the same keys on both sides, and each time. Pure text.

The hash is MD5 of the key's text, computed alike by PostgreSQL and Spark. So the source sends only the
sample's rows, and an extra row in silver is found, if its key is in the sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.pipelines.bounds import CONNECTIONS, RATE, SAMPLE
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.rules import Rules
    from deltasmelt.bronze.shapes import Relation

_PARTS: Final = 1_000_000
_SAME_TEXT: Final = frozenset({"int2", "int4", "int8", "text", "varchar", "uuid"})
"""Types of PostgreSQL whose values have the same text in Spark; without ``char(n)``, which a cast trims."""
_SEPARATOR: Final = "|"


def has_sample(relation: Relation, types: Mapping[str, str], rules: Rules) -> bool:
    """Check whether the table's key allows a sample; otherwise all rows are read and compared."""
    # PostgreSQL has the clear text of a hashed key, and silver has the hash.
    if any(rules.table(relation.table).action(name) for name in relation.key):
        return False
    columns = [relation.column(name) for name in relation.key]
    # The hash needs keys with the same text on both sides, and an overridden type has another text.
    overridden = any(f"{relation.table}.{column.name}" in types for column in columns)
    return not overridden and all(
        column.type.kind == "base" and column.type.name in _SAME_TEXT for column in columns
    )


def in_postgres(relation: Relation, fraction: float) -> str:
    """Return the condition of the sample's rows at the source."""
    text = f" || '{_SEPARATOR}' || ".join(f"{quote_identifier(name)}::text" for name in relation.key)
    number = f"('x' || substr(md5(convert_to({text}, 'UTF8')), 1, 15))::bit(60)::bigint"
    return f"{number} % {_PARTS} < {_most(fraction)}"


def in_spark(relation: Relation, fraction: float) -> str:
    """Return the condition of the sample's rows in silver."""
    text = f", '{_SEPARATOR}', ".join(f"CAST({quote(name)} AS STRING)" for name in relation.key)
    number = f"CAST(conv(substr(md5(concat({text})), 1, 15), 16, 10) AS BIGINT)"
    return f"{number} % {_PARTS} < {_most(fraction)}"


def _most(fraction: float) -> int:
    return max(1, round(fraction * _PARTS))


@dataclass(frozen=True, slots=True)
class Load:
    """Load limits of a comparison at the server.

    Attributes:
        connections: number of parallel connections; None: as many as for snapshots (`snapshot.workers`).
        rate: bytes of text per second, over all connections; None for no limit.
        sample: compared fraction of keys; None for all keys.

    Raises:
        ConfigurationError: ``argument-invalid``: a value is out of bounds.
    """

    connections: int | None = None
    rate: int | None = None
    sample: float | None = None

    def __post_init__(self) -> None:
        limits = (
            ("max_connections", self.connections, CONNECTIONS),
            ("rate", self.rate, RATE),
            ("sample", self.sample, SAMPLE),
        )
        for name, value, bounds in limits:
            if value is not None:
                bounds.require(value, name)
