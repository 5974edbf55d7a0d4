"""The fold: a window of raw changes to one row per key, as one Spark SQL query. Pure text, no Spark.

**Events.** Seen from a key, a change is one of three: a row *arrives* (insert, snapshot row, or an update
that moved a row here), the row that is here *changes*, or it *leaves* (delete, or an update that moved it
away). An update that changes the key is a leave at the old key and an arrival at the new one.

**Who is here at the end.** At the end of every transaction a key holds one row or none. Inside one, under a
deferred constraint, it may hold two for a while (``UPDATE t SET id = CASE …`` swaps 1 and 2 by "1 becomes 2",
"2 becomes 1"): the arrival then comes
*before* the leave, and the leave is the older row's. So events are counted, not read as a sequence: with
*before* (0 or 1) rows in the target, *before* + arrivals - leaves rows are there afterwards; and if one is,
it is the one that arrived last, with what changed since. Where the count alone does not say whether the
target had a row (arrivals = leaves, an arrival first), MERGE itself decides: a row that is there is
overwritten, one that is not stays away.

    arrivals - leaves   first event        before   action
           +1           any                   0     upsert
           -1           any                   1     delete
            0           change or leave       1     upsert
            0           arrival            0 or 1   match: update if there is a row

This needs the target to be exactly the state at the window's start, which the transaction mark guarantees:
each window is merged once.

**Values that were not sent.** An out-of-line value that an update left alone is not in the stream. For each
such column the newest value sent since the last arrival counts (fill forward *before* reducing to one row).
If none was sent and the row has been here since before the window, the target's own value stays (`pending`);
MERGE keeps it column by column. If the row moved here without its value, `silver.moves` finds it where the
row came from. Filling from the old tuple is right only under REPLICA IDENTITY FULL: elsewhere a NULL in it
means "not part of the identity".

One GROUP BY with hash-partitioned aggregates does all this; text becomes typed values only after the
reduction, key columns excepted. `Facts` about the window leave out what it does not need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from silver.catalog import OWN_COLUMNS, UNREPRESENTABLE
from silver.errors import marker
from silver.moves import links, shortened, target_key, unsent
from silver.sql import block, comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bronze.lsn import Lsn
    from silver.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a window before it is folded: too much costs time, too little is wrong.

    Attributes:
        inserts, updates, deletes: whether there may be such changes.
        old_tuples: updates that carry an old tuple, so that a key may have changed.
        unchanged: columns whose out-of-line value some update did not send.
        moved_unchanged: how many updates carry both an old tuple and such columns.
    """

    inserts: bool = True
    updates: bool = True
    deletes: bool = True
    old_tuples: int = 0
    unchanged: frozenset[str] = frozenset()
    moved_unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns as they stand in `new` and `old` of some rows, mapped to the table's columns.

    Attributes:
        names: the `columns` of those rows.
        positions: for each column of the table: where it stands in `names`; None where it did not exist.
    """

    names: tuple[str, ...]
    positions: tuple[int | None, ...]

    @property
    def straight(self) -> bool:
        """Whether the rows are already in the table's order."""
        return self.positions == tuple(range(len(self.names)))


@dataclass(frozen=True, slots=True)
class Window:
    """The changes of one table that one statement folds: ``start < commit_lsn <= end``.

    Attributes:
        changes: `bronze.changes` as Spark SQL, at a pinned version.
        relation_id: the relation whose changes count.
        fold_key: columns that identify a row in every old tuple.
        shapes: how rows may look, newest first; one alone needs no comparison.
        snapshot: LSN of the newest complete snapshot in the window: what came before it does not count, nor
            does the target.
        truncated: (commit_lsn, seq) of the last TRUNCATE after it, likewise.
    """

    changes: str
    relation_id: int
    start: Lsn
    end: Lsn
    fold_key: tuple[str, ...]
    shapes: tuple[Shape, ...]
    facts: Facts
    snapshot: Lsn | None = None
    truncated: tuple[int, int] | None = None

    @property
    def from_empty(self) -> bool:
        """Whether the state starts empty, whatever the target holds."""
        return self.snapshot is not None or self.truncated is not None


