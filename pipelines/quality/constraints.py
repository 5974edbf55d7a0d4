"""Present promises of the source's catalog: foreign keys, enum labels, NOT NULL.

The stream announces a table's shape only when its next row changes. The stream never announces a foreign key
or a new enum label. So each run with access to the source queries the catalog once. The lake keeps the answer
(`quality.constraints`, one row) for runs without access to the source.

Plain SQL on pg_catalog. Columns of newer servers alone (``conenforced``, ``conperiod``: PostgreSQL 18) are
read through ``to_jsonb``, where an older server's row has no such key.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import CommitFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import LiteralString

    from psycopg import Connection
    from psycopg.rows import TupleRow

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.rules import Rules

CONSTRAINTS: Final = "constraints"

CONSTRAINTS_SCHEMA: Final = pa.schema(
    [pa.field("read_at", pa.timestamp("us", tz="UTC")), pa.field("constraints", pa.string())]
)
"""`quality.constraints`: one row with the catalog's last answer, as JSON of `Constraints`."""

_FOREIGN_KEYS: Final[LiteralString] = """
SELECT con.conname::text,
       child_schema.nspname::text,
       child.relname::text,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
        FROM unnest(con.conkey) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute AS a ON a.attrelid = con.conrelid AND a.attnum = k.attnum),
       parent_schema.nspname::text,
       parent.relname::text,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
        FROM unnest(con.confkey) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute AS a ON a.attrelid = con.confrelid AND a.attnum = k.attnum),
       (SELECT array_agg(coalesce(base.typname, t.typname)::text ORDER BY k.position)
        FROM unnest(con.conkey) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute AS a ON a.attrelid = con.conrelid AND a.attnum = k.attnum
        JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_type AS base ON base.oid = nullif(t.typbasetype, 0)),
       (SELECT array_agg(coalesce(base.typname, t.typname)::text ORDER BY k.position)
        FROM unnest(con.confkey) WITH ORDINALITY AS k (attnum, position)
        JOIN pg_attribute AS a ON a.attrelid = con.confrelid AND a.attnum = k.attnum
        JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_type AS base ON base.oid = nullif(t.typbasetype, 0)),
       CASE
           WHEN NOT con.convalidated THEN 'NOT VALID: PostgreSQL has not checked its older rows'
           WHEN (to_jsonb(con) ->> 'conenforced')::boolean IS FALSE THEN 'NOT ENFORCED'
           WHEN (to_jsonb(con) ->> 'conperiod')::boolean THEN 'it refers to a PERIOD'
           WHEN EXISTS (
               SELECT FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
               WHERE a.attrelid = con.conrelid AND a.attnum = ANY (con.conkey) AND NOT c.collisdeterministic
           ) THEN 'its collation takes different texts for equal'
       END,
       root_schema.nspname::text,
       root.relname::text,
       (SELECT array_agg(relid::bigint) FROM pg_partition_tree(child.oid) WHERE isleaf),
       (SELECT array_agg(relid::bigint) FROM pg_partition_tree(root.oid) WHERE isleaf)
FROM pg_constraint AS con
JOIN pg_class AS child ON child.oid = con.conrelid
JOIN pg_namespace AS child_schema ON child_schema.oid = child.relnamespace
JOIN pg_class AS parent ON parent.oid = con.confrelid
JOIN pg_namespace AS parent_schema ON parent_schema.oid = parent.relnamespace
LEFT JOIN pg_class AS root ON child.relispartition AND root.oid = pg_partition_root(child.oid)
LEFT JOIN pg_namespace AS root_schema ON root_schema.oid = root.relnamespace
WHERE con.contype = 'f' AND con.conparentid = 0
ORDER BY 2, 3, 1
"""

_ENUM_LABELS: Final[LiteralString] = """
SELECT enumtypid::bigint, array_agg(enumlabel::text ORDER BY enumsortorder)
FROM pg_enum
GROUP BY enumtypid
"""

_NOT_NULL: Final[LiteralString] = """
SELECT a.attrelid::bigint, array_agg(a.attnum::integer ORDER BY a.attnum)
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE a.attnotnull AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%'
GROUP BY a.attrelid
"""


