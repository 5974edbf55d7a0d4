"""The shape of a table at one time: columns, types, key. Pure values, shared by catalog, stream and silver.

`PgType` is a tree, because an array of a domain over a composite is common enough. It is resolved from
pg_type once, by the reader, and travels as JSON in `bronze.relations.columns.type_tree`, so that silver never
asks PostgreSQL.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.comments import Comments
    from deltasmelt.bronze.identifiers import TableName

TypeKind: TypeAlias = Literal["base", "array", "composite", "domain", "enum", "range", "multirange", "pseudo"]


BY_KEY: Final = "k"
"""See `Relation.replica_identity`; none of PostgreSQL's own letters."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type with everything that decides how its text is read.

    Attributes:
        kind: pg_type.typtype in words; a true array (typelem with an array type) is ``array``.
        name: pg_type.typname (``int4``, ``numeric``, ``mood``).
        schema: pg_type's namespace (``pg_catalog`` for built-in types).
        oid: pg_type.oid.
        typmod: pg_attribute.atttypmod, or the domain's typtypmod; -1 where none. For numeric it encodes
            precision and scale.
        element: of an array: its element; of a domain: its base type; of a range or multirange: its subtype.
        fields: of a composite, in attribute order, dropped ones left out.
        labels: of an enum, in sort order.
        delimiter: of an array: the element type's typdelim.
        numbers: what a rename leaves as it is: of an enum the pg_enum.oid of each label, of a composite the
            attnum of each attribute. Empty in a shape that was recorded before they were kept.
        collation: of a base type, where it is used: the name of a collation that is not deterministic; of
            citext: how the database makes small letters, where that is not letter by letter
            (`bronze.catalog.collations.CASING`).
    """

    kind: TypeKind
    name: str
    schema: str = "pg_catalog"
    oid: int = 0
    typmod: int = -1
    element: PgType | None = None
    fields: tuple[tuple[str, PgType], ...] = ()
    labels: tuple[str, ...] = ()
    delimiter: str = ","
    numbers: tuple[int, ...] = ()
    collation: str = ""

    def parts(self) -> Iterator[PgType]:
        """Give the type itself and all that it is made of."""
        yield self
        for part in (self.element, *(type_ for _, type_ in self.fields)):
            if part is not None:
                yield from part.parts()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what has its default is left out."""
        plain: dict[str, Any] = {"kind": self.kind, "name": self.name, "oid": self.oid}
        if self.schema != "pg_catalog":
            plain["schema"] = self.schema
        if self.typmod != -1:
            plain["typmod"] = self.typmod
        if self.element is not None:
            plain["element"] = self.element.to_dict()
        if self.fields:
            plain["fields"] = [[name, field.to_dict()] for name, field in self.fields]
        if self.labels:
            plain["labels"] = list(self.labels)
        if self.delimiter != ",":
            plain["delimiter"] = self.delimiter
        if self.numbers:
            plain["numbers"] = list(self.numbers)
        if self.collation:
            plain["collation"] = self.collation
        return plain

    def to_json(self) -> str:
        """Compact JSON, keys in a fixed order, so that equal types give equal text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        element = plain.get("element")
        return cls(
            kind=plain["kind"],
            name=plain["name"],
            schema=plain.get("schema", "pg_catalog"),
            oid=plain.get("oid", 0),
            typmod=plain.get("typmod", -1),
            element=None if element is None else cls.from_dict(element),
            fields=tuple((name, cls.from_dict(field)) for name, field in plain.get("fields", ())),
            labels=tuple(plain.get("labels", ())),
            delimiter=plain.get("delimiter", ","),
            numbers=tuple(plain.get("numbers", ())),
            collation=plain.get("collation", ""),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        return cls.from_dict(json.loads(text))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a relation as pgoutput announces it.

    Attributes:
        attnum: pg_attribute.attnum, which survives a rename; None where the catalog no longer had it.
        type_text: format_type()'s text, e.g. ``numeric(12,2)``.
        in_identity: whether the replica identity covers it (pgoutput's key flag).
        missing: text of the value that rows from before the column have in it, without an event
            (pg_attribute.attmissingval); None where none is known. No part of what makes two shapes differ:
            it belongs to the column for ever, but the catalog forgets it when the table is rewritten.
    """

    name: str
    attnum: int | None
    type: PgType
    type_text: str
    not_null: bool = False
    in_identity: bool = False
    missing: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """One version of a table's shape; a row of `bronze.relations`.

    Attributes:
        relation_id: pg_class.oid.
        key: columns that identify a row for silver; empty when the table has none.
        replica_identity: pg_class.relreplident: d(efault) n(othing) f(ull) i(ndex); `BY_KEY` for a
            partitioned table with REPLICA IDENTITY FULL whose partitions may log less, so that of an old
            tuple the key counts alone (`bronze.catalog.keys`).
        from_lsn: first commit LSN that this version describes.
        after_lsn: in the transaction with that commit LSN, the version describes changes after this LSN; ZERO
            where it describes all of them.
        key_unique: whether the source itself lets no two rows have one key.
        partitioned: a root of partitions, as the catalog says; not kept in the lake.
        follows_old: whether the transaction's changes before it may hold old tuples; not kept either.
        comments: of the table and its columns now, whichever version this is; None where nothing is known of
            them. They are kept apart (`bronze.store.comments`), and make no two shapes differ.
    """

    relation_id: int
    table: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: str
    from_lsn: Lsn
    after_lsn: Lsn = ZERO
    key_unique: bool = False
    partitioned: bool = field(default=False, compare=False)
    follows_old: bool = field(default=True, compare=False)
    comments: Comments | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[Lsn, Lsn]:
        """Where the version begins: it describes changes whose (commit LSN, LSN) is greater."""
        return self.from_lsn, self.after_lsn

    @property
    def fold_key(self) -> tuple[str, ...]:
        """Columns by which an old tuple names its row: the key, or the identity where it does not cover it.

        Both identify a row of the source; but of a changed or deleted row PostgreSQL sends the identity
        alone.
        """
        identity = tuple(column.name for column in self.columns if column.in_identity)
        if self.replica_identity == "f" or set(self.key) <= set(identity) or not identity:
            return self.key
        return identity

    def redefinable(self) -> set[int]:
        """Return the OIDs of the enums and composites that its columns are made of."""
        parts = (part for column in self.columns for part in column.type.parts())
        return {part.oid for part in parts if part.kind in {"enum", "composite"}}

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def same_shape(one: Relation, other: Relation) -> bool:
    """Whether two versions differ in nothing but where they begin."""
    return replace(one, from_lsn=other.from_lsn, after_lsn=other.after_lsn) == other


def as_recorded(relation: Relation, known: Relation) -> Relation:
    """Return a shape without what a recorded version of the table knows nothing of (`PgType.numbers`).

    An older deltasmelt recorded less. The shape is no news because of that.
    """
    before = {column.attnum: column.type for column in known.columns}
    columns = (
        replace(column, type=as_recorded_type(column.type, before[column.attnum]))
        if column.attnum in before
        else column
        for column in relation.columns
    )
    return replace(relation, columns=tuple(columns))


def as_recorded_type(type_: PgType, known: PgType) -> PgType:
    """Return a type without the numbers that a recorded one lacks; see `as_recorded`."""
    element = type_.element
    if element is not None and known.element is not None:
        element = as_recorded_type(element, known.element)
    fields = type_.fields
    if len(fields) == len(known.fields):
        fields = tuple(
            (name, as_recorded_type(field, before))
            for (name, field), (_, before) in zip(fields, known.fields, strict=True)
        )
    numbers = type_.numbers if known.numbers else ()
    return replace(type_, element=element, fields=fields, numbers=numbers)