@dataclass(frozen=True, slots=True)
class Fold:
    """The query and how its columns are called.

    Attributes:
        query: gives one row per key: `keys`, ``action``, ``commit_lsn``, ``commit_ts``, ``lost``, `values`,
            `pending`.
        keys: name of each fold key column in the query, by its position in the table.
        values: name of each column's value, by position.
        pending: flag "the target's value stays", by position, where there may be such.
    """

    query: str
    keys: dict[int, str]
    values: dict[int, str]
    pending: dict[int, str]


def rows_query(table: SilverTable, window: Window) -> str:
    """The window's rows with `new` and `old` in the table's column order, barriers applied."""
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
    new, old, unchanged = "new", "old", "unchanged"
    if len(window.shapes) > 1 or not window.shapes[0].straight:
        new, old, unchanged = (
            _shaped(window, "new"),
            _shaped(window, "old"),
            _renamed(table, window),
        )
    columns = ["commit_lsn", "seq", "commit_ts", "op", f"{new} AS new"]
    if window.facts.old_tuples or window.facts.deletes:
        columns.append(f"{old} AS old")
    if window.facts.unchanged:
        columns += [f"{unchanged} AS unchanged", "old_is_key"]
    where = "\n  AND ".join(conditions)
    return f"SELECT {', '.join(columns)}\nFROM {window.changes}\nWHERE {where}"


def _names(shape: Shape) -> str:
    return f"array({', '.join(literal(name) for name in shape.names)})"


def _shaped(window: Window, tuple_name: str) -> str:
    """A tuple in the table's order, whichever shape the row was written with."""
    cases = []
    for shape in window.shapes:
        cells = ", ".join(
            "CAST(NULL AS STRING)" if position is None else f"{tuple_name}[{position}]"
            for position in shape.positions
        )
        cases.append(
            f"WHEN columns = {_names(shape)} THEN {tuple_name if shape.straight else f'array({cells})'}"
        )
    unknown = marker("unknown-shape", "'columns '", "array_join(columns, ', ')")
    return f"CASE WHEN {tuple_name} IS NULL THEN NULL {' '.join(cases)} ELSE {unknown} END"


def _renamed(table: SilverTable, window: Window) -> str:
    """`unchanged` by the table's names, where a row was written under other ones."""
    cases = []
    for shape in window.shapes:
        renames = [
            f"WHEN {literal(shape.names[position])} THEN {literal(table.columns[index].name)}"
            for index, position in enumerate(shape.positions)
            if position is not None and shape.names[position] != table.columns[index].name
        ]
        if renames:
            renamed = f"transform(unchanged, c -> CASE c {' '.join(renames)} ELSE c END)"
            cases.append(f"WHEN columns = {_names(shape)} THEN {renamed}")
    return f"CASE {' '.join(cases)} ELSE unchanged END" if cases else "unchanged"


