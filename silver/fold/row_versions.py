"""Build versions of rows: the row after each transaction, and the time of its validity. Pure text, no Spark.

`silver.fold.fold.commits` gives the effect of each transaction of a window on each key. The *standing* row is
the row that the table holds when the window begins. In order after the standing row, the transactions give
each version's end: the next transaction that changed or deleted the key. States inside a transaction were
never visible and are no versions. The end of a version is exclusive: as of LSN L a row is the version with
``_valid_from_lsn <= L < _valid_to_lsn``.

Both kinds of tables follow from these versions, each in one MERGE: `merge_history` and `merge_soft`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.errors import marker
from deltasmelt.silver.fold.toast import missing
from deltasmelt.silver.fold.upsert import Upsert
from deltasmelt.silver.fold.window import numbers, times_emptied
from deltasmelt.silver.fold.write_sql import in_ranges
from deltasmelt.silver.schema.catalog import (
    COMMIT_LSN,
    COMMIT_TS,
    DELETED,
    UNREPRESENTABLE,
    VALID_FROM,
    VALID_FROM_LSN,
    VALID_TO,
    VALID_TO_LSN,
)
from deltasmelt.silver.schema.live_rows import is_live
from deltasmelt.silver.schema.unrepresentable import lost_values
from deltasmelt.silver.sql import as_json, block, comma, key_text, literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.silver.fold.fold import Fold
    from deltasmelt.silver.fold.window import Window
    from deltasmelt.silver.schema.catalog import SilverTable

_BY_TEXT: Final = ("FLOAT", "DOUBLE", "MAP", "VARIANT")
"""Types that Spark cannot compare, or in which Spark treats 0 and -0 as equal."""


def standing(before: str, table: SilverTable) -> str:
    """Return the table's rows that the source has, as a relation."""
    return f"(SELECT * FROM {before} WHERE {is_live(table)})"


def versions(
    table: SilverTable,
    window: Window,
    commits: Fold,
    *,
    rows: str,
    before: str,
    ranges: Mapping[int, tuple[str, str]],
) -> str:
    """Return the versions that a window ends or begins.

    Columns:

    * the keys and values of `commits`;
    * ``standing``: whether the table has the version;
    * ``place``: the version's first LSN, 0 if standing;
    * ``commit_lsn`` and ``commit_ts`` of the first transaction;
    * ``valid_to_lsn``, ``valid_to`` and ``lost``.

    Args:
        table: the table in the shape of the window.
        window: the table's changes; the LSN of a snapshot is the window's first LSN.
        commits: the names that `silver.fold.fold.commits` returns.
        rows: the view that holds the rows of `commits`.
        before: the relation of standing rows, of `standing`.
        ranges: of the keys in the window, to skip files of the table.
    """
    keys = commits.keys
    # A TRUNCATE ends every valid version, and no later row follows an earlier row. So `emptied` counts the
    # TRUNCATEs up to each transaction (0 for standing rows), and the order is per key and count. A window
    # with any number of TRUNCATEs then takes one statement.
    partition = f"PARTITION BY {', '.join(keys.values())}, emptied ORDER BY place"
    listed = _listed(table, commits)
    together = f"""\
SELECT {listed}, commit_lsn AS place, {times_emptied(window, "commit_lsn")} AS emptied, false AS standing
FROM {rows}
UNION ALL
SELECT {listed}, 0 AS place, 0 AS emptied, true AS standing
FROM known"""
    ended = f"""\
SELECT *, lead(commit_lsn) OVER v AS next_lsn, lead(commit_ts) OVER v AS next_ts
FROM compared
WHERE part IS NOT NULL AND NOT same
WINDOW v AS ({partition})"""
    touched = None if window.ends_all else rows
    parts = [
        ("known", _standing(table, commits, before, touched, ranges)),
        ("together", together),
        ("followed", _followed(window, commits, partition, table)),
        ("filled", _filled(table, window, commits)),
        ("compared", _compared(table, window, commits, partition)),
        ("ended", ended),
    ]
    selected = [*keys.values(), "standing", "place", "commit_lsn", "commit_ts"]
    selected += [name for position, name in commits.values.items() if position not in keys]
    selected += [f"{value} AS {name}" for name, value in _ends(window).items()]
    selected.append(f"{_lost(table, commits)} AS lost")
    with_ = comma(f"{name} AS (\n  {block(query, 2)}\n)" for name, query in parts)
    return (
        f"SELECT *\nFROM (\n  WITH {block(with_, 2)}\n  SELECT {comma(selected, 4)}\n"
        "  FROM ended\n  WHERE part = 'open'\n)\nWHERE NOT standing OR valid_to_lsn IS NOT NULL"
    )


def _texts(table: SilverTable, commits: Fold) -> list[int]:
    """Return positions of columns whose text the queries carry in addition to the value."""
    return [
        position
        for position, column in enumerate(table.columns)
        if position not in commits.keys and not column.reading.exact
    ]


