"""Rules for columns and rows that must not arrive in the lake as they are. Pure.

A column is ``exclude`` (PostgreSQL does not send the column), ``hash`` or ``mask`` (the reader replaces each
value before the first write). A table's `where` decides which rows PostgreSQL sends.

**One gate.** `TableRules.protect` alone changes values. The stream's rows (`bronze.pgoutput.rows`) and the
snapshot's rows (`bronze.snapshot.ranges`) both pass the gate right after their bytes became cells. The stream
may still bring an excluded column: the server decodes changes from before a rule with the publication of
that time. So the gate also drops excluded cells.

**Which rule holds.** A column's exact name comes before patterns; of several patterns the strictest counts.
Patterns match in any case.

**Renames.** A rule names a column. If the column gets another name, the rule must not end silently:
`TableRules.lost` compares names by attnum.

**Hash**: HMAC-SHA-256 in hexadecimal of PostgreSQL's text, with one key for all tables: equal texts give
equal hashes, so hashed keys still join. NULL stays NULL. **Mask**: each digit becomes ``0``; ASCII
punctuation and blanks stay; each other character becomes ``x``; at most `LONGEST` characters.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.builtin_types import builtin_type
from deltasmelt.bronze.identifiers import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from deltasmelt.bronze.shapes import Column, Relation

Action: TypeAlias = Literal["exclude", "hash", "mask"]

LONGEST: Final = 64
"""Greatest length in characters of a masked value."""

OUR_LIST: Final = 1
OUR_FILTER: Final = 2
"""Bits of a number of rules: the rules exclude a column, and the rules have a filter."""
OURS: Final = OUR_LIST | OUR_FILTER

TEXT_OID: Final = 25
_STRICTEST: Final[tuple[Action, ...]] = ("exclude", "hash", "mask")
_NUMBERS: Final[dict[Action | None, int]] = {None: 0, "exclude": 1, "hash": 2, "mask": 3}
_WILDCARDS: Final = frozenset("*?[")
_TEXT: Final = builtin_type(TEXT_OID, -1)


class RuleLostError(Exception):
    """A column was renamed, and its rule in the pipeline file names the former name."""


class RuleInDoubtError(RuleLostError):
    """A column may have been renamed, because the catalog has changed since the log was written."""


def ruled_partition(name: TableName) -> str:
    """Return why a root without an entry in the pipeline file is not carried."""
    return f"{name}, for which the pipeline file has rules, is a partition of the table now"


@dataclass(frozen=True, slots=True)
class TableRules:
    """The rules of one table."""

    # names or patterns of columns, each with the action
    columns: tuple[tuple[str, Action], ...] = ()
    # SQL condition on the rows to send; empty: all rows
    where: str = ""
    key: bytes = field(default=b"", repr=False)
    # whether an empty entry of the pipeline file demands the table without a column list, and without a
    # filter
    all_columns: bool = False
    all_rows: bool = False

    def action(self, column: str) -> Action | None:
        """Return the action for a column; None without a rule."""
        exact = dict(self.columns).get(column)
        if exact is not None:
            return exact
        actions = {action for pattern, action in self.columns if _matches(column, pattern)}
        return next((action for action in _STRICTEST if action in actions), None)

    def may_arrive(self, column: str, text: str) -> bool:
        """Check whether a row of the lake may have this text in a column."""
        match self.action(column):
            case "hash":
                return re.fullmatch("[0-9a-f]{64}", text) is not None
            case "mask":
                return bool(_changed(pa.array([text], pa.string()), "mask", b"")[0].as_py() == text)
        return True

    @property
    def changes_values(self) -> bool:
        """Whether some column may be hashed or masked."""
        return any(action != "exclude" for _, action in self.columns)

    @property
    def changes_rows(self) -> bool:
        """Whether the lake's rows may differ from the source's in more than excluded columns."""
        return self.changes_values or bool(self.where)

    @property
    def hashes(self) -> bool:
        """Whether some column may be hashed."""
        return any(action == "hash" for _, action in self.columns)

    def decides_list(self, recorded: int) -> bool:
        """Check whether these rules decide on the publication's column list; else a person's list stays.

        `recorded` is the number of the rules by which the lake carries the table.
        """
        return self.all_columns or self._excludes or bool(recorded & OUR_LIST)

    def decides_filter(self, recorded: int) -> bool:
        """Check whether these rules decide on the publication's row filter, like `decides_list`."""
        return self.all_rows or bool(self.where) or bool(recorded & OUR_FILTER)

    @property
    def _excludes(self) -> bool:
        return any(action == "exclude" for _, action in self.columns)

    def unknown(self, columns: Iterable[str]) -> list[str]:
        """Return the exact names of the rules that the table does not have."""
        present = set(columns)
        return [name for name, _ in self.columns if not _WILDCARDS & set(name) and name not in present]

    def unmatched(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the patterns of the rules that match no column; such a pattern may be misspelt."""
        return tuple(
            pattern
            for pattern, _ in self.columns
            if _WILDCARDS & set(pattern) and not any(_matches(column, pattern) for column in columns)
        )

    def lost(self, before: Mapping[int, str], now: Mapping[int, str]) -> list[tuple[str, str]]:
        """Return renamed columns whose former name has a stricter rule; former and present name.

        Args:
            before: names of an earlier state, by attnum.
            now: the present names, by attnum.
        """
        return [
            (before[attnum], name)
            for attnum, name in sorted(now.items())
            if attnum in before and before[attnum] != name and self._is_weaker(name, before[attnum])
        ]

    def _is_weaker(self, name: str, former: str) -> bool:
        rank = [*_STRICTEST, None]
        return rank.index(self.action(name)) > rank.index(self.action(former))

    def number(self) -> int:
        """Return a 63-bit number of the rules, without the key; 0 without any rule.

        The lowest bits are `OUR_LIST` and `OUR_FILTER`: the next poll knows who set list and filter.
        """
        if not self.columns and not self.where:
            return 0
        text = repr((sorted(self.columns), self.where)).encode()
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 3 or 1
        return digest << 2 | (OUR_LIST if self._excludes else 0) | (OUR_FILTER if self.where else 0)

    def shape(self, relation: Relation) -> Relation:
        """Return a shape as the lake knows the table: no excluded column, text for hashes and masks."""
        if not self.columns:
            return relation
        columns = tuple(filter(None, (self._column(column) for column in relation.columns)))
        names = {column.name for column in columns}
        # A table whose rules exclude a key column has a problem and is not carried.
        return replace(relation, columns=columns, key=tuple(name for name in relation.key if name in names))

    def _column(self, column: Column) -> Column | None:
        action = self.action(column.name)
        if action is None:
            return column
        if action == "exclude":
            return None
        missing = None
        if column.missing is not None:
            missing = _changed(pa.array([column.missing], pa.string()), action, self.key)[0].as_py()
        return replace(column, type=_TEXT, type_text="text", missing=missing)

    def gate(self, columns: Sequence[str]) -> Gate | None:
        """Return the gate of rows with these columns; None if no rule changes such rows."""
        codes = np.array([_NUMBERS[self.action(column)] for column in columns], np.int8)
        return Gate(codes, self.key) if codes.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """The rules of a row's cells, in the order of the row."""

    # the action of each cell, as in `_NUMBERS`
    codes: NDArray[np.int8]
    key: bytes = field(repr=False)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Whether each cell stays in the row."""
        return is_kept(self.codes)


def _matches(column: str, pattern: str) -> bool:
    """Check whether a pattern matches a column, in any case; a name without wildcards respects case."""
    return fnmatchcase(column, pattern) or (
        bool(_WILDCARDS & set(pattern)) and fnmatchcase(column.lower(), pattern.lower())
    )


def is_kept(codes: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return whether each cell stays, by its code (`Gate.codes`)."""
    kept: NDArray[np.bool_] = codes != _NUMBERS["exclude"]
    return kept


def protect(cells: pa.StringArray, codes: NDArray[np.int8], key: bytes) -> pa.StringArray:
    """Return cells without excluded cells, hashed and masked as the codes demand (`Gate.codes`)."""
    kept = is_kept(codes)
    if not kept.all():
        cells, codes = cells.filter(pa.array(kept)), codes[kept]
    for action in ("hash", "mask"):
        chosen = codes == _NUMBERS[action]
        if chosen.any():
            mask = pa.array(chosen)
            cells = pc.replace_with_mask(cells, mask, _changed(cells.filter(mask), action, key))
    return cells


def _changed(values: pa.StringArray, action: Action, key: bytes) -> pa.StringArray:
    if action == "hash":
        hashed_by_key, texts = _hasher(key), values.cast(pa.binary()).to_pylist()
        return pa.array([None if text is None else hashed_by_key(text) for text in texts], pa.string())
    digits = pc.replace_substring_regex(values, r"\pN", "0")
    letters = pc.replace_substring_regex(digits, r"[^0 -/:-@\[-`{-~]", "x")
    return pc.utf8_slice_codeunits(letters, 0, LONGEST)


def hashed(text: str, key: bytes) -> str:
    """Return the keyed hash of a value's text: HMAC-SHA-256 (RFC 2104)."""
    return _hasher(key)(text.encode())


def _hasher(key: bytes) -> Callable[[bytes], str]:
    """Return a function from a text to the keyed hash of the text."""
    # RFC 2104 itself: each call of `hmac` lets OpenSSL look up its algorithms again, 2.7 µs instead of 1.2.
    block = sha256().block_size
    block_key = (sha256(key).digest() if len(key) > block else key).ljust(block, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in block_key) for pad in (0x36, 0x5C))
    return lambda text: sha256(outer + sha256(inner + text).digest()).hexdigest()


