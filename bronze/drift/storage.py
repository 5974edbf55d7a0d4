"""Decide from two catalog polls whether rows changed without an event in the log. Pure.

The log holds no event in these cases: PostgreSQL rewrites a table; a column is added with a default; a single
partition is attached, detached, dropped or truncated; a table is written while unlogged. Each such statement
leaves evidence in the catalog:

* **Another table**: another OID.
* **Rewritten values**: `pg_class.relfilenode` and a column's row are new (`_why_columns`).
* **Another type without a rewrite** keeps the values, but may print them differently (`_why_columns`).
* **A type that is redefined** in place, even temporarily: `StoredColumn.is_redefined`.
* **A new column** brings values without events if the column has a default (`plain_defaults`).
* **Columns in doubt**: the reader may confuse rows of two columns (`columns_in_doubt`).
* **Partitions** that come or go with rows, or lose rows (`_why_partitions`).
* **Rows outside the log** of a table that the publication does not name (`_why_unlogged`).

**Two polls with an equal file prove that no row bypassed the log.** Every statement above gives the table or
the partition a new file. TRUNCATE keeps a file only if TRUNCATE's own transaction had created the file; then
the file is new since the earlier poll, too.

**A partition that no earlier poll saw** has no earlier file. PostgreSQL numbers the file of a new table with
the table's OID (heap_create). Every rewrite, TRUNCATE, SET UNLOGGED and SET LOGGED takes another number. An
equal number therefore proves that all rows came through events, with one exception: the transaction that
created the partition, filled the partition and truncated the partition in place. The stream reveals this
exception, and a partition that came and went between two polls (`bronze.drift.streamed`).

`bronze.drift.membership` covers the time without the table in the publication.

A running reader polls every half minute, and within seconds after the catalog's fingerprint changed. The lake
keeps the last poll (`bronze.store.catalog_log`), so a pause of the reader is one long interval.

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
    """One live column."""

    name: str
    # JSON of the column's type; None if not published
    type: str | None
    # xmin of the column's row in pg_attribute
    written: int
    # whether rows older than the column have the default without being written
    missing: bool
    # traces of statements on the type (`bronze.catalog.types.TypeTrees.written`)
    defined: Mapping[str, int] = field(default_factory=dict)

    def is_redefined(self, now: StoredColumn) -> bool:
        """Check whether unwritten values print differently under the present type, or did so for a while."""
        if self.type is None or now.type is None:
            return self.type != now.type
        # A value written while a label had another name is in bronze with that name.
        written = any(now.defined.get(trace) != value for trace, value in self.defined.items())
        return written or not same_text(PgType.from_json(self.type), PgType.from_json(now.type))

    def is_written(self, now: StoredColumn) -> bool:
        """Check whether a statement may have changed the column or the type, even if both are equal."""
        # Facts of a type that an older deltasmelt did not record make no difference.
        if not self.defined:
            now = replace(now, defined={})
        if self.type is not None and now.type is not None:
            type_ = as_recorded_type(PgType.from_json(now.type), PgType.from_json(self.type))
            now = replace(now, type=type_.to_json())
        return self != now


@dataclass(frozen=True, slots=True)
class Part:
    """A partition, at any depth, or the table itself."""

    # name of the partition, for messages
    name: str
    # pg_class.relfilenode; 0 without a file (the partition has partitions)
    file: int
    # xmin of the partition's row in pg_inherits; 0 for the table itself
    attached: int = 0
    # whether the partition was created as a partition
    born: bool = True
    # pg_class.reltoastrelid; 0 without a TOAST table, or if no poll recorded the number
    toast: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """The result of one catalog poll of a table."""

    # pg_class.oid of the table
    relation_id: int
    # live columns, by attnum
    columns: Mapping[int, StoredColumn]
    # the table itself and all partitions, by OID
    parts: Mapping[int, Part]
    # pg_class.relnatts, which counts dropped columns too; 0 if unread
    attnums: int = 0
    # whether the publication names the table itself, not all tables or a schema
    named: bool = True
    # xmin of the pg_depend row that ties the table to the schema, which SET SCHEMA alone writes; 0 if no poll
    # recorded the number
    placed: int = 0

    def with_parts(self, copied: Mapping[int, Part]) -> Self:
        """Return the state of a copy: this poll, and partitions of the snapshot from after the poll.

        Without these partitions, a partition dropped before the next poll would silently take rows away.
        """
        return replace(self, parts={**copied, **self.parts})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a column has traces of the type only if any exist."""
        plain = asdict(self)
        for column in plain["columns"].values():
            if not column["defined"]:
                del column["defined"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the value from `to_dict`'s result, also after JSON."""
        return cls(
            plain["relation_id"],
            {int(attnum): StoredColumn(**column) for attnum, column in plain["columns"].items()},
            {int(oid): Part(**part) for oid, part in plain["parts"].items()},
            plain.get("attnums", 0),
            plain.get("named", True),
            plain.get("placed", 0),
        )


def why_again(known: Storage, now: Storage, carried: Collection[int] = ()) -> str | None:
    """Return why rows may have changed without an event between two polls; None if impossible.

    `carried` has the attnums of new columns whose default is in bronze.
    """
    if known.relation_id != now.relation_id:
        return "another table has this name now (the former table was dropped or renamed)"
    return _why_partitions(known, now) or _why_columns(known, now, carried) or _why_unlogged(known, now)


def plain_defaults(known: Storage, now: Storage) -> frozenset[int]:
    """Return attnums of new columns that gave all rows one value and whose changes cannot be confused.

    A new column with a default has values in old rows, by `atthasmissing` or by a rewrite. Without a rewrite
    all older rows have one value, which the shape carries (`Column.missing`). Silver fills the rows, and no
    copy is needed.

    The stream names columns without attnum, and the reader reads the stream when the catalog may be ahead.
    The reader could then assign a written value to another column, so any doubt makes the result empty.
    """
    new = {attnum: column for attnum, column in now.columns.items() if attnum not in known.columns}
    stayed = [
        (column, now.columns[attnum]) for attnum, column in known.columns.items() if attnum in now.columns
    ]
    names = {column.name for column in known.columns.values()}
    clear = (
        known.relation_id == now.relation_id
        and known.attnums > 0
        # A column may have come and gone between the two polls.
        and new.keys() == set(range(known.attnums + 1, now.attnums + 1))
        # Several transactions may have created the new columns.
        and len({column.written for column in new.values()}) == 1
        and names.isdisjoint(column.name for column in new.values())
        # A column may have been renamed or otherwise written between the two polls.
        and all((old.name, old.written) == (later.name, later.written) for old, later in stayed)
    )
    if not clear:
        return frozenset()
    return frozenset(attnum for attnum, column in new.items() if column.missing and column.type is not None)


def _why_partitions(known: Storage, now: Storage) -> str | None:
    """Return why partitions may have added or removed rows without an event; None if impossible."""
    partitioned = len(known.parts) + len(now.parts) > 2
    for oid, part in known.parts.items():
        current = now.parts.get(oid)
        # A removed partition silently took rows away.
        if current is None:
            return f"partition {part.name} was detached or dropped"
        if current.attached != part.attached:
            return f"partition {current.name} was detached and attached again"
        # A TRUNCATE of a single partition is not published under the root, but changes the partition's
        # relfilenode. VACUUM FULL also changes relfilenode, and therefore costs a copy.
        if partitioned and current.file != part.file:
            return f"partition {current.name} was truncated or rewritten"
    for oid, part in now.parts.items():
        if oid in known.parts:
            continue
        # A partition created as a partition is filled through events; an attached partition need not be.
        # ATTACH writes the pg_attribute row of every column of the partition. CREATE TABLE … PARTITION OF
        # leaves the rows that CREATE TABLE wrote: `born` means that such a row is left.
        if not part.born:
            return f"partition {part.name} was attached"
        # CREATE TABLE numbers the file with the partition's OID. Another number costs a copy, too.
        if part.file not in (0, oid):
            return f"partition {part.name} was truncated or rewritten before the reader first read its state"
    return None


def _why_unlogged(known: Storage, now: Storage) -> str | None:
    """Return why rows may have been written outside the log or outside the publication.

    A publication of all tables or of a schema protects no table: SET UNLOGGED, rows, SET LOGGED leave a new
    file and no event, like VACUUM FULL, CLUSTER and TRUNCATE.
    """
    # PostgreSQL refuses SET UNLOGGED for a table that a publication names. `bronze.drift.membership` detects
    # a temporary removal of the name.
    if now.named:
        return None
    # A publication of a schema omits the changes of a table while the table is in another schema.
    if known.placed not in (0, now.placed):
        return "the table was in another schema for a while"
    old_part, new_part = known.parts.get(known.relation_id), now.parts.get(now.relation_id)
    if old_part is None or new_part is None or old_part.file == new_part.file:
        return None
    # Of VACUUM FULL, CLUSTER, TRUNCATE and SET LOGGED, only SET LOGGED replaces the TOAST table
    # (finish_heap_swap exchanges the links; the other statements keep the OID). Without a TOAST table all
    # four leave equal traces, so each costs a copy.
    same_toast = old_part.toast == new_part.toast != 0
    return None if same_toast else "the table may have been unlogged for a while"


def _why_columns(known: Storage, now: Storage, carried: Collection[int]) -> str | None:
    """Return why columns may have other values than the stream carried; None if impossible."""
    if doubted := columns_in_doubt(known, now):
        return doubted
    rewritten = _is_rewritten(known, now)
    for attnum, column in now.columns.items():
        old_column = known.columns.get(attnum)
        if column.type is None:
            continue
        if old_column is None:
            if rewritten or (column.missing and attnum not in carried):
                return f"column {column.name} was added with a default"
        elif old_column.type is None:
            # Such a column brings values like a new column.
            return f"column {column.name} was not published before"
        elif old_column.is_redefined(column):
            # Another type without a rewrite (varchar to text, a longer varchar) keeps the values. The kind of
            # the types decides, because some of these changes print differently (cidr to inet, timestamp to
            # timestamptz under UTC).
            return f"the type of column {column.name} changed"
        elif rewritten and old_column.written != column.written:
            # relfilenode is also new after VACUUM FULL, CLUSTER and TRUNCATE, which change no value without
            # an event. But a command that rewrites *values* also writes the column's row in pg_attribute (a
            # new xmin), even if the type stays (`TYPE int USING a + 1`); the other commands do not. Two
            # harmless cases leave equal traces between two polls, and cost a copy but no value: VACUUM FULL
            # together with a statement that writes only the column's row (SET NOT NULL, GRANT), and VACUUM
            # FULL after ADD COLUMN with a default, which also writes the column's row.
            return f"column {column.name} was rewritten"
    return None


def columns_in_doubt(known: Storage, now: Storage) -> str | None:
    """Return why the reader may have confused a new column with a removed column; None if impossible.

    The stream names columns without attnum (`bronze.pgoutput.relation_versions`). The reader may assign rows
    written between two polls to another column in two cases. In the first case, columns came and went between
    the polls, and a column is new. In the second case, a column is new, and another column of the same kind
    (`bronze.retypes.kindred`) was removed. Neither temporary names of the removed column nor a new type after
    a rewrite matter.

    Args:
        known: result of a poll before all changes in question (`bronze.drift.observed_storage`).
        now: result of a poll after the reader read the shapes of these changes from the catalog.
    """
    new = [column for attnum, column in now.columns.items() if attnum not in known.columns and column.type]
    if not new:
        return None
    numbers = range(known.attnums + 1, now.attnums + 1) if known.attnums else ()
    lost = [column.type for attnum, column in known.columns.items() if attnum not in now.columns]
    # A removed column that was not published may have been published in between: a generated column can
    # become an ordinary column.
    if None in lost or any(attnum not in now.columns for attnum in numbers):
        return _DOUBT.format(new[-1].name)
    lost_types = [PgType.from_json(text) for text in lost if text]
    rewritten = _is_rewritten(known, now)
    for column in new:
        type_ = PgType.from_json(column.type or "")
        if any(rewritten or kindred(lost_type, type_) for lost_type in lost_types):
            return _DOUBT.format(column.name)
    return None


def _is_rewritten(known: Storage, now: Storage) -> bool:
    return any(part.file != now.parts[oid].file for oid, part in known.parts.items() if oid in now.parts)