def _listed(table: SilverTable, commits: Fold) -> str:
    names = [*commits.keys.values(), "action", "commit_lsn", "commit_ts"]
    names += [name for position, name in commits.values.items() if position not in commits.keys]
    names += [*commits.kept_by_target.values(), *(f"text_{position}" for position in _texts(table, commits))]
    return ", ".join(names)


def _standing(
    table: SilverTable,
    commits: Fold,
    before: str,
    touched: str | None,
    ranges: Mapping[int, tuple[str, str]],
) -> str:
    """Return rows that the table holds, of the keys in `touched`; with None, of all keys."""
    names = {position: quote(column.name) for position, column in enumerate(table.columns)}
    columns = [f"t.{names[position]} AS {name}" for position, name in commits.keys.items()]
    columns += ["'upsert' AS action", f"t.{COMMIT_LSN} AS commit_lsn", f"t.{COMMIT_TS} AS commit_ts"]
    for position, name in commits.values.items():
        if position not in commits.keys:
            columns.append(f"t.{names[position]} AS {name}")
    columns += [f"false AS {name}" for name in commits.kept_by_target.values()]
    columns += [
        f"t.{quote(UNREPRESENTABLE)}[{literal(table.columns[position].name)}] AS text_{position}"
        for position in _texts(table, commits)
    ]
    query = f"SELECT {comma(columns, 2)}\nFROM {before} AS t"
    if touched is None:
        return query
    condition = " AND ".join(f"t.{names[position]} = s.{name}" for position, name in commits.keys.items())
    query += f"\nLEFT SEMI JOIN {touched} AS s ON {condition}"
    within = in_ranges(table, ranges)
    return f"{query}\nWHERE {' AND '.join(within)}" if within else query