def key_expression(table: SilverTable, position: int, text: str) -> str:
    """The typed value of a key column; a value that its type cannot hold stops the table."""
    column = table.columns[position]
    value = column.reading.value(text, 0)
    if column.reading.exact:
        return value
    failed = marker("key-unrepresentable", literal(f"column {column.name}, value "), text)
    return f"CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN {failed} ELSE {value} END"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which columns play which part in a window."""

    keys: dict[int, str]
    left_out: list[int]
    moved: bool

    @classmethod
    def of(cls, table: SilverTable, window: Window) -> _Layout:
        keys = {table.position(name): f"key_{table.position(name)}" for name in window.fold_key}
        left_out = [
            position
            for position, column in enumerate(table.columns)
            if column.name in window.facts.unchanged and position not in keys
        ]
        return cls(keys, left_out, bool(left_out) and window.facts.moved_unchanged > 0)


def moves(table: SilverTable, window: Window, *, target: str) -> tuple[str, Callable[[str], str]] | None:
    """How to find values that moved with their row (`silver.moves`); None where the window has no such moves.

    Returns:
        A query that gives the links, and one round over a table of links. Rounds are needed until no link has
        a ``parent``.
    """
    layout = _Layout.of(table, window)
    if not layout.moved:
        return None
    parts = [
        ("changes", rows_query(table, window)),
        ("events", _events(table, window, layout.keys, filled=True)),
        *links(table, layout.keys, layout.left_out, target=None if window.from_empty else target),
    ]
    return _with(parts, ["*"], "origins"), lambda origins: shortened(layout.left_out, origins)


def fold(table: SilverTable, window: Window, *, target: str, origins: str | None = None) -> Fold:
    """The whole query.

    Args:
        table: the table in the shape that it has at the window's end.
        window: the changes.
        target: the silver table as Spark SQL at its version before the window.
        origins: table of resolved `moves`; None where there are none.
    """
    layout = _Layout.of(table, window)
    keys, left_out = layout.keys, layout.left_out
    home = None if window.from_empty or origins is None else target
    values = {position: keys.get(position, f"value_{position}") for position in range(len(table.columns))}
    pending = {} if window.from_empty else {position: f"pending_{position}" for position in left_out}
    parts = [
        ("changes", rows_query(table, window)),
        ("events", _events(table, window, keys, filled=bool(left_out))),
        ("folded", _folded(table, keys, left_out)),
        ("texts", _texts(table, window, layout, origins=origins, target=home)),
        ("typed", _typed(table, keys, left_out if home else [], list(pending.values()))),
    ]
    selected = [*keys.values(), "action", "commit_lsn", "commit_ts"]
    selected += [name for position, name in values.items() if position not in keys]
    selected += [*pending.values(), f"{_lost(table, keys)} AS lost"]
    query = _with(parts, selected)
    if window.from_empty:
        query += "\nWHERE action = 'upsert'"
    return Fold(query, keys, values, pending)


def unfolded(table: SilverTable, window: Window) -> Fold:
    """The window's rows as they are, where each is known to be the only one of its key: no shuffle."""
    keys = {table.position(name): f"key_{table.position(name)}" for name in window.fold_key}
    values = {position: keys.get(position, f"value_{position}") for position in range(len(table.columns))}
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    columns = [
        f"{key_expression(table, position, f'new[{position}]')} AS {name}" for position, name in keys.items()
    ]
    columns += ["commit_lsn", "commit_ts"]
    columns += [f"new[{position}] AS text_{position}" for position in values if position not in keys]
    read = [f"CASE WHEN {no_key} THEN {marker('key-missing')} ELSE 'upsert' END AS action", *keys.values()]
    parts = [
        ("changes", rows_query(table, window)),
        ("folded", f"SELECT {comma(columns, 2)}\nFROM changes"),
        ("texts", f"SELECT {comma([*read, '* EXCEPT (' + ', '.join(keys.values()) + ')'], 2)}\nFROM folded"),
        ("typed", _typed(table, keys, [], [])),
    ]
    selected = [*keys.values(), "action", "commit_lsn", "commit_ts"]
    selected += [name for position, name in values.items() if position not in keys]
    query = _with(parts, [*selected, f"{_lost(table, keys)} AS lost"])
    return Fold(f"{query}\nWHERE action = 'upsert'", keys, values, {})


def key_ranges(table: SilverTable, window: Window, keys: dict[int, str]) -> str:
    """Smallest and largest value of each key column in the window, as text: ``low_<n>``, ``high_<n>``."""
    columns = [
        f"CAST({function}({name}) AS STRING) AS {which}_{position}"
        for position, name in keys.items()
        for function, which in (("min", "low"), ("max", "high"))
    ]
    parts = [
        ("changes", rows_query(table, window)),
        ("events", _events(table, window, keys, filled=False)),
    ]
    return _with(parts, columns, "events")


def _with(parts: Sequence[tuple[str, str]], selected: Sequence[str], source: str = "typed") -> str:
    with_ = comma(f"{name} AS (\n  {block(query, 2)}\n)" for name, query in parts)
    return f"WITH {with_}\nSELECT {comma(selected, 2)}\nFROM {source}"


