"""Decide from two looks at the catalog whether rows changed without an event in the log. Pure.

The log holds no event for the rows of a table that PostgreSQL rewrites, for a column that arrives with a
default, for a partition that is attached, detached, dropped or truncated by itself, or for rows that are
written while a table is unlogged. Each such statement leaves evidence in the catalog:

* **Another table**: another OID.
* **Rewritten values**: `pg_class.relfilenode` and a column's row are new (`_why_columns`).
* **Another type without a rewrite** keeps the values, but may print them otherwise (`_why_columns`).
* **A type that is defined anew** in place, also for a while: `StoredColumn.is_redefined`.
* **A new column** brings values without events where it has a default (`plain_defaults`).
* **Columns in doubt**: rows may be taken for rows of another column (`columns_in_doubt`).
* **Partitions** that come or go with rows, or lose rows (`_why_partitions`).
* **Rows outside the log** of a table that the publication does not name (`_why_unlogged`).

**Two looks at a known file prove that no row bypassed the log.** Every statement above gives the table or the
partition a new file. TRUNCATE keeps the file only where its own transaction had made the file, and that is
a new file since the earlier look, too.

**A partition that no earlier look saw** has no earlier file. PostgreSQL gives a new table the file whose
number is the table's OID (heap_create). Every rewrite, TRUNCATE, SET UNLOGGED and SET LOGGED takes another
number. So an equal number proves that all rows came through events, with one exception: the transaction that
created the partition, filled the partition and truncated the partition in place. The stream shows that
exception, and a partition that came and went between two looks (`bronze.drift.streamed`).

What happens while the publication does not carry a table is `bronze.drift.membership`'s.

While the reader runs it looks every half minute, and within seconds after the catalog's fingerprint changed.
The state seen last is kept in the lake (`bronze.store.catalog_log`), so a pause of the reader is one long
interval between two looks.

PostgreSQL docs: https://www.postgresql.org/docs/current/logical-replication-restrictions.html and
https://www.postgresql.org/docs/current/catalog-pg-class.html.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from deltasmelt.bronze.retypes import kindred, same_text
from deltasmelt.bronze.shapes import PgType, as_recorded_type

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_DOUBT: Final = "rows may have been written under another column called {}"


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One live column.

    Attributes:
        name: now.
        type: JSON of its type; None where it is not published.
        written: xmin of its row in pg_attribute.
        missing: rows from before it have its default without being written.
        defined: traces of statements on its type (`bronze.catalog.types.TypeTrees.written`).
    """

    name: str
    type: str | None
    written: int
    missing: bool
    defined: Mapping[str, int] = field(default_factory=dict)

    def is_redefined(self, now: StoredColumn) -> bool:
        """Check whether values that were not rewritten print otherwise under the type of now, or did so once.

        What was written while a label had another name is in bronze with that name.
        """
        if self.type is None or now.type is None:
            return self.type != now.type
        written = any(now.defined.get(trace) != value for trace, value in self.defined.items())
        return written or not same_text(PgType.from_json(self.type), PgType.from_json(now.type))

    def is_written(self, now: StoredColumn) -> bool:
        """Check whether a statement may have changed the column or its type, though both be the same.

        What an older deltasmelt did not record of a type is no difference.
        """
        if not self.defined:
            now = replace(now, defined={})
        if self.type is not None and now.type is not None:
            type_ = as_recorded_type(PgType.from_json(now.type), PgType.from_json(self.type))
            now = replace(now, type=type_.to_json())
        return self != now