@dataclass(frozen=True, slots=True)
class ForeignKeyConstraint:
    """One foreign key of the source.

    Attributes:
        types: pg_type names of the child's columns, domains resolved to their base.
        weak: why PostgreSQL does not enforce the key for all rows, or compares differently; None otherwise.
        referenced_types: pg_type names of the parent's columns; empty in a record without them.
    """

    name: str
    child: TableName
    columns: tuple[str, ...]
    parent: TableName
    referenced: tuple[str, ...]
    types: tuple[str, ...]
    weak: str | None = None
    referenced_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraints:
    """The answer of the source's catalog at `read_at`.

    `enum_labels` are by the enum's pg_type.oid; `not_null` has the attnums of NOT NULL columns by
    pg_class.oid.
    """

    read_at: datetime
    foreign_keys: tuple[ForeignKeyConstraint, ...] = ()
    enum_labels: dict[int, tuple[str, ...]] = field(default_factory=dict)
    not_null: dict[int, frozenset[int]] = field(default_factory=dict)

    def under(self, rules: Rules) -> Constraints:
        """Return the constraints as the lake can hold them; a rule may take a foreign key's parents away."""
        keys = (replace(key, weak=key.weak or _ruled(key, rules)) for key in self.foreign_keys)
        return replace(self, foreign_keys=tuple(keys))

    def to_json(self) -> str:
        """Return everything except `read_at`, in a fixed order."""
        return json.dumps(
            {
                "foreign_keys": [asdict(key) for key in self.foreign_keys],
                "enum_labels": sorted(self.enum_labels.items()),
                "not_null": sorted((table, sorted(columns)) for table, columns in self.not_null.items()),
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str, read_at: datetime) -> Constraints:
        """Parse the result of `to_json`."""
        plain = json.loads(text)
        return cls(
            read_at,
            tuple(_foreign_key(key) for key in plain["foreign_keys"]),
            {oid: tuple(labels) for oid, labels in plain["enum_labels"]},
            {oid: frozenset(columns) for oid, columns in plain["not_null"]},
        )


def _ruled(key: ForeignKeyConstraint, rules: Rules) -> str | None:
    """Return why rows of the lake may break a foreign key; None if no rule concerns the key."""
    child, parent = rules.table(key.child), rules.table(key.parent)
    if parent.where:
        return f"source.where leaves rows of {key.parent} out"
    for own, referenced in zip(key.columns, key.referenced, strict=True):
        if child.action(own) != parent.action(referenced):
            return f"source.columns has different rules for {own} and {key.parent}.{referenced}"
    types = zip(key.columns, key.types, key.referenced_types or ("",) * len(key.types), strict=True)
    for own, of_child, of_parent in types:
        if child.action(own) is not None and not _equal_texts(of_child, of_parent):
            return f"equal values of {own} and its parent may have different texts, and so different hashes"
    return None


def _equal_texts(of_child: str, of_parent: str) -> bool:
    """Check whether equal values of two types always have equal texts."""
    return any({of_child, of_parent} <= types for types in _SAME_TEXTS) or (
        of_child == of_parent and of_child in _ONE_TEXT
    )


_SAME_TEXTS: Final = (frozenset({"int2", "int4", "int8"}), frozenset({"text", "varchar"}))
"""Groups of types whose equal values have equal texts."""
_ONE_TEXT: Final = frozenset({"bool", "date", "macaddr", "name", "oid", "timestamp", "timestamptz", "uuid"})
"""Types with one text for each value; not char(n), citext, numbers with fractions, intervals and JSON."""


def _foreign_key(plain: dict[str, Any]) -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        plain["name"],
        TableName(**plain["child"]),
        tuple(plain["columns"]),
        TableName(**plain["parent"]),
        tuple(plain["referenced"]),
        tuple(plain["types"]),
        plain["weak"],
        tuple(plain.get("referenced_types", ())),
    )


_Pairs: TypeAlias = tuple[TableName, TableName, frozenset[tuple[str, str]]]
"""Child, parent, and the pairs of their columns."""


def _of_root(group: list[tuple[ForeignKeyConstraint, set[int], set[int]]]) -> Iterator[ForeignKeyConstraint]:
    """Yield the key that all partitions of a table have, each as a constraint of its own; else nothing."""
    keys, leaves, all_leaves = zip(*group, strict=True)
    if set().union(*leaves) == all_leaves[0]:
        yield replace(keys[0], weak=next((key.weak for key in keys if key.weak), None))


def read_constraints(connection: Connection[TupleRow]) -> Constraints:
    """Query the source's catalog; raise a psycopg.Error if the connection breaks."""
    keys: list[ForeignKeyConstraint] = []
    of_partitions: dict[_Pairs, list[tuple[ForeignKeyConstraint, set[int], set[int]]]] = defaultdict(list)
    for (
        name, child_schema, child, columns, parent_schema, parent, referenced, types, of_parent, weak,
        root_schema, root, leaves, all_leaves,
    ) in connection.execute(_FOREIGN_KEYS):  # fmt: skip
        table = TableName(child_schema, child) if root is None else TableName(root_schema, root)
        key = ForeignKeyConstraint(
            name, table, tuple(columns), TableName(parent_schema, parent), tuple(referenced), tuple(types),
            weak, tuple(of_parent),
        )  # fmt: skip
        if root is None:
            keys.append(key)
        else:
            pairs = table, key.parent, frozenset(zip(columns, referenced, strict=True))
            of_partitions[pairs].append((key, set(leaves or ()), set(all_leaves or ())))
    return Constraints(
        datetime.now(UTC),
        (*keys, *(key for group in of_partitions.values() for key in _of_root(group))),
        {oid: tuple(labels) for oid, labels in connection.execute(_ENUM_LABELS)},
        {oid: frozenset(columns) for oid, columns in connection.execute(_NOT_NULL)},
    )


def record_constraints(lake: Lake, constraints: Constraints) -> None:
    """Write the catalog's answer to the lake, unless the lake already has the same answer."""
    recorded = recorded_constraints(lake)
    text = constraints.to_json()
    if recorded is not None and recorded.to_json() == text:
        return
    row = pa.Table.from_pylist(
        [{"read_at": constraints.read_at, "constraints": text}], schema=CONSTRAINTS_SCHEMA
    )
    with suppress(CommitFailedError):  # another run recorded what it read at the same moment
        delta.overwrite(lake.uri("quality", CONSTRAINTS), row)


def recorded_constraints(lake: Lake) -> Constraints | None:
    """Return the catalog's last recorded answer; None without a record."""
    table = delta.open_table(lake.uri("quality", CONSTRAINTS))
    if table is None:
        return None
    batches = table.batches(CONSTRAINTS_SCHEMA.names)
    # A kill between the making of the catalog's table and the writing of its row leaves a table without a
    # row.
    row = next((row for batch in batches for row in batch.to_pylist()), None)
    return None if row is None else Constraints.from_json(row["constraints"], row["read_at"])