def _followed(window: Window, commits: Fold, partition: str, table: SilverTable) -> str:
    """Return whether a row existed before each transaction, and the row's values known until then."""
    alive = "false" if window.from_empty else "true"
    exists = f"CASE WHEN standing THEN {alive} WHEN action <> 'match' THEN action <> 'delete' END"
    columns = ["*", f"coalesce(last({exists}, true) OVER before, false) AS there"]
    texts = _texts(table, commits)
    for position, flag in commits.kept_by_target.items():
        fields = f"'value', {commits.values[position]}"
        fields += f", 'text', text_{position}" if position in texts else ""
        sent = f"CASE WHEN NOT {flag} THEN named_struct({fields}) END"
        columns.append(f"last({sent}, true) OVER before AS known_{position}")
    return (
        f"SELECT {comma(columns, 2)}\nFROM together\n"
        f"WINDOW before AS ({partition} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    )


def _filled(table: SilverTable, window: Window, commits: Fold) -> str:
    """Return each transaction's effect on its key (``open``, ``close`` or none), unchanged TOAST filled."""
    key_of_row = key_text(commits.keys.values())
    unknown = "NOT there" if window.from_empty else "NOT there AND emptied > 0"
    parts = [
        "WHEN standing OR action = 'upsert' THEN 'open'",
        f"WHEN action IN ('change', 'delete') AND {unknown} THEN {marker('row-missing', key_of_row)}",
        "WHEN action = 'change' THEN 'open'",
        "WHEN action = 'match' AND there THEN 'open'",
        "WHEN action = 'delete' AND there THEN 'close'",
    ]
    columns = [*commits.keys.values(), "standing", "place", "emptied", "commit_lsn", "commit_ts"]
    columns.append(f"CASE {' '.join(parts)} END AS part")
    texts = _texts(table, commits)
    for position, name in commits.values.items():
        if position in commits.keys:
            continue
        flag, text = commits.kept_by_target.get(position), f"text_{position}"
        if flag is None:
            columns += [name, *([text] if position in texts else [])]
            continue
        # Unchanged TOAST comes from the version before, or from the standing row. Both are versions of one
        # row: at each arrival all values are known (`silver.fold.moved_rows`).
        lacks, earlier = missing(table, position, commits.keys.values()), f"known_{position}"
        cases = f"WHEN NOT {flag} THEN {name} WHEN {earlier} IS NULL THEN {lacks} ELSE {earlier}.value"
        columns.append(f"CASE {cases} END AS {name}")
        if position in texts:
            columns.append(f"CASE WHEN {flag} THEN {earlier}.text ELSE {text} END AS {text}")
    return f"SELECT {comma(columns, 2)}\nFROM followed"


def _compared(table: SilverTable, window: Window, commits: Fold, partition: str) -> str:
    """Mark snapshot rows that equal standing rows (``same``), and standing rows that stay (``kept``).

    A snapshot at the start of a window (`silver.plan.history_steps`) ends each standing row that the snapshot
    lacks or has with different values. A standing row with the same values in the snapshot stays valid, and
    the snapshot's row begins no version.
    """
    if window.snapshot is None:
        return "SELECT *, false AS same, false AS kept\nFROM filled"
    compared = [
        _comparable(name, table.columns[position].spark_type)
        for position, name in commits.values.items()
        if position not in commits.keys
    ]
    # For a value that the type holds, the stream has the text too, but the table does not.
    compared += [
        f"CASE WHEN {commits.values[position]} IS NULL THEN text_{position} END"
        for position in _texts(table, commits)
    ]
    image = f"struct({', '.join(compared or ['1'])})"
    at = int(window.snapshot)
    return (
        "SELECT *,\n"
        f"  NOT standing AND place = {at} AND coalesce(lag(standing) OVER v, false)"
        f" AND {image} <=> lag({image}) OVER v AS same,\n"
        f"  standing AND coalesce(lead(place) OVER v = {at}, false)"
        f" AND {image} <=> lead({image}) OVER v AS kept\n"
        f"FROM filled\nWINDOW v AS ({partition})"
    )


def _comparable(value: str, spark_type: str) -> str:
    if any(name in spark_type for name in _BY_TEXT):
        return as_json([value])
    return value


def _ends(window: Window) -> dict[str, str]:
    """Return the end of a version of ``ended``, as LSN and time."""
    lsn, time = "next_lsn", "next_ts"
    if window.truncates:
        lsns = numbers(truncate.commit_lsn for truncate in window.truncates)
        times = numbers(truncate.commit_ts for truncate in window.truncates)
        # The next transaction with equal key and count ends the version, else the next TRUNCATE.
        lsn = f"coalesce({lsn}, get({lsns}, emptied))"
        time = f"CASE WHEN next_lsn IS NULL THEN timestamp_micros(get({times}, emptied)) ELSE {time} END"
    if window.snapshot is not None:
        missed = "CASE WHEN standing AND NOT kept THEN"
        micros = "CAST(NULL AS BIGINT)" if window.snapshot_ts is None else window.snapshot_ts
        lsn = f"{missed} {int(window.snapshot)} ELSE {lsn} END"
        time = f"{missed} timestamp_micros({micros}) ELSE {time} END"
    return {"valid_to_lsn": lsn, "valid_to": time}


def _lost(table: SilverTable, commits: Fold) -> str:
    return lost_values(
        [
            (table.columns[position].name, f"text_{position}", commits.values[position])
            for position in _texts(table, commits)
        ]
    )


def merge_history(
    table: SilverTable, commits: Fold, source: str, ranges: Mapping[int, tuple[str, str]]
) -> Upsert:
    """Return the upsert that ends standing versions and adds the new versions.

    `commits` gives the names of the columns, `source` is the query of `versions`.
    """
    conditions = ["s.standing", f"t.{VALID_TO_LSN} IS NULL"]
    conditions += [
        f"t.{quote(table.columns[position].name)} = s.{name}" for position, name in commits.keys.items()
    ]
    conditions += in_ranges(table, ranges)
    inserts = {column.name: f"s.{commits.values[at]}" for at, column in enumerate(table.columns)}
    inserts |= {COMMIT_LSN: "s.commit_lsn", COMMIT_TS: "s.commit_ts", UNREPRESENTABLE: "s.lost"}
    inserts |= {VALID_FROM_LSN: "s.commit_lsn", VALID_TO_LSN: "s.valid_to_lsn"}
    inserts |= {VALID_FROM: "s.commit_ts", VALID_TO: "s.valid_to"}
    ended = {VALID_TO_LSN: "s.valid_to_lsn", VALID_TO: "s.valid_to"}
    return Upsert(
        source, tuple(conditions), updates=((None, ended),), inserts=inserts, inserted="NOT s.standing"
    )


def merge_soft(
    table: SilverTable, commits: Fold, source: str, ranges: Mapping[int, tuple[str, str]]
) -> Upsert:
    """Return the upsert of each key's last version, marked as deleted if the version has an end.

    So the table does not depend on when cycles ran: a row that arrived and left between two cycles is in the
    table as deleted.
    """
    # The table's key, not the fold key: only the table's key identifies deleted rows.
    key = {table.position(name): commits.values[table.position(name)] for name in table.key}
    conditions = [f"t.{quote(table.columns[position].name)} = s.{name}" for position, name in key.items()]
    if set(key) == set(commits.keys):
        conditions += in_ranges(table, ranges)
    states = {
        COMMIT_LSN: "s.last_lsn",
        COMMIT_TS: "s.last_ts",
        DELETED: "s.valid_to_lsn IS NOT NULL",
    }
    values = {column.name: f"s.{commits.values[at]}" for at, column in enumerate(table.columns)}
    values |= {UNREPRESENTABLE: "s.lost", **states}
    newest = f"""\
SELECT *,
  coalesce(valid_to_lsn, commit_lsn) AS last_lsn,
  CASE WHEN valid_to_lsn IS NULL THEN commit_ts ELSE valid_to END AS last_ts
FROM (
  SELECT *, row_number() OVER (PARTITION BY {", ".join(key.values())} ORDER BY place DESC) AS newest
  FROM (
    {block(source, 4)}
  )
)
WHERE newest = 1"""
    return Upsert(
        newest,
        tuple(conditions),
        updates=(("s.standing", states), (None, values)),
        inserts=values,
        inserted="NOT s.standing",
    )