@dataclass(frozen=True, slots=True)
class Part:
    """A partition, at any depth, or the table itself.

    Attributes:
        name: for messages.
        file: pg_class.relfilenode; 0 where it has none (it has partitions itself).
        attached: xmin of its row in pg_inherits; 0 for the table itself.
        born: it was made as a partition.
        toast: pg_class.reltoastrelid; 0 without a TOAST table, or where no look recorded the number.
    """

    name: str
    file: int
    attached: int = 0
    born: bool = True
    toast: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """What one look at the catalog saw of a table.

    Attributes:
        relation_id: pg_class.oid.
        columns: by attnum, live ones.
        parts: by OID: the table itself and all its partitions.
        attnums: pg_class.relnatts, which counts dropped columns too; 0 where it was not looked at.
        named: the publication names the table itself, not all tables or a schema.
        placed: xmin of the pg_depend row that ties the table to its schema, which SET SCHEMA alone writes;
            0 where no look recorded the number.
    """

    relation_id: int
    columns: Mapping[int, StoredColumn]
    parts: Mapping[int, Part]
    attnums: int = 0
    named: bool = True
    placed: int = 0

    def with_parts(self, copied: Mapping[int, Part]) -> Self:
        """Return what a copy has: this look, and partitions of the snapshot that were created after the look.

        Without these a partition that is dropped before the next look would take its rows in silence.
        """
        return replace(self, parts={**copied, **self.parts})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a column has traces of its type where there are any."""
        plain = asdict(self)
        for column in plain["columns"].values():
            if not column["defined"]:
                del column["defined"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also after JSON."""
        return cls(
            plain["relation_id"],
            {int(attnum): StoredColumn(**column) for attnum, column in plain["columns"].items()},
            {int(oid): Part(**part) for oid, part in plain["parts"].items()},
            plain.get("attnums", 0),
            plain.get("named", True),
            plain.get("placed", 0),
        )


def why_again(known: Storage, now: Storage, carried: Collection[int] = ()) -> str | None:
    """Why rows may have changed without an event between two looks; None where they cannot have.

    Args:
        known: the earlier look.
        now: the later one.
        carried: attnums of new columns whose default is in bronze.
    """
    if known.relation_id != now.relation_id:
        return "it is another table of the same name"
    return _why_partitions(known, now) or _why_columns(known, now, carried) or _why_unlogged(known, now)


def plain_defaults(known: Storage, now: Storage) -> frozenset[int]:
    """New columns, by attnum, that gave all rows one value, and of whose changes none can be mistaken.

    A new column has values in old rows where it has a default: by `atthasmissing`, or by a rewrite. Without a
    rewrite all rows from before it have one value, which travels with the shape (`Column.missing`). Silver
    fills them, and no copy is needed.

    The stream names columns without attnum, and is read when the catalog may have moved on. What was written
    under one column could then be read as another's, so there are none in each of these cases:

    * a column came and went, was renamed or otherwise written between the two looks;
    * a new one has the name of an old one;
    * new ones were not made by one transaction.
    """
    new = {attnum: column for attnum, column in now.columns.items() if attnum not in known.columns}
    stayed = [
        (column, now.columns[attnum]) for attnum, column in known.columns.items() if attnum in now.columns
    ]
    names = {column.name for column in known.columns.values()}
    clear = (
        known.relation_id == now.relation_id
        and known.attnums > 0
        and new.keys() == set(range(known.attnums + 1, now.attnums + 1))
        and len({column.written for column in new.values()}) == 1
        and names.isdisjoint(column.name for column in new.values())
        and all((one.name, one.written) == (other.name, other.written) for one, other in stayed)
    )
    if not clear:
        return frozenset()
    return frozenset(attnum for attnum, column in new.items() if column.missing and column.type is not None)


def _why_partitions(known: Storage, now: Storage) -> str | None:
    """Why the partitions may have brought or taken rows without an event.

    One that was made as a partition is filled through events; one that was attached need not be. ATTACH
    writes the pg_attribute row of every column of the partition. CREATE TABLE … PARTITION OF leaves those
    that CREATE TABLE wrote: `born` where such a row is left.

    A partition that is gone took its rows with it in silence. A TRUNCATE of one partition is not published
    under its root. Its relfilenode is new; here VACUUM FULL cannot be told from it, and costs a copy. So it
    is with a new partition whose file does not have the number that CREATE TABLE gave.
    """
    partitioned = len(known.parts) + len(now.parts) > 2
    for oid, part in known.parts.items():
        found = now.parts.get(oid)
        if found is None:
            return f"partition {part.name} was detached or dropped"
        if found.attached != part.attached:
            return f"partition {found.name} was detached and attached again"
        if partitioned and found.file != part.file:
            return f"partition {found.name} was truncated or rewritten"
    for oid, part in now.parts.items():
        if oid in known.parts:
            continue
        if not part.born:
            return f"partition {part.name} was attached"
        if part.file not in (0, oid):
            return f"partition {part.name} was truncated or rewritten before it was first seen"
    return None


