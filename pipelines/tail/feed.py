"""The selected changes, as lines: at most so many in a second, and the number of all others.

A person cannot read thousands of lines in a second, and a terminal cannot show them. So text has a limit:
after the limit is reached, the changes of the same second are only counted, and one line says how many of
how many tables were left out. A few changes of each table are shown all the same, so that a bulk load does
not hide the other tables. JSON is for programs and has no limit: a slow reader of the output slows the
reading of the lake, which holds what was not yet read. So memory holds one batch of rows in both cases.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.store.arrivals import Copied
from deltasmelt.bronze.store.contract import OP_SNAPSHOT, OP_SNAPSHOT_END
from deltasmelt.pipelines.runtime.named_tables import is_named
from deltasmelt.pipelines.tail.lines import json_of, left_out_text, text_of
from deltasmelt.pipelines.tail.records import Shapes, change_of
from deltasmelt.pipelines.terminal.output import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.arrivals import Arrival, Gap
    from deltasmelt.pipelines.tail.records import Change

LINES: Final = 1000
"""Largest number of changes in a second that text shows."""
OF_EACH_TABLE: Final = 10
"""Number of changes of each table in a second that text shows in any case."""
_SECOND: Final = 1.0


@dataclass(slots=True)
class LineLimit:
    """A limit of lines in each second, which counts what it leaves out; `lines` None sets no limit. Pure."""

    lines: int | None = LINES
    _ends: float = 0.0
    _shown: Counter[TableName | None] = field(default_factory=Counter)
    _left_out: Counter[TableName | None] = field(default_factory=Counter)

    def admit(self, tables: Sequence[TableName | None], now: float) -> list[int]:
        """Return the numbers of the changes to show, by the table of each change; count the others."""
        if self.lines is None:
            return list(range(len(tables)))
        if now >= self._ends:
            self._ends = now + _SECOND
            self._shown.clear()
        total, admitted = self._shown.total(), []
        for number, table in enumerate(tables):
            if total < self.lines or self._shown[table] < OF_EACH_TABLE:
                total += 1
                self._shown[table] += 1
                admitted.append(number)
            else:
                self._left_out[table] += 1
        return admitted

    def ended(self, now: float) -> str | None:
        """Return the line about the last second's changes that were left out, once the second is over."""
        if not self._left_out or now < self._ends:
            return None
        text = left_out_text(self._left_out.total(), len(self._left_out))
        self._left_out.clear()
        return text


@dataclass(slots=True)
class Selection:
    """The operations and tables of a command line; tables under any of their names. Pure."""

    # names and patterns; empty selects all tables, and messages
    tables: Sequence[str] = ()
    # None selects all but the rows of copies
    operations: Collection[str] | None = None
    _known: dict[tuple[int | None, TableName | None], bool] = field(default_factory=dict)

    @property
    def rows_of_copies(self) -> bool:
        """Whether the rows of copies are selected."""
        return OP_SNAPSHOT in (self.operations or ())

    @property
    def copies(self) -> bool:
        """Whether complete copies are selected."""
        return self.operations is None or OP_SNAPSHOT in self.operations

    def has_table(self, relation_id: int | None, table: TableName | None, shapes: Shapes) -> bool:
        """Check whether a table is selected, under its name in a row or under a name of its relation."""
        known = self._known.get((relation_id, table))
        if known is None:
            versions = () if relation_id is None else shapes.versions(relation_id)
            names = {version.table for version in versions} | ({table} if table is not None else set())
            known = not self.tables or any(is_named(name, each) for name in names for each in self.tables)
            self._known[relation_id, table] = known
        return known

    def forget(self) -> None:
        """Forget the known tables: a relation may have a new name."""
        self._known.clear()


class Feed:
    """Writer of the selected changes.

    Args:
        write: takes text of one or more lines.
        is_json: whether a line is an object of JSON.
        hidden: returns a change without values that must not be shown, by the shapes of its table.
    """

    def __init__(
        self,
        selection: Selection,
        write: Callable[[str], None],
        *,
        is_json: bool = False,
        hidden: Callable[[Change, Shapes], Change] = lambda change, _: change,
        limit: int = LINES,
    ) -> None:
        self._selection = selection
        self._write = write
        self._is_json = is_json
        self._hidden = hidden
        self._limit = LineLimit(None if is_json else limit)
        self._shapes = Shapes(())

    def learn(self, relations: Sequence[Relation]) -> None:
        """Use these shapes for the rows that follow."""
        self._shapes = Shapes(relations)
        self._selection.forget()

    def take(self, arrival: Arrival, now: float) -> None:
        """Write the lines of an arrival."""
        self.rest(now)
        if isinstance(arrival, pa.RecordBatch):
            self._rows(arrival, now)
        elif isinstance(arrival, Copied) and not self._selection.copies:
            return
        elif self._selection.has_table(None, arrival.table, self._shapes):
            self._write(self._line(arrival))

    def rest(self, now: float) -> None:
        """Write the line about what was left out, if its second is over."""
        text = self._limit.ended(now)
        if text is not None:
            self._write(text)

    def _rows(self, batch: pa.RecordBatch, now: float) -> None:
        rows = self._selected(batch)
        admitted = self._limit.admit([table for _, table in _tables(rows)], now)
        if admitted:
            shown = rows if len(admitted) == rows.num_rows else rows.take(pa.array(admitted))
            changes = (change_of(row, self._shapes) for row in shown.to_pylist())
            self._write("\n".join(self._line(self._hidden(change, self._shapes)) for change in changes))

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        operations = self._selection.operations
        if operations is None:
            unwanted = pa.array([OP_SNAPSHOT, OP_SNAPSHOT_END])
            batch = batch.filter(pc.invert(pc.is_in(batch["op"], unwanted)))
        else:
            batch = batch.filter(pc.is_in(batch["op"], pa.array(sorted(operations))))
        if not self._selection.tables or not batch.num_rows:
            return batch
        wanted = [self._selection.has_table(*key, self._shapes) for key in _tables(batch)]
        return batch.filter(pa.array(wanted))

    def _line(self, arrival: Change | Copied | Gap) -> str:
        if self._is_json:
            return json.dumps(json_of(arrival), ensure_ascii=False, default=json_value)
        return text_of(arrival)


def _tables(batch: pa.RecordBatch) -> list[tuple[int | None, TableName | None]]:
    """Return relation and table of each row."""
    cells = (batch[name].to_pylist() for name in ("relation_id", "table_schema", "table_name"))
    return [
        (relation_id, None if name is None else TableName(schema, name))
        for relation_id, schema, name in zip(*cells, strict=True)
    ]
