"""Resolve PostgreSQL's types into `PgType` trees with all facts that decide the meaning of a value's text.

One recursive query follows the requested types to elements, base types, subtypes and attributes; a table with
forty types costs one round trip. `TypeTrees` then builds the trees in memory.

A true array is a type whose input function is ``array_in``. ``int2vector`` and ``oidvector`` also have an
element type and the array category, but print without braces: both are base types. The row type of a table is
an ordinary composite; the text of a value does not contain dropped attributes. Types change in place, and no
log entry reports the change. `TypeTrees.written` returns the traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.collations import CASING
from deltasmelt.bronze.shapes import PgType, TypeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

_KINDS: Final[dict[str, TypeKind]] = {
    "b": "base",
    "c": "composite",
    "d": "domain",
    "e": "enum",
    "r": "range",
    "m": "multirange",
    "p": "pseudo",
}

_TYPES_QUERY: Final = f"""
    WITH RECURSIVE reached (oid) AS (
        SELECT unnest(%(wanted)s::oid[])
        UNION
        SELECT next.oid
        FROM reached
        JOIN pg_type t ON t.oid = reached.oid
        CROSS JOIN LATERAL (
            SELECT t.typelem WHERE t.typinput = 'pg_catalog.array_in'::regproc
            UNION ALL
            SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL
            SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
            UNION ALL
            SELECT a.atttypid
            FROM pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        ) AS next (oid)
    )
    SELECT t.oid,
           t.typname,
           n.nspname,
           t.typtype::text,
           t.typinput = 'pg_catalog.array_in'::regproc,
           t.typelem,
           t.typbasetype,
           t.typtypmod,
           coalesce(e.typdelim, t.typdelim)::text,
           (SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)),
           ARRAY(SELECT l.enumlabel::text FROM pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder),
           ARRAY(SELECT l.oid::bigint FROM pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder),
           ARRAY(SELECT l.xmin::text::bigint FROM pg_enum l
                 WHERE l.enumtypid = t.oid ORDER BY l.enumsortorder),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY a.attnum),
           ARRAY(SELECT a.atttypid::bigint FROM pg_attribute a
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY a.attnum),
           ARRAY(SELECT a.atttypmod FROM pg_attribute a
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY a.attnum),
           ARRAY(SELECT a.attnum::int FROM pg_attribute a
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY a.attnum),
           t.typrelid,
           (SELECT c.relnatts::int FROM pg_class c WHERE t.typtype = 'c' AND c.oid = t.typrelid),
           ARRAY(SELECT coalesce(co.collname::text, '')
                 FROM pg_attribute a
                 LEFT JOIN pg_collation co ON co.oid = a.attcollation AND NOT co.collisdeterministic
                 WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 ORDER BY a.attnum),
           coalesce(CASE WHEN t.typname = 'citext' THEN {CASING} END, '')
    FROM reached
    JOIN pg_type t ON t.oid = reached.oid
    JOIN pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typinput = 'pg_catalog.array_in'::regproc
"""


@dataclass(frozen=True, slots=True)
class _TypeRow:
    """A row of pg_type with the rows that depend on the type."""

    oid: int
    name: str
    schema: str
    typtype: str
    is_array: bool
    element: int
    base: int
    base_typmod: int
    delimiter: str
    subtype: int | None
    labels: tuple[str, ...]
    label_oids: tuple[int, ...]
    labels_written: tuple[int, ...]
    fields: tuple[tuple[str, int, int, str], ...]
    attnums: tuple[int, ...]
    relation: int
    attributes: int
    casing: str


class TypeTrees:
    """The types reached from a set of OIDs, each available for any typmod."""

    def __init__(self, rows: Mapping[int, _TypeRow]) -> None:
        self._rows = rows
        self._built: dict[tuple[int, int, str], PgType] = {}

    def tree(self, oid: int, typmod: int = -1, collation: str = "") -> PgType:
        """Return the type with this OID, modified by `typmod`."""
        built = self._built.get((oid, typmod, collation))
        if built is None:
            built = self._built[oid, typmod, collation] = self._build(oid, typmod, collation)
        return built

    def _build(self, oid: int, typmod: int, collation: str) -> PgType:
        row = self._rows.get(oid)
        if row is None:
            # The type was dropped between two queries, and the column as well.
            return PgType(kind="pseudo", name="", oid=oid, typmod=typmod)
        element: PgType | None = None
        # Typmod and collation of a column belong to the innermost type: those of numeric(10,2)[] to the
        # element, those of a domain to the base type.
        if row.is_array:
            element = self.tree(row.element, typmod, collation)
        elif row.typtype == "d":
            typmod = row.base_typmod
            element = self.tree(row.base, typmod, collation)
        elif row.subtype is not None:
            element = self.tree(row.subtype)
        return PgType(
            kind="array" if row.is_array else _KINDS[row.typtype],
            name=row.name,
            schema=row.schema,
            oid=oid,
            typmod=typmod,
            element=element,
            fields=tuple((name, self.tree(field, mod, coll)) for name, field, mod, coll in row.fields),
            labels=row.labels,
            numbers=row.label_oids or row.attnums,
            delimiter=row.delimiter if row.is_array else ",",
            collation=(row.casing or collation) if element is None and row.typtype == "b" else "",
        )

    def written(self, type_: PgType) -> dict[str, int]:
        """Return the traces that statements on a type, or on its parts, leave in the catalog.

        Returns:
            The xmin by the label's OID; the number of attributes by the composite's relation.
        """
        fingerprints: dict[str, int] = {}
        for part in type_.parts():
            row = self._rows.get(part.oid)
            # A label that was renamed and renamed back has a new xmin in pg_enum. Adding a label leaves all
            # existing labels unchanged, with one exception. After some dozen labels BEFORE or AFTER the same
            # label, PostgreSQL has no number left between two labels and renumbers all labels
            # (RenumberEnumType). The renumbering equals a temporary rename in the traces, so the table is
            # resnapshotted.
            if row is not None and row.label_oids:
                labels = zip(row.label_oids, row.labels_written, strict=True)
                fingerprints |= {f"label {oid}": xmin for oid, xmin in labels}
            elif row is not None and row.typtype == "c":
                # pg_class.relnatts counts every attribute that a composite ever had.
                fingerprints[f"composite {row.relation}"] = row.attributes
        return fingerprints


def resolve_types(connection: psycopg.Connection[Any], oids: Iterable[int]) -> TypeTrees:
    """Return the types with these OIDs, with all parts, in one round trip."""
    sought = sorted(set(oids))
    rows = {}
    for row in connection.execute(_TYPES_QUERY, {"wanted": sought}) if sought else ():
        rows[row[0]] = _TypeRow(
            oid=row[0],
            name=row[1],
            schema=row[2],
            typtype=row[3],
            is_array=row[4],
            element=row[5],
            base=row[6],
            base_typmod=row[7],
            delimiter=row[8],
            subtype=row[9],
            labels=tuple(row[10]),
            label_oids=tuple(row[11]),
            labels_written=tuple(row[12]),
            fields=tuple(zip(row[13], row[14], row[15], row[19], strict=True)),
            attnums=tuple(row[16]),
            relation=row[17],
            attributes=row[18] or 0,
            casing=row[20],
        )
    return TypeTrees(rows)
