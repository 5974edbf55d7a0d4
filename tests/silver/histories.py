"""A source in plain Python: rows that change in transactions, and the stream that PostgreSQL would send.

The machine keeps the rows as seen by a client of the source, and writes the changes into bronze like the
reader. Values that begin with ``BIG`` are out of line, and an update that does not set such a value omits the
value. The machine sends old tuples as the replica identity demands, and moves rows under deferred constraints
in any physical order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.effects import guarded
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog import commits as named
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import (
    CHANGES,
    CHANGES_SCHEMA,
    FORMAT,
    FORMAT_PROPERTY,
    MEASURED,
    RELATIONS,
    RELATIONS_SCHEMA,
    REPEATING,
)
from deltasmelt.bronze.store.gaps import gap_marks
from deltasmelt.bronze.store.marks import CONFIRM_APP, STREAM_APP, fingerprint_app, snapshot_app
from deltasmelt.bronze.store.relations import append_relations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake

INT = PgType("base", "int4", oid=23)
TEXT = PgType("base", "text", oid=25)
UUID = PgType("base", "uuid", oid=2950)
NUMERIC = PgType("base", "numeric", oid=1700, typmod=(10 << 16 | 2) + 4)
FREE_NUMERIC = PgType("base", "numeric", oid=1700)
CHAR = PgType("base", "bpchar", oid=1042)

START = datetime(2024, 1, 1, tzinfo=UTC)


def time_of(lsn: int) -> datetime:
    """Return the commit time of the transaction with this commit LSN."""
    return START + timedelta(milliseconds=lsn)


def relation(
    name: str,
    columns: Sequence[tuple[str, PgType]],
    key: Sequence[str],
    *,
    relation_id: int,
    identity: str = "d",
    identity_columns: Sequence[str] | None = None,
    from_lsn: int = 0,
    after_lsn: int = 0,
    attnums: Sequence[int] | None = None,
) -> Relation:
    """Return a shape; by default the replica identity covers the key.

    If the shape begins inside a transaction, `after_lsn` is the number of the transaction's rows with other
    shapes.
    """
    identity_columns = key if identity_columns is None else identity_columns
    covered = {name for name, _ in columns} if identity == "f" else set(identity_columns)
    numbers = attnums or range(1, len(columns) + 1)
    return Relation(
        relation_id=relation_id,
        table=TableName.parse(name if "." in name else f"public.{name}"),
        columns=tuple(
            Column(column, number, type_, type_.name, not_null=column in key, in_identity=column in covered)
            for (column, type_), number in zip(columns, numbers, strict=True)
        ),
        key=tuple(key),
        replica_identity=identity,
        from_lsn=Lsn(from_lsn),
        after_lsn=Lsn(after_lsn),
    )


class BronzeWriter:
    """Writer of `bronze.changes` and `bronze.relations`, like the reader: whole transactions, with marks."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._changes = lake.uri("bronze", CHANGES)
        delta.open_or_create(
            self._changes,
            CHANGES_SCHEMA,
            description="",
            properties={"delta.appendOnly": "true", FORMAT_PROPERTY: FORMAT},
        )
        self._rows: list[dict[str, Any]] = []
        self._snapshots: list[Transaction] = []

    def relations(self, relations: Sequence[Relation]) -> None:
        uri = self._lake.uri("bronze", RELATIONS)
        append_relations(delta.open_or_create(uri, RELATIONS_SCHEMA, description=""), relations)

    def add(self, lsn: int, rows: Iterable[dict[str, Any]]) -> None:
        """Add a transaction (or a snapshot's rows)."""
        self._rows += placed(lsn, rows)

    def snapshot(self, shape: Relation, lsn: int, rows: Iterable[Sequence[str | None]]) -> None:
        """Add a complete snapshot."""
        common = change(shape, "snapshot")
        self.add(lsn, [*({**common, "new": list(row)} for row in rows), {**common, "op": "snapshot_end"}])
        self._snapshots.append(Transaction(snapshot_app(shape.table), lsn))

    def gap(self, shape: Relation, lsn: int) -> None:
        """Mark that changes up to an LSN may be missing."""
        commit_marks(delta.open_existing(self._changes), gap_marks([shape.table], Lsn(lsn)))

    def left_out(self, shape: Relation) -> None:
        """Mark a table as no longer read, as after a DROP TABLE."""
        mark = Transaction(fingerprint_app(shape.table), NOT_CARRIED)
        commit_marks(delta.open_existing(self._changes), [mark])

    def commit(self, frontier: int) -> None:
        """Write everything added, and the marks, in one Delta commit."""
        marks = [Transaction(STREAM_APP, frontier), Transaction(CONFIRM_APP, frontier + 1), *self._snapshots]
        rows = pa.Table.from_pylist(self._rows, schema=CHANGES_SCHEMA)
        if self._lake.path is None:
            named.append(CatalogTable(self._changes), rows, {mark.app_id: mark.version for mark in marks})
        else:
            _write(self._changes, rows, marks)
        self._rows, self._snapshots = [], []


