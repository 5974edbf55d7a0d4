"""Identify rows by their content: the fold under REPLICA IDENTITY FULL. Pure text, no Spark.

Every old tuple is then the full row, so a change names exactly the row to remove and the row to add. The fold
counts additions and removals by key and content. A content with one more addition than removals exists at the
end. A content with one more removal than additions was in the target. The fold needs no order and fills no
value.

    net, over all contents   contents with net +1   action
            +1                       one            upsert
            -1                       none           delete
             0                       one            upsert (the target's row has net -1)
             0                       none           nothing: the transactions undid every change

The counts hold for any order of events. A deferred constraint may let a key hold two rows inside a
transaction, and a change may then touch either row. The content identifies the row; an old key alone would
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.errors import marker
from deltasmelt.silver.fold.toast import sent_tuple
from deltasmelt.silver.fold.window import key_expression, key_struct, key_texts
from deltasmelt.silver.sql import comma, key_text

if TYPE_CHECKING:
    from deltasmelt.silver.fold.window import ColumnRoles, Window
    from deltasmelt.silver.schema.catalog import SilverTable


def netted(
    table: SilverTable, window: Window, roles: ColumnRoles, *, each_commit: bool = False
) -> list[tuple[str, str]]:
    """Return common table expressions over ``changes`` that end in ``folded``: one row per changed key.

    With `each_commit`, ``folded`` has one row per key and transaction.
    """
    keys, facts = roles.keys, window.facts
    image = sent_tuple(table) if facts.unchanged_toast and facts.old_tuples else "new"
    texts = key_texts(table, window, keys)
    new_key = key_struct({name: key_expression(table, at, texts[at]) for at, name in keys.items()})
    old_key = key_struct({name: key_expression(table, at, f"old[{at}]") for at, name in keys.items()})
    added = f"named_struct('net', 1, 'key', {new_key}, 'image', {image})"
    removed = f"named_struct('net', -1, 'key', {old_key}, 'image', old)"
    moves = f"CASE op WHEN 'update' THEN array({removed}, {added}) WHEN 'delete' THEN array({removed})"
    moved = ", ".join(f"move.key.{name}" for name in keys.values())
    signed = f"""\
SELECT commit_lsn, seq, commit_ts, move.net, {moved}, move.image
FROM (
  SELECT commit_lsn, seq, commit_ts, explode({moves} ELSE array({added}) END) AS move
  FROM changes
)"""
    names = ", ".join([*keys.values(), *(["commit_lsn"] if each_commit else [])])
    at = ", max(commit_ts) AS commit_ts" if each_commit else ""
    # Contents are equal as PostgreSQL's text, which stays the same for a value while the shape stays.
    contents = f"""\
SELECT {names}, image{at}, sum(net) AS net,
  max(struct(commit_lsn, seq, commit_ts)) FILTER (WHERE net > 0) AS put
FROM signed
GROUP BY {names}, image"""
    columns = [
        *keys.values(),
        *(["commit_lsn", "max(commit_ts) AS commit_ts"] if each_commit else []),
        "sum(net) AS gained",
        "sum(CASE WHEN net > 0 THEN net ELSE 0 END) AS present",
        "max(put) FILTER (WHERE net > 0) AS last_event",
        "max_by(image, put) FILTER (WHERE net > 0) AS image",
    ]
    folded = f"""\
SELECT {comma(columns, 2)}
FROM contents
WHERE net <> 0
GROUP BY {names}"""
    return [("signed", signed), ("contents", contents), ("folded", folded)]


def action(window: Window, keys: dict[int, str]) -> str:
    """Return the action of MERGE for a key of ``folded``, as SQL."""
    key_of_row = key_text(keys.values())
    actions = """\
  WHEN gained = -1 THEN 'delete'
  ELSE 'upsert'"""
    if window.from_empty:
        actions = f"""\
  WHEN gained = 1 THEN 'upsert'
  ELSE {marker("row-missing", key_of_row)}"""
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    return f"""\
CASE
  WHEN {no_key} THEN {marker("key-missing")}
  WHEN present > 1 OR gained < -1 THEN {marker("key-not-unique", key_of_row)}
{actions}
END"""


def action_at_commit(keys: dict[int, str]) -> str:
    """Return a transaction's action on a key of ``folded`` with `each_commit`; see `silver.fold.by_key`."""
    key_of_row = key_text(keys.values())
    no_key = " OR ".join(f"{name} IS NULL" for name in keys.values())
    return f"""\
CASE
  WHEN {no_key} THEN {marker("key-missing")}
  WHEN present > 1 OR gained > 1 OR gained < -1 THEN {marker("key-not-unique", key_of_row)}
  WHEN gained = 1 THEN 'upsert'
  WHEN gained = -1 THEN 'delete'
  ELSE 'change'
END"""
