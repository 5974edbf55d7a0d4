"""The shape of a table at one time: columns, types, key. Pure values for catalog, stream and silver.

`PgType` is a tree, because an array of a domain over a composite is common enough. The reader resolves the
tree from pg_type once and writes it as JSON to `bronze.relations.columns.type_tree`, so that silver never
queries PostgreSQL.
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
"""A value of `Relation.replica_identity`, in addition to PostgreSQL's own letters."""


@dataclass(frozen=True, slots=True)
class PgType:
    """A PostgreSQL type with all facts that decide the meaning of a value's text."""

    # pg_type.typtype in words; a true array (typelem with an array type) is `array`
    kind: TypeKind
    # pg_type.typname (`int4`, `numeric`, `mood`)
    name: str
    # pg_type's namespace (`pg_catalog` for built-in types)
    schema: str = "pg_catalog"
    oid: int = 0
    # pg_attribute.atttypmod, or the domain's typtypmod; -1 without a modifier. For numeric the typmod encodes
    # precision and scale.
    typmod: int = -1
    # an array's element, a domain's base type, or the subtype of a range or multirange
    element: PgType | None = None
    # a composite's attributes in attribute order, without dropped attributes
    fields: tuple[tuple[str, PgType], ...] = ()
    # an enum's labels in sort order
    labels: tuple[str, ...] = ()
    # of an array: the element type's typdelim
    delimiter: str = ","
    # Numbers that survive a rename: pg_enum.oid of each label, attnum of each composite attribute. Empty in a
    # shape from before deltasmelt recorded them.
    numbers: tuple[int, ...] = ()
    # of a base type in use: the name of a collation that is not deterministic; of citext: the database's
    # lower-casing, unless letter by letter (`bronze.catalog.collations.CASING`)
    collation: str = ""

    def parts(self) -> Iterator[PgType]:
        """Yield the type itself and all types inside."""
        yield self
        for part in (self.element, *(type_ for _, type_ in self.fields)):
            if part is not None:
                yield from part.parts()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without fields that have their default."""
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
        """Return compact JSON with keys in a fixed order; equal types give equal text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """Return the type from `to_dict`'s values."""
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
        """Return the type from `to_json`'s text."""
        return cls.from_dict(json.loads(text))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a relation as pgoutput announces the column."""

    name: str
    # pg_attribute.attnum, which survives a rename; None if the catalog had lost the column
    attnum: int | None
    type: PgType
    # Text of `format_type()`, e.g. `numeric(12,2)`.
    type_text: str
    not_null: bool = False
    # whether the replica identity covers the column (pgoutput's key flag)
    in_identity: bool = False
    # Text of the value in rows older than the column, which cause no event (pg_attribute.attmissingval); None
    # if unknown. Comparison of shapes ignores `missing`: the value belongs to the column for ever, but the
    # catalog loses it when the table is rewritten.
    missing: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Relation:
    """One version of a table's shape; a row of `bronze.relations`."""

    # pg_class.oid of the table
    relation_id: int
    table: TableName
    columns: tuple[Column, ...]
    # columns that identify a row for silver; empty without a key
    key: tuple[str, ...]
    # pg_class.relreplident: d(efault) n(othing) f(ull) i(ndex). `BY_KEY` means a partitioned table with
    # REPLICA IDENTITY FULL whose partitions may log less: only the key of an old tuple counts
    # (`bronze.catalog.keys`).
    replica_identity: str
    # first commit LSN that this version describes
    from_lsn: Lsn
    # in the transaction with that commit LSN, the version describes changes after this LSN; ZERO means all
    # changes
    after_lsn: Lsn = ZERO
    # whether the source itself prevents two rows with equal keys
    key_unique: bool = False
    # whether the catalog shows a partitioned root; not stored in the lake
    partitioned: bool = field(default=False, compare=False)
    # whether earlier changes of the transaction may hold old tuples; not stored in the lake
    follows_old: bool = field(default=True, compare=False)
    # Present comments of table and columns, for any version; None if unknown. Bronze stores comments apart
    # (`bronze.store.comments`), and comparison of shapes ignores them.
    comments: Comments | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[Lsn, Lsn]:
        """Start of the version: the version describes changes whose (commit LSN, LSN) is greater."""
        return self.from_lsn, self.after_lsn

    @property
    def names(self) -> dict[int, str]:
        """Names of the columns, by attnum."""
        return {column.attnum: column.name for column in self.columns if column.attnum is not None}

    @property
    def fold_key(self) -> tuple[str, ...]:
        """Columns by which an old tuple names a row: the key, or an identity that lacks key columns."""
        identity = tuple(column.name for column in self.columns if column.in_identity)
        if self.replica_identity == "f" or set(self.key) <= set(identity) or not identity:
            return self.key
        # Key and identity both identify a row of the source. For a changed or deleted row PostgreSQL sends
        # the identity alone.
        return identity

    def redefinable(self) -> set[int]:
        """Return the OIDs of all enums and composites in the columns' types."""
        parts = (part for column in self.columns for part in column.type.parts())
        return {part.oid for part in parts if part.kind in {"enum", "composite"}}

    def column(self, name: str) -> Column:
        """Return the column with this name.

        Raises:
            KeyError: no column has this name.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def same_shape(left: Relation, right: Relation) -> bool:
    """Check whether two versions are equal apart from their start."""
    return replace(left, from_lsn=right.from_lsn, after_lsn=right.after_lsn) == right


def as_recorded(relation: Relation, known: Relation) -> Relation:
    """Return a shape without facts absent from a recorded version of the table (`PgType.numbers`)."""
    # An older deltasmelt recorded fewer facts. The additional facts make no new version.
    before = {column.attnum: column.type for column in known.columns}
    columns = (
        replace(column, type=as_recorded_type(column.type, before[column.attnum]))
        if column.attnum in before
        else column
        for column in relation.columns
    )
    return replace(relation, columns=tuple(columns))


def as_recorded_type(type_: PgType, known: PgType) -> PgType:
    """Return a type without numbers absent from a recorded type; see `as_recorded`."""
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