def placed(lsn: int, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of one transaction in their place."""
    found = [
        {
            "commit_lsn": lsn, "seq": seq, "lsn": seq + 1, "xid": lsn, "commit_ts": time_of(lsn),
            "columns": None, "new": None, "old": None, "old_is_key": None, "unchanged": None,
            "end_of_tx": False, "ingested_at": START, **row,
        }
        for seq, row in enumerate(rows)
    ]  # fmt: skip
    if found:
        found[-1]["end_of_tx"] = True
    return found


def _write(uri: str, rows: pa.Table, marks: list[Transaction]) -> None:
    """Write one file and the marks, as the reader does: a row group, and statistics of few columns."""
    # The reader is another process: a test's guard does not see its effects.
    with guarded(lambda _kind, _where, effect: effect()):
        writer = PartWriter(uri, "stream", schema=CHANGES_SCHEMA, measured=MEASURED, repeating=REPEATING)
        writer.write(rows)
        delta.open_existing(uri).commit(writer.finish(), CHANGES_SCHEMA, marks)


def damage(path: Path, column: str) -> None:
    """Overwrite a column's pages in a file's first row group; the footer stays."""
    group, content = pq.read_metadata(path).row_group(0), bytearray(path.read_bytes())
    (found,) = (one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == column)
    start = min(found.data_page_offset, found.dictionary_page_offset or found.data_page_offset)
    content[start : start + found.total_compressed_size] = bytes(found.total_compressed_size)
    path.write_bytes(content)


def change(shape: Relation, op: str, **cells: Any) -> dict[str, Any]:
    """Return a row of `bronze.changes`, without its position."""
    return {
        "op": op,
        "table_schema": shape.table.schema,
        "table_name": shape.table.name,
        "relation_id": shape.relation_id,
        "columns": [column.name for column in shape.columns],
        **cells,
    }


def insert(shape: Relation, *cells: str | None) -> dict[str, Any]:
    """Return the row of an INSERT."""
    return change(shape, "insert", new=list(cells))


def update(shape: Relation, *cells: str | None, toast: str = "") -> dict[str, Any]:
    """Return the row of an UPDATE; `toast` names the unchanged columns."""
    return change(shape, "update", new=list(cells), unchanged=toast.split() or None)


COLUMNS = (
    ("space", INT),
    ("id", INT),
    ("code", INT),
    ("note", TEXT),
    ("big", TEXT),
    ("huge", TEXT),
    ("price", NUMERIC),
)
Values = dict[str, str | None]


@dataclass(eq=False)
class Row:
    """A row of the source; equal only to itself."""

    values: Values


@dataclass
class RandomTable:
    """A table with many independent key spaces, each with a separate random history.

    Attributes:
        shape: its columns are `COLUMNS` in their order, under any names; ``id`` may have any type.
        unique: ``code`` if this column identifies a row, so that updates mostly leave it alone.
        spelt: format of the values of ``id``, which are small numbers internally.
        endings: possible suffixes of a key's text that do not change the value; an update may change the
            suffix alone.
        shown: suffix of the key in silver.
        inserts_alone: no row is ever changed or deleted.
    """

    shape: Relation
    rng: random.Random
    spaces: int
    unique: str = "id"
    spelt: str = "{}"
    endings: tuple[str, ...] = ("",)
    shown: str = ""
    inserts_alone: bool = False
    rows: dict[int, list[Row]] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    lsn: int = 0
    next_code: int = 0
    past: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    living: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    ended: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = {space: [] for space in range(self.spaces)}

    # -- what a client does
    # ------------------------------------------------------------------------------------

    def transaction(self, lsn: int) -> list[dict[str, Any]]:
        """Run some statements in some spaces; return the changes."""
        self.lsn, self.changes = lsn, []
        for space in self.rng.sample(range(self.spaces), k=max(1, self.spaces // 3)):
            for _ in range(self.rng.randint(1, 4)):
                self._statement(space)
        return self.changes

    def truncate(self) -> None:
        """Truncate the table as part of the current transaction."""
        self.changes.append(change(self.shape, "truncate"))
        self.rows = {space: [] for space in range(self.spaces)}

    def tuples(self) -> list[list[str | None]]:
        """Return all rows in the form of a snapshot."""
        return [self._tuple(row.values) for rows in self.rows.values() for row in rows]

    def _statement(self, space: int) -> None:
        rows = self.rows[space]
        statements = [self._insert]
        if self.inserts_alone:
            rows = []
        if rows:
            statements += [
                self._update,
                self._update,
                self._update,
                self._delete,
                self._move,
                self._replace,
                self._on_top,
            ]
        if len(rows) > 1:
            statements += [self._swap, self._shift]
            if self.shape.replica_identity == "f":
                statements += [self._pass_through] * 2
        self.rng.choice(statements)(space)

    def _insert(self, space: int) -> None:
        used_ids = {row.values["id"] for row in self.rows[space]}
        free = [str(number) for number in range(1, 9) if str(number) not in used_ids]
        if free:
            self._arrive(space, self.rng.choice(free))

    def _update(self, space: int) -> None:
        row = self.rng.choice(self.rows[space])
        self._set(row, self._some_values())

    def _delete(self, space: int) -> None:
        self._leave(space, self.rng.choice(self.rows[space]))

    def _move(self, space: int) -> None:
        used_ids = {row.values["id"] for row in self.rows[space]}
        free = [str(number) for number in range(1, 9) if str(number) not in used_ids]
        if free:
            row = self.rng.choice(self.rows[space])
            self._set(
                row, {"id": self.rng.choice(free), **(self._some_values() if self.rng.random() < 0.5 else {})}
            )

    def _replace(self, space: int) -> None:
        """Delete a key and insert the key again."""
        row = self.rng.choice(self.rows[space])
        self._leave(space, row)
        self._arrive(space, row.values["id"])

    def _on_top(self, space: int) -> None:
        """Insert a taken key, then delete the older row: a deferred constraint allows this."""
        row = self.rng.choice(self.rows[space])
        self._arrive(space, row.values["id"])
        self._leave(space, row)

    def _swap(self, space: int) -> None:
        """UPDATE t SET id = CASE …: two or three rows exchange their keys in one statement."""
        rows = self.rng.sample(self.rows[space], k=min(len(self.rows[space]), self.rng.randint(2, 3)))
        keys = [row.values["id"] for row in rows]
        for row, key in zip(rows, [*keys[1:], keys[0]], strict=True):
            self._set(row, {"id": key, **(self._some_values() if self.rng.random() < 0.3 else {})})

    def _shift(self, space: int) -> None:
        """UPDATE t SET id = id + 1, rows in any physical order."""
        rows = list(self.rows[space])
        self.rng.shuffle(rows)
        for row in rows:
            self._set(row, {"id": str(int(row.values["id"] or 0) + 1)})

    def _pass_through(self, space: int) -> None:
        """Move a row onto a taken key, change the row, and move or delete the row; the older row stays.

        These are several statements under a deferred constraint. An old key alone would not identify the row.
        """
        row, second = self.rng.sample(self.rows[space], k=2)
        self._set(row, {"id": second.values["id"]})
        if self.rng.random() < 0.5:
            self._set(row, self._some_values())
        used_ids = {other_row.values["id"] for other_row in self.rows[space]}
        free = [str(number) for number in range(1, 9) if str(number) not in used_ids]
        if free and self.rng.random() < 0.5:
            self._set(row, {"id": self.rng.choice(free)})
        else:
            self._leave(space, row)

    # -- what PostgreSQL sends
    # ---------------------------------------------------------------------------------

    def _some_values(self) -> Values:
        values: Values = {}
        for name in self.rng.sample(["code", "note", "big", "huge", "price"], k=self.rng.randint(1, 3)):
            values[name] = self._value(name)
        if self.unique == "id":
            return values
        if self.rng.random() < 0.7:
            values.pop("code", None)
        return values

    def _value(self, name: str) -> str | None:
        if name == "code":
            self.next_code += 1
            return str(self.next_code)
        if name == "price":
            return self.rng.choice(["1.50", "NaN", None, "-20.00"])
        small = self.rng.choice([None, "", "x", "null"])
        big = f"BIG{self.rng.randint(0, 10**6)}"
        return big if name != "note" and self.rng.random() < 0.7 else small

    def _arrive(self, space: int, key: str | None) -> None:
        values: Values = {"space": str(space), "id": key, "ending": self.rng.choice(self.endings)}
        values |= {name: self._value(name) for name, _ in COLUMNS[2:]}
        self.rows[space].append(Row(values))
        self.changes.append(change(self.shape, "insert", new=self._tuple(values)))

    def _leave(self, space: int, row: Row) -> None:
        self.rows[space].remove(row)
        full = self.shape.replica_identity == "f"
        old = self._tuple(row.values) if full else self._identity(row.values)
        self.changes.append(change(self.shape, "delete", old=old, old_is_key=not full))

    def _set(self, row: Row, values: Values) -> None:
        before = dict(row.values)
        if self.rng.random() < 0.3:
            row.values["ending"] = self.rng.choice(self.endings)
        row.values |= values
        toast = [name not in values and (before[name] or "").startswith("BIG") for name, _ in COLUMNS]
        cells = zip(self._tuple(row.values), toast, strict=True)
        unchanged = [
            column.name
            for column, is_unchanged in zip(self.shape.columns, toast, strict=True)
            if is_unchanged
        ]
        sent: dict[str, Any] = {
            "new": [None if is_unchanged else value for value, is_unchanged in cells],
            "unchanged": unchanged or None,
        }
        if self.shape.replica_identity == "f":
            sent |= {"old": self._tuple(before), "old_is_key": False}
        elif self._identity(before) != self._identity(row.values):
            sent |= {"old": self._identity(before), "old_is_key": True}
        self.changes.append(change(self.shape, "update", **sent))

    def _tuple(self, values: Values) -> list[str | None]:
        key = f"{self.spelt.format(values['id'])}{values['ending']}"
        return [key if name == "id" else values[name] for name, _ in COLUMNS]

    def _identity(self, values: Values) -> list[str | None]:
        cells = zip(self._tuple(values), self.shape.columns, strict=True)
        return [value if column.in_identity else None for value, column in cells]

    # -- what silver must have
    # ---------------------------------------------------------------------------------

    def note(self, lsn: int) -> None:
        """Record the rows as of a commit; a removed key keeps its last row, as deleted."""
        now = {row[:2]: row for row in self.expected()}
        if now == self.living:
            return
        self.ended |= {key: row for key, row in self.living.items() if key not in now}
        self.ended = {key: row for key, row in self.ended.items() if key not in now}
        self.living = now
        self.past[lsn] = sorted(now.values(), key=repr)

    def expected_soft(self) -> list[tuple[Any, ...]]:
        """Return rows in the form of `cells`, and `_deleted`, with soft deletes; sorted."""
        living = [(*row, False) for row in self.living.values()]
        return sorted([*living, *((*row, True) for row in self.ended.values())], key=repr)

    def expected(self) -> list[tuple[Any, ...]]:
        """Return rows in the form of `cells`, sorted."""
        expected_rows = []
        for rows in self.rows.values():
            for row in rows:
                values = row.values
                lost = values["price"] == "NaN"
                key = f"{self.spelt.format(values['id'])}{self.shown}"
                place = (int(values["space"] or 0), key, int(values["code"] or 0))
                texts = (values["note"], values["big"], values["huge"])
                price = (None, "NaN") if lost else (values["price"], None)
                expected_rows.append((*place, *texts, *price))
        return sorted(expected_rows, key=repr)

    def cells(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Return the values of a row of silver that the machine knows."""
        space, key, code, *texts, price = (row[column.name] for column in self.shape.columns)
        lost = (row["_unrepresentable"] or {}).get(self.shape.columns[-1].name)
        return (space, str(key), code, *texts, None if price is None else str(price), lost)


def random_tables(seed: int, spaces: int) -> list[RandomTable]:
    """Return a table per replica identity, with keys of several types; one table has odd column names."""
    rng = random.Random(seed)
    key, code = ("space", "id"), ("code",)

    def columns(key_type: PgType) -> list[tuple[str, PgType]]:
        return [(name, key_type if name == "id" else type_) for name, type_ in COLUMNS]

    spelling = [("Space", INT), ('the "Id"', FREE_NUMERIC), ("co-de", INT), ("select", TEXT), ("Größe", TEXT),
                ("a.b", TEXT), ("Price in $", NUMERIC)]  # fmt: skip
    odd = spelling[0][0], spelling[1][0]
    return [
        RandomTable(
            relation("s.\"Odd ' name\"", spelling, odd, relation_id=1),
            rng, spaces, spelt="{}.5", endings=("", "0", "0" * 30), shown="0" * 17,
        ),
        RandomTable(
            relation("by_full_row", columns(FREE_NUMERIC), key, relation_id=2, identity="f"),
            rng, spaces, spelt="-{}.5", endings=("", "0", "00"), shown="0" * 17,
        ),
        RandomTable(
            relation("by_index", columns(UUID), key, relation_id=3, identity="i", identity_columns=code),
            rng, spaces, unique="code", spelt="00000000-0000-0000-0000-{:0>12}",
        ),
        RandomTable(
            relation("with_key_override", columns(CHAR), key, relation_id=4, identity_columns=code),
            rng, spaces, unique="code", spelt="it's \\ {} é\n", endings=("", " ", "   "),
        ),
        RandomTable(
            relation("without_identity", COLUMNS, key, relation_id=5, identity="n", identity_columns=()),
            rng, spaces, inserts_alone=True,
        ),
    ]  # fmt: skip
