"""Describe the input of a fold: one table's changes in one window, and the shapes of the changed rows.

The query returns rows in the table's own column order, whatever their shape, and without rows that a snapshot
or a TRUNCATE has made void. Pure text, no Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.bronze.shapes import BY_KEY
from deltasmelt.silver.errors import marker
from deltasmelt.silver.fold.toast import is_unchanged_toast, unchanged_toast
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.silver.fold.column_mapping import ColumnMapping
    from deltasmelt.silver.schema.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Facts:
    """Known properties of a window before the fold.

    A property claimed without need costs time; a missing property gives wrong rows.

    Attributes:
        inserts, updates, deletes: whether the window may have such changes.
        old_tuples: number of updates with an old tuple, which may change a key.
        unchanged_toast: columns that some update left as unchanged TOAST (`silver.fold.toast`), by their
            names at the time.
        moved_unchanged_toast: number of updates with both an old tuple and such columns.
    """

    inserts: bool = True
    updates: bool = True
    deletes: bool = True
    old_tuples: int = 0
    unchanged_toast: frozenset[str] = frozenset()
    moved_unchanged_toast: int = 0


@dataclass(frozen=True, slots=True)
class Barrier:
    """A position at which the state starts empty: a complete snapshot, or a TRUNCATE.

    Attributes:
        commit_lsn: of the transaction; for a snapshot the snapshot's LSN.
        seq: of the TRUNCATE; None for a snapshot.
        commit_ts: in microseconds since 1970; None if unknown.
    """

    commit_lsn: Lsn
    seq: int | None
    commit_ts: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """The changes of one table that one statement folds: ``start < commit_lsn <= end``.

    Attributes:
        changes: `bronze.changes` as Spark SQL, at a pinned version.
        fold_key: columns that identify a row in every old tuple.
        shapes: possible shapes of rows, newest first; a single shape needs no comparison.
        announcing: whether rows may have more than one shape.
        snapshot: LSN of the newest complete snapshot in the window. Neither earlier changes nor the target
            count.
        truncated: (commit_lsn, seq) of the last TRUNCATE after the snapshot, with the same effect.
        snapshot_ts: commit time of the snapshot, in microseconds since 1970, where needed.
        truncates: of a table of versions, the last TRUNCATE of each transaction after the snapshot, in order.
            Earlier changes count: their versions end at the TRUNCATE.
    """

    changes: str
    relation_id: int
    start: Lsn
    end: Lsn
    fold_key: tuple[str, ...]
    shapes: tuple[ColumnMapping, ...]
    facts: Facts
    announcing: bool = False
    snapshot: Lsn | None = None
    truncated: tuple[int, int] | None = None
    snapshot_ts: int | None = None
    truncates: tuple[Barrier, ...] = ()

    @property
    def from_empty(self) -> bool:
        """Check whether the state starts empty, whatever the target holds."""
        return self.snapshot is not None or self.truncated is not None

    @property
    def ends_all(self) -> bool:
        """Check whether the window may end every row of the target, not only rows of the window's keys."""
        return self.from_empty or bool(self.truncates)


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The columns that identify a window's rows, and the columns that may be unchanged TOAST.

    Attributes:
        keys: name of each fold key column in the queries, by its position in the table.
        unchanged_toast: positions of columns that may be unchanged TOAST in an update, and in no old tuple.
        by_content: whether every old tuple is the full row, so that the content identifies rows.
        moved: whether a row may have moved with unchanged TOAST.
    """

    keys: dict[int, str]
    unchanged_toast: list[int]
    by_content: bool
    moved: bool

    @classmethod
    def of(cls, table: SilverTable, window: Window) -> ColumnRoles:
        """Return the roles of the columns in this window."""
        facts = window.facts
        keys = {table.position(name): f"key_{table.position(name)}" for name in window.fold_key}
        # In the transaction that announces a new shape, the text of an old tuple may differ from the row as
        # added. Contents would not match, so the key identifies the rows of such a window.
        full = table.relation.replica_identity == "f" and not window.announcing
        by_content = full and (facts.deletes or facts.old_tuples > 0)
        toast = [] if by_content else unchanged_toast(window.shapes, facts.unchanged_toast, keys)
        return cls(keys, toast, by_content, bool(toast) and facts.moved_unchanged_toast > 0)


def rows_query(table: SilverTable, window: Window) -> str:
    """Return the window's rows with `new` and `old` in the table's column order, barriers applied."""
    low = window.start
    kinds = "op IN ('insert', 'update', 'delete')"
    if window.snapshot is not None:
        low = type(window.start)(window.snapshot - 1)
        at = int(window.snapshot)
        kinds = f"(op = 'snapshot' AND commit_lsn = {at} OR {kinds} AND commit_lsn > {at})"
    conditions = [
        f"relation_id = {window.relation_id}",
        f"commit_lsn > {int(low)}",
        f"commit_lsn <= {int(window.end)}",
        kinds,
    ]
    if window.truncated is not None:
        lsn, seq = window.truncated
        conditions += [f"commit_lsn >= {lsn}", f"(commit_lsn > {lsn} OR seq > {seq})"]
    # Changes of a transaction before its own TRUNCATE were never visible.
    if inside := [truncate for truncate in window.truncates if truncate.seq]:
        last = f"{_reached([truncate.commit_lsn for truncate in inside], 'commit_lsn')} - 1"
        lsns, seqs = (
            numbers(truncate.commit_lsn for truncate in inside),
            numbers(truncate.seq for truncate in inside),
        )
        void = f"get({lsns}, {last}) = commit_lsn AND seq < get({seqs}, {last})"
        conditions.append(f"NOT coalesce({void}, false)")
    new, old, unchanged = "new", "old", "unchanged"
    if len(window.shapes) > 1 or not window.shapes[0].straight:
        new, old, unchanged = (
            _shaped(window, "new"),
            _shaped(window, "old"),
            _renamed(table, window),
        )
    columns = ["commit_lsn", "seq", "commit_ts", "op", _named(new, "new")]
    if window.facts.old_tuples or window.facts.deletes:
        columns.append(_named(old, "old"))
    if window.facts.unchanged_toast:
        # For a partitioned table the stream does not show which old tuples are full rows.
        by_key = table.relation.replica_identity == BY_KEY
        columns += [_named(unchanged, "unchanged"), "true AS old_is_key" if by_key else "old_is_key"]
    condition = "\n  AND ".join(conditions)
    return f"SELECT {', '.join(columns)}\nFROM {window.changes}\nWHERE {condition}"


def times_emptied(window: Window, lsn: str) -> str:
    """Return the number of the window's `truncates` up to an LSN (SQL): only rows of equal numbers match."""
    return _reached([truncate.commit_lsn for truncate in window.truncates], lsn) if window.truncates else "0"