def _why_unlogged(known: Storage, now: Storage) -> str | None:
    """Return why rows may have been written outside the log or outside the publication.

    PostgreSQL refuses SET UNLOGGED for a table that a publication names. `bronze.drift.membership` notices
    where the name was taken out for a while. A publication of all tables or of a schema guards no table: SET
    UNLOGGED, rows, SET LOGGED leave a new file and no event, as VACUUM FULL, CLUSTER and TRUNCATE do. Of
    these four only SET LOGGED replaces the TOAST table (finish_heap_swap exchanges the links; the others
    keep the OID). Without a TOAST table the four look alike, so each of them costs a copy.

    A publication of a schema omits the changes of a table while the table is in another schema.
    """
    if now.named:
        return None
    if known.placed not in (0, now.placed):
        return "it was in another schema for a while"
    before, after = known.parts.get(known.relation_id), now.parts.get(now.relation_id)
    if before is None or after is None or before.file == after.file:
        return None
    same_toast = before.toast == after.toast != 0
    return None if same_toast else "it may have been unlogged for a while"


def _why_columns(known: Storage, now: Storage, carried: Collection[int]) -> str | None:
    """Why the columns may have other values than the stream told.

    **Rewritten.** relfilenode is new also after VACUUM FULL, CLUSTER and TRUNCATE, which change no value
    without an event. But a command that rewrites *values* writes the column's row in pg_attribute too (its
    xmin is new), even where the type stays (``TYPE int USING a + 1``); the others do not. So a table gets a
    new snapshot where both are new. Two harmless cases look the same between two looks, and cost a copy but
    no value. One is VACUUM FULL beside a statement that touches the column's row alone (SET NOT NULL, GRANT).
    The other is VACUUM FULL after ADD COLUMN with a default, which writes the column's row as well.

    **Another type without a rewrite** (varchar to text, a longer varchar) keeps the values. It is told by its
    kind, for some such changes print otherwise (cidr to inet, timestamp to timestamptz under UTC).

    **A column that was not published before** brings values as a new one does.
    """
    if doubted := columns_in_doubt(known, now):
        return doubted
    rewritten = _is_rewritten(known, now)
    for attnum, column in now.columns.items():
        before = known.columns.get(attnum)
        if column.type is None:
            continue
        if before is None:
            if rewritten or (column.missing and attnum not in carried):
                return f"column {column.name} came with a default"
        elif before.type is None:
            return f"column {column.name} was not published before"
        elif before.is_redefined(column):
            return f"the type of column {column.name} changed"
        elif rewritten and before.written != column.written:
            return f"column {column.name} was rewritten"
    return None


def columns_in_doubt(known: Storage, now: Storage) -> str | None:
    """Why a new column may have been confused with one that is gone; None where it cannot have been.

    The stream names columns without attnum (`bronze.pgoutput.relation_versions`). Rows that were written
    between two looks may be taken for rows of another column in two cases. Columns came and went in between
    and one is new; or one is new and another of its kind (`bronze.retypes.kindred`) is gone. It does not
    matter what a column that is gone was called in between, nor what type a rewrite gave it. One that is
    gone and was not published may have been in between, as a generated column that becomes an ordinary one.

    Args:
        known: a look from before all the changes that are asked about (`bronze.drift.observed_storage`).
        now: a look after the catalog was asked for the shapes of these changes.
    """
    new = [column for attnum, column in now.columns.items() if attnum not in known.columns and column.type]
    if not new:
        return None
    numbers = range(known.attnums + 1, now.attnums + 1) if known.attnums else ()
    lost = [column.type for attnum, column in known.columns.items() if attnum not in now.columns]
    if None in lost or any(attnum not in now.columns for attnum in numbers):
        return _DOUBT.format(new[-1].name)
    gone = [PgType.from_json(text) for text in lost if text]
    rewritten = _is_rewritten(known, now)
    for column in new:
        type_ = PgType.from_json(column.type or "")
        if any(rewritten or kindred(one, type_) for one in gone):
            return _DOUBT.format(column.name)
    return None


def _is_rewritten(known: Storage, now: Storage) -> bool:
    return any(part.file != now.parts[oid].file for oid, part in known.parts.items() if oid in now.parts)
