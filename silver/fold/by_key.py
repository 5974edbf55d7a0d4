"""Identify rows by their key: events at each key, reduced to one row per key. Pure text, no Spark.

**Events.** Seen from a key, each change is an arrival, a change or a leave. A row *arrives* by an insert, a
snapshot row, or an update that moves the row to this key. A row *changes* in place. A row *leaves* by a
delete, or by an update that moves the row away. An update of the key is a leave at the old key and an arrival
at the new key.

**The row at the end.** At the end of every transaction a key holds one row or none. With *before* (0 or 1)
rows in the target, the key holds *before* + arrivals - leaves rows. If the sum is 1, the row is the last
arrival with all later changes (`folded`).

    arrivals - leaves   first event        before   action
           +1           arrival               0     upsert
           -1           any                   1     delete
            0           change or leave       1     upsert
            0           arrival            0 or 1   match: update if the target has a row

In the last case the counts do not determine whether the target had a row, and MERGE itself decides
(`action`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.errors import marker
from deltasmelt.silver.fold.toast import NOT_IN_OLD_TUPLE, newest_sent, sent_tuple
from deltasmelt.silver.fold.window import key_expression, key_struct, key_texts
from deltasmelt.silver.sql import comma, key_text

if TYPE_CHECKING:
    from deltasmelt.silver.fold.window import Window
    from deltasmelt.silver.schema.catalog import SilverTable


def events(table: SilverTable, window: Window, keys: dict[int, str], *, filled: bool) -> str:
    """Return one row per event: the key, the kind and the image.

    With `filled`, columns may be unchanged TOAST, and ``unchanged`` names those columns of the event.
    """
    facts = window.facts
    fills = filled and facts.old_tuples
    image = sent_tuple(table) if fills else "new"
    columns = ["commit_lsn", "seq", "commit_ts", f"{image} AS image"]
    if filled:
        columns.append(f"{NOT_IN_OLD_TUPLE} AS unchanged" if fills else "unchanged")
    kind = "CASE op WHEN 'delete' THEN 'leave' WHEN 'update' THEN 'change' ELSE 'arrive' END"
    texts = key_texts(table, window, keys)
    new_key = {name: key_expression(table, position, texts[position]) for position, name in keys.items()}
    if not facts.old_tuples:
        columns += [f"{kind} AS kind", *(f"{value} AS {name}" for name, value in new_key.items())]
        return f"SELECT {comma(columns, 2)}\nFROM changes"
    old_key = {name: key_expression(table, position, f"old[{position}]") for position, name in keys.items()}
    keyed = [
        "*",
        f"{kind} AS op_kind",
        f"{key_struct(new_key)} AS here",
        f"CASE WHEN op = 'update' AND old IS NOT NULL THEN {key_struct(old_key)} END AS there",
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


def folded(
    table: SilverTable, keys: dict[int, str], unchanged_toast: list[int], *, each_commit: bool = False
) -> str:
    """Return one row per key: counts, the newest image, the newest value sent of unchanged TOAST.

    With `each_commit`, return one row per key and transaction.
    """
    place = "struct(commit_lsn, seq)"
    columns = [
        *keys.values(),
        *(["commit_lsn", "max(commit_ts) AS commit_ts"] if each_commit else []),
        # Counts, never a sequence: inside a transaction a deferred constraint lets a key hold two rows for a
        # while. `UPDATE t SET id = CASE …` swaps 1 and 2 by "1 becomes 2", "2 becomes 1", so the arrival
        # precedes the older row's leave. A deferrable key cannot be a replica identity: such tables have
        # REPLICA IDENTITY FULL, and `silver.fold.by_content` also knows to which of the two rows an event
        # belongs.
        "sum(CASE kind WHEN 'arrive' THEN 1 WHEN 'leave' THEN -1 ELSE 0 END) AS gained",
        f"min_by(kind, {place}) AS first_kind",
        "max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE kind <> 'leave') AS last_event",
        f"max_by(image, {place}) FILTER (WHERE kind <> 'leave') AS image",
    ]
    # Unchanged TOAST is filled forward before the reduction to one row: for each such column the fold keeps
    # the newest value sent next to the newest image.
    columns += newest_sent(table, unchanged_toast, place)
    groups = [*keys.values(), *(["commit_lsn"] if each_commit else [])]
    return f"SELECT {comma(columns, 2)}\nFROM events\nGROUP BY {', '.join(groups)}"


def action(window: Window, keys: dict[int, str]) -> str:
    """Return the action of MERGE for a key of ``folded``, by the table in the module's docstring."""
    key_of_row = key_text(keys.values())
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    twice = "gained > 1 OR gained < -1 OR gained = 1 AND first_kind <> 'arrive'"
    if window.from_empty:
        actions = f"""\
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = 0 AND first_kind = 'arrive' THEN 'nothing'
  ELSE {marker("row-missing", key_of_row)}"""
    else:
        # `match` overwrites an existing row and inserts nothing where the target has none.
        actions = """\
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = -1 THEN 'delete'
  WHEN first_kind = 'arrive' THEN 'match'
  ELSE 'upsert'"""
    return f"""\
CASE
  WHEN {no_key} THEN {marker("key-missing")}
  WHEN {twice} THEN {marker("key-not-unique", key_of_row)}
{actions}
END"""


def action_at_commit(keys: dict[int, str]) -> str:
    """Return the action of a transaction on a key of ``folded`` with `each_commit`.

    ``upsert``: a row arrives. ``change``: the existing row changes. ``delete``: the row leaves. ``match``: a
    row arrived and a row left, so the key has a row exactly if the key had a row before.
    """
    key_of_row = key_text(keys.values())
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    twice = "gained > 1 OR gained < -1 OR gained = 1 AND first_kind <> 'arrive'"
    return f"""\
CASE
  WHEN {no_key} THEN {marker("key-missing")}
  WHEN {twice} THEN {marker("key-not-unique", key_of_row)}
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = -1 THEN 'delete'
  WHEN first_kind = 'arrive' THEN 'match'
  ELSE 'change'
END"""
