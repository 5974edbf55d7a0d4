"""The rules by which each table was carried, as marks of bronze: a changed rule requests a snapshot.

The marks are numbers of the rules (`bronze.rules.TableRules.number`) and of the key of hashes. No mark
reveals a condition or the key. One commit writes the marks together with the gaps (`bronze.store.gaps.note`).
So a crash leaves either the former marks, and the next poll finds the difference again, or all new marks.

Only carried tables count: the mark of a table with a problem waits until the problem is solved.

A table whose entry was removed from the pipeline file keeps the bits of the number (`bronze.rules.OURS`): the
publication still has the list and the filter that deltasmelt set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.rules import OURS, key_number
from deltasmelt.bronze.store.marks import HASH_KEY_APP, detached_app, gap_app, rules_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.rules import Rules

STILL_HELD: Final = (
    "the lake still has former values: bronze.changes until bronze.retention removes them, silver's "
    "history and deleted rows, quality.results, and older versions of silver and gold; to have none, take "
    "the tables into a new lake (smelt explain-error rules-changed)"
)
_RULES: Final = "its rules in source.columns or source.where changed"
_KEY: Final = "source.hash_key is another key than the key of the hashes in the lake"


@dataclass(frozen=True, slots=True)
class ChangedRules:
    """Rules that differ from the recorded rules."""

    # the tables that are carried by other rules than recorded, each with the reason
    reasons: Mapping[TableName, str] = field(default_factory=dict)
    # marks of the present rules
    marks: Sequence[Transaction] = ()


UNCHANGED: Final = ChangedRules()


def ruled_gaps(changes: Table, rules: Rules, tables: Iterable[TableName]) -> dict[TableName, Lsn]:
    """Return the gap marks of tables that have or had rules, from an open `bronze.changes`."""
    ruled = (
        table
        for table in tables
        if table in rules.tables or changes.transaction_version(rules_app(table)) is not None
    )
    marks = {table: changes.transaction_version(gap_app(table)) for table in ruled}
    return {table: Lsn(gap) for table, gap in marks.items() if gap is not None}


def recorded_rules(changes: Table, tables: Iterable[TableName]) -> dict[TableName, int]:
    """Return the numbers of the recorded rules of tables; 0 without any."""
    return {table: changes.transaction_version(rules_app(table)) or 0 for table in tables}


def detached_of(changes: Table, relations: Iterable[int]) -> dict[int, int]:
    """Return the roots of relations that an open `bronze.changes` records as partitions of ruled tables."""
    roots = {oid: changes.transaction_version(detached_app(oid)) for oid in relations}
    return {oid: root for oid, root in roots.items() if root is not None}


def changed_rules(changes: Table, rules: Rules, tables: Sequence[TableName]) -> ChangedRules:
    """Compare the rules of tables with the marks of an open `bronze.changes`."""
    reasons: dict[TableName, str] = {}
    marks = []
    hashed = [table for table in tables if rules.table(table).hashes]
    if hashed:
        key, recorded = key_number(rules.key), changes.transaction_version(HASH_KEY_APP)
        if recorded != key:
            marks.append(Transaction(HASH_KEY_APP, key))
            if recorded is not None:
                reasons |= dict.fromkeys(hashed, _KEY)
    for table, former in recorded_rules(changes, tables).items():
        # Without an entry in the file, list and filter stay in the publication, and stay deltasmelt's own.
        number = rules.table(table).number() if table in rules.tables else former & OURS
        if former != number:
            marks.append(Transaction(rules_app(table), number))
            reasons[table] = _RULES
    return ChangedRules(reasons, marks)