def _events(table: SilverTable, window: Window, keys: dict[int, str], *, filled: bool) -> str:
    """One row per event: where, of which kind, with which image."""
    facts = window.facts
    image, unchanged = "new", "unchanged"
    if filled and facts.old_tuples:  # under REPLICA IDENTITY FULL the old tuple has every value
        names = ", ".join(literal(column.name) for column in table.columns)
        image = (
            f"CASE WHEN old_is_key = false AND unchanged IS NOT NULL THEN transform(array({names}), "
            "(c, i) -> CASE WHEN array_contains(unchanged, c) THEN old[i] ELSE new[i] END) ELSE new END"
        )
        unchanged = "CASE WHEN old_is_key = false THEN NULL ELSE unchanged END"
    columns = ["commit_lsn", "seq", "commit_ts", f"{image} AS image"]
    if filled:
        columns.append(f"{unchanged} AS unchanged")
    kind = "CASE op WHEN 'delete' THEN 'leave' WHEN 'update' THEN 'change' ELSE 'arrive' END"
    # A key column that lies out of line is not sent again either; the old tuple then carries it.
    text = "coalesce(new[{0}], old[{0}])" if facts.old_tuples or facts.deletes else "new[{0}]"
    here = {name: key_expression(table, position, text.format(position)) for position, name in keys.items()}
    if not facts.old_tuples:
        columns += [f"{kind} AS kind", *(f"{value} AS {name}" for name, value in here.items())]
        return f"SELECT {comma(columns, 2)}\nFROM changes"
    before = {name: key_expression(table, position, f"old[{position}]") for position, name in keys.items()}
    keyed = [
        "*",
        f"{kind} AS op_kind",
        f"{_struct(here)} AS here",
        f"CASE WHEN op = 'update' AND old IS NOT NULL THEN {_struct(before)} END AS there",
    ]
    none = "CASE WHEN false THEN there END"
    leave = f"named_struct('kind', 'leave', 'here', there, 'before', {none})"
    arrive = "named_struct('kind', 'arrive', 'here', here, 'before', there)"
    stay = f"named_struct('kind', op_kind, 'here', here, 'before', {none})"
    split = (
        f"CASE WHEN there IS NOT NULL AND there <> here THEN array({leave}, {arrive}) ELSE array({stay}) END"
    )
    columns += ["event.kind", *(f"event.here.{name}" for name in keys.values()), "event.before"]
    return f"""\
SELECT {comma(columns, 2)}
FROM (
  SELECT *, explode({split}) AS event
  FROM (
    SELECT {comma(keyed, 6)}
    FROM changes
  )
)"""