def key_number(key: bytes) -> int:
    """Return a 63-bit number that identifies a key and does not reveal the key."""
    digest = hmac.digest(key, b"deltasmelt: the key of the hashes in this lake", "sha256")
    return (int.from_bytes(digest[:8]) >> 1) or 1


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of all tables that the pipeline file names."""

    tables: Mapping[TableName, TableRules] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, columns: Mapping[str, Mapping[str, Action]], where: Mapping[str, str], key: str) -> Rules:
        """Return the rules of a pipeline file's entries.

        Raises:
            ValueError: the name of a table has an invalid form.
        """
        secret = key.encode()
        listed = {TableName.parse(name): tuple(rules.items()) for name, rules in columns.items()}
        filters = {TableName.parse(name): text.strip() for name, text in where.items()}
        return cls(
            {
                table: _of_table(listed.get(table), filters.get(table), secret)
                for table in [*listed, *(name for name in filters if name not in listed)]
            },
            secret,
        )

    def table(self, table: TableName) -> TableRules:
        """Return the rules of a table; without an entry in the file, rules that change nothing."""
        return self.tables.get(table, _NONE)

    @property
    def ruled(self) -> list[TableName]:
        """The tables whose entry in the file has a rule."""
        return [table for table, rules in self.tables.items() if rules.number()]

    def renamed(self, names: Iterable[TableName], table: TableName) -> TableName | None:
        """Return a former name with rules of a table whose present name has no entry; None without one."""
        if table in self.tables:
            return None
        return next((name for name in sorted(names) if name != table and self.table(name).number()), None)


def _of_table(columns: tuple[tuple[str, Action], ...] | None, where: str | None, key: bytes) -> TableRules:
    """Return the rules of a table's entries; None stands for a missing entry."""
    return TableRules(
        columns or (),
        where or "",
        key,
        all_columns=not columns and (columns is not None or not where),
        all_rows=not where and (where is not None or not columns),
    )


_NONE: Final = TableRules()