def _reached(lsns: list[Lsn], lsn: str) -> str:
    """Count ascending LSNs up to `lsn`, by halving: each row counts, and the LSNs may be thousands."""
    halves = ", ".join(str(2**power) for power in reversed(range(len(lsns).bit_length())))
    further = f"CASE WHEN get({numbers(lsns)}, reached + half - 1) <= {lsn} THEN half ELSE 0 END"
    return f"aggregate(array({halves}), 0, (reached, half) -> reached + {further})"


def numbers(values: Iterable[int | None]) -> str:
    """Return an array that Spark reads once, when it plans the query."""
    return f"from_json({literal(json.dumps(list(values)))}, 'ARRAY<BIGINT>')"


def _named(expression: str, name: str) -> str:
    return expression if expression == name else f"{expression} AS {name}"


def _names(shape: ColumnMapping) -> str:
    return f"array({', '.join(literal(name) for name in shape.names)})"


def _is_of(shape: ColumnMapping, newer: ColumnMapping | None) -> str:
    """Return the condition that a row has a shape: by the row's position, and by the shape's names."""
    # Names alone cannot identify the shape: a transaction may drop a column and add another with its name.
    places = [_after(shape.after)] + ([] if newer is None else [f"NOT {_after(newer.after)}"])
    return " AND ".join([*places, f"columns = {_names(shape)}"])


def _after(place: tuple[int, int]) -> str:
    return f"(commit_lsn > {place[0]} OR commit_lsn = {place[0]} AND lsn > {place[1]})"


def _with_newer(window: Window) -> list[tuple[ColumnMapping, ColumnMapping | None]]:
    """Return each shape with the next newer shape."""
    return list(zip(window.shapes, [None, *window.shapes], strict=False))


def _shaped(window: Window, tuple_name: str) -> str:
    """Return a tuple in the table's order, whatever the row's shape."""
    cases = []
    for shape, newer in _with_newer(window):
        cells = ", ".join(
            f"CAST({literal(missing)} AS STRING)" if position is None else f"{tuple_name}[{position}]"
            for position, missing in zip(shape.positions, shape.missing, strict=True)
        )
        cases.append(
            f"WHEN {_is_of(shape, newer)} THEN {tuple_name if shape.straight else f'array({cells})'}"
        )
    unknown = marker("unknown-shape", "'columns '", "array_join(columns, ', ')")
    return f"CASE WHEN {tuple_name} IS NULL THEN NULL {' '.join(cases)} ELSE {unknown} END"


def _renamed(table: SilverTable, window: Window) -> str:
    """Return `unchanged` by the table's names, also for rows written under different names."""
    cases = []
    for shape, newer in _with_newer(window):
        renamed = shape.renamed(table.columns)
        if not renamed.keys().isdisjoint(window.facts.unchanged_toast):
            renames = " ".join(
                f"WHEN {literal(name)} THEN {'NULL' if new is None else literal(new)}"
                for name, new in renamed.items()
            )
            names = f"transform(unchanged, c -> CASE c {renames} ELSE c END)"
            # A column that the table no longer has drops out: another column may now have its name.
            cases.append(f"WHEN {_is_of(shape, newer)} THEN filter({names}, c -> c IS NOT NULL)")
    return f"CASE {' '.join(cases)} ELSE unchanged END" if cases else "unchanged"


def key_texts(table: SilverTable, window: Window, keys: Mapping[int, str]) -> dict[int, str]:
    """Return the text of each key column, by position, at which a change leaves or finds its row."""
    toast = set(unchanged_toast(window.shapes, window.facts.unchanged_toast, ()))
    texts = {}
    for position in keys:
        # Only a delete has no new tuple; a NULL in a new tuple is a NULL.
        text = f"coalesce(new, old)[{position}]" if window.facts.deletes else f"new[{position}]"
        if position in toast and window.facts.old_tuples:
            # PostgreSQL then logs the column in the old tuple alone.
            text = f"CASE WHEN {is_unchanged_toast(table, position)} THEN old[{position}] ELSE {text} END"
        texts[position] = text
    return texts


def key_expression(table: SilverTable, position: int, text: str) -> str:
    """Return the typed value of a key column; a value that the type cannot hold stops the table."""
    column = table.columns[position]
    value = column.reading.value(text, 0)
    if column.reading.exact:
        return value
    failed = marker("key-unrepresentable", literal(f"column {column.name}, value "), text)
    return f"CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN {failed} ELSE {value} END"


def key_struct(fields: dict[str, str]) -> str:
    """Return a struct of typed keys."""
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"