def _struct(fields: dict[str, str]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"


def _folded(table: SilverTable, keys: dict[int, str], left_out: list[int]) -> str:
    """One row per key: counts, the newest image, the newest value of columns that were left out."""
    place = "struct(commit_lsn, seq)"
    columns = [
        *keys.values(),
        "sum(CASE kind WHEN 'arrive' THEN 1 WHEN 'leave' THEN -1 ELSE 0 END) AS gained",
        f"min_by(kind, {place}) AS first_kind",
        "max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE kind <> 'leave') AS last_event",
        f"max_by(image, {place}) FILTER (WHERE kind <> 'leave') AS image",
    ]
    if left_out:
        columns.append(f"max({place}) FILTER (WHERE kind = 'arrive') AS arrived")
    columns += [
        f"max_by(struct({place} AS place, image[{position}] AS text), {place})"
        f" FILTER (WHERE kind <> 'leave' AND NOT {unsent(table, position)}) AS sent_{position}"
        for position in left_out
    ]
    return f"SELECT {comma(columns, 2)}\nFROM events\nGROUP BY {', '.join(keys.values())}"


def _action(window: Window, keys: dict[int, str]) -> str:
    which = f"concat_ws(', ', {', '.join(f'CAST({name} AS STRING)' for name in keys.values())})"
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    twice = "gained > 1 OR gained < -1 OR gained = 1 AND first_kind <> 'arrive'"
    if window.from_empty:
        rest = f"""\
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = 0 AND first_kind = 'arrive' THEN 'nothing'
  ELSE {marker("row-missing", which)}"""
    else:
        rest = """\
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = -1 THEN 'delete'
  WHEN first_kind = 'arrive' THEN 'match'
  ELSE 'upsert'"""
    return f"""\
CASE
  WHEN {no_key} THEN {marker("key-missing")}
  WHEN {twice} THEN {marker("key-not-unique", which)}
{rest}
END"""


def _texts(
    table: SilverTable,
    window: Window,
    layout: _Layout,
    *,
    origins: str | None,
    target: str | None,
) -> str:
    """PostgreSQL's text of each column of the row that is there at the end."""
    keys, left_out, moved = layout.keys, layout.left_out, origins is not None
    which = f"concat_ws(', ', {', '.join(f'CAST(f.{name} AS STRING)' for name in keys.values())})"
    columns = [f"f.{name}" for name in keys.values()]
    columns += [
        f"{block(_action(window, keys), 2)} AS action",
        "last_event.commit_lsn",
        "last_event.commit_ts",
    ]
    joins = ""
    if moved:
        joins = f"\nLEFT JOIN {origins} AS o ON o.place = f.arrived"
        if target is not None:
            joins += f"\nLEFT JOIN {target} AS home ON {target_key('home', table, keys, 'o.home')}"
    for position, column in enumerate(table.columns):
        if position in keys:
            continue
        if position not in left_out:
            columns.append(f"f.image[{position}] AS text_{position}")
            continue
        sent = (
            f"f.sent_{position} IS NOT NULL AND (f.arrived IS NULL OR f.sent_{position}.place >= f.arrived)"
        )
        gone = "gained = -1" if not window.from_empty else "gained < 1"
        cases = [f"WHEN {sent} THEN f.sent_{position}.text"]
        if moved:
            cases.append(f"WHEN o.sent_{position} IS NOT NULL THEN o.sent_{position}.text")
        missing = marker("value-missing", literal(f"column {column.name}, row "), which)
        if moved and target is not None:
            first = quote(table.columns[next(iter(keys))].name)
            name = literal(column.name)
            cases.append(f"WHEN home.{first} IS NOT NULL THEN home.{quote(UNREPRESENTABLE)}[{name}]")
            at_home = f"NOT ({sent}) AND o.sent_{position} IS NULL AND home.{first} IS NOT NULL"
            columns.append(f"{at_home} AS at_home_{position}")
            columns.append(f"home.{quote(column.name)} AS home_{position}")
        if window.from_empty:
            cases.append(f"WHEN NOT ({gone}) THEN {missing}")
        else:
            cases.append(f"WHEN NOT ({gone}) AND f.arrived IS NOT NULL THEN {missing}")
            columns.append(
                f"f.arrived IS NULL AND f.sent_{position} IS NULL AND NOT ({gone}) AS pending_{position}"
            )
        columns.append(f"CASE {' '.join(cases)} END AS text_{position}")
    return f"SELECT {comma(columns, 2)}\nFROM folded AS f{joins}"


def _typed(table: SilverTable, keys: dict[int, str], at_home: list[int], pending: list[str]) -> str:
    """Text to values, one row per key."""
    columns = [*keys.values(), "action", "commit_lsn", "commit_ts", *pending]
    for position, column in enumerate(table.columns):
        if position in keys:
            continue
        value = column.reading.value(f"text_{position}", 0)
        if position in at_home:
            value = f"CASE WHEN at_home_{position} THEN home_{position} ELSE {value} END"
        columns.append(f"{value} AS value_{position}")
        if not column.reading.exact:
            columns.append(f"text_{position}")
    return f"SELECT {comma(columns, 2)}\nFROM texts"


def lost_values(losable: Sequence[tuple[str, str, str]]) -> str:
    """The map of texts that their types do not hold, from (column, text, value); NULL without any."""
    if not losable:
        return f"CAST(NULL AS {OWN_COLUMNS[UNREPRESENTABLE]})"
    anything = " OR ".join(f"{text} IS NOT NULL AND {value} IS NULL" for _, text, value in losable)
    entries = ", ".join(
        f"{literal(column)}, CASE WHEN {value} IS NULL THEN {text} END" for column, text, value in losable
    )
    return f"CASE WHEN {anything}\n    THEN map_filter(map({entries}), (name, text) -> text IS NOT NULL) END"


def _lost(table: SilverTable, keys: dict[int, str]) -> str:
    return lost_values(
        [
            (column.name, f"text_{position}", f"value_{position}")
            for position, column in enumerate(table.columns)
            if position not in keys and not column.reading.exact
        ]
    )
