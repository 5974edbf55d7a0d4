"""Any order of statements, polls and reads: the reader never confuses columns without noticing.

A table undergoes statements. At times a poll reads the catalog, and the stream is read with a lag. Each
change that no later snapshot covers must name the columns under which the change was written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltasmelt.bronze.builtin_types import builtin_type, format_type
from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.drift.storage import Part, Storage, StoredColumn
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.pgoutput.messages import AnnouncedColumn, AnnouncedRelation
from deltasmelt.bronze.pgoutput.relation_versions import relation_version
from deltasmelt.bronze.shapes import Column, PgType, Relation, same_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

OID, TABLE = 7, TableName("public", "t")
TEXT, VARCHAR, INT = 25, 1043, 23


@dataclass(frozen=True)
class Change:
    """A change in the log: the columns in the Relation message, and the columns that are meant."""

    lsn: Lsn
    announced: AnnouncedRelation
    attnums: tuple[int, ...]


class Story:
    """A table, its stream and its reader.

    Attributes:
        snapshots: number of repeated snapshots of the table.
    """

    def __init__(self) -> None:
        self._lsn = 100
        self._file = 1
        self._attnums = 1
        self._columns = {1: StoredColumn("id", builtin_type(INT, -1).to_json(), 1, missing=False)}
        self._log: list[Change] = []
        self._read = 0
        self._frontier = ZERO
        self._meant: list[tuple[Change, tuple[int | None, ...]]] = []
        self.snapshots = 1
        self._known = self._catalog()
        self._recorded = [self._known]
        self._taken, self._looked = Lsn(self._lsn - 1), ObservedStorage(self._storage())

    # What people do at the source.

    def add(self, name: str, oid: int) -> None:
        if name not in self._names():
            self._attnums += 1
            self._write(self._attnums, name, oid)

    def generate(self, name: str) -> None:
        """Add a generated column, which is not published."""
        if name not in self._names():
            self._attnums += 1
            self._file += 1
            self._columns[self._attnums] = StoredColumn(name, None, self._lsn, missing=False)
            self._lsn += 10

    def publish(self, name: str, oid: int) -> None:
        """Turn the generated column into an ordinary column."""
        if (attnum := self._names().get(name)) is not None and self._columns[attnum].type is None:
            self._write(attnum, name, oid)

    def drop(self, name: str) -> None:
        if (attnum := self._names().get(name)) is not None:
            del self._columns[attnum]
            self._lsn += 10

    def rename(self, name: str, to: str) -> None:
        if (attnum := self._names().get(name)) is not None and to not in self._names():
            self._columns[attnum] = replace(self._columns[attnum], name=to, written=self._lsn)
            self._lsn += 10

    def retype(self, name: str, oid: int) -> None:
        if (attnum := self._names().get(name)) is not None and self._columns[attnum].type is not None:
            before = PgType.from_json(self._columns[attnum].type or "")
            self._file += INT in {before.oid, oid}  # else it is not rewritten
            self._write(attnum, name, oid)

    def change(self) -> None:
        catalog = self._catalog()
        announced = AnnouncedRelation(
            OID,
            TABLE,
            "d",
            tuple(
                AnnouncedColumn(column.name, column.type.oid, column.type.typmod, column.in_identity)
                for column in catalog.columns
            ),
        )
        attnums = tuple(column.attnum for column in catalog.columns if column.attnum is not None)
        self._log.append(Change(Lsn(self._lsn + 5), announced, attnums))
        self._lsn += 10

    # What the reader does.

    def read(self, most: int) -> None:
        """Read part of the log, or the whole log; the reader knows when the log's end is reached."""
        for change in self._log[self._read : self._read + most]:
            newest = max(
                (recorded for recorded in self._recorded if recorded.from_lsn < change.lsn), key=_place
            )
            if self._known.from_lsn > newest.from_lsn:
                newest = self._known
            version = relation_version(
                change.announced, change.lsn, catalog=self._catalog(), known=newest, types={}
            )
            self._known = version
            self._meant.append((change, tuple(column.attnum for column in version.columns)))
            self._frontier = change.lsn
        self._read = min(self._read + most, len(self._log))
        if self._read == len(self._log):
            self._frontier = Lsn(self._lsn - 1)  # as a keepalive has it

    def look(self) -> None:
        """Poll the catalog; take a new snapshot of the table if there is a reason."""
        now, frontier = self._storage(), self._frontier
        doubted = any(None in meant for change, meant in self._meant if change.lsn > self._taken)
        if doubted or self._looked.why_again(now) is not None:
            self._snapshot()
        else:
            newest = max((self._known, *self._recorded), key=_place)
            lsn = Lsn(self._lsn)
            later = self._looked.may_have_versions(now, lsn, frontier)
            if not same_shape(newest, self._catalog()) or later:
                self._recorded.append(self._catalog())
            self._looked = ObservedStorage.from_json(self._looked.then(now, lsn, frontier).to_json())

    def settle(self) -> None:
        """Let time pass without any statement at the source."""
        for _ in range(2):
            self.read(1000)
            self.look()

    def mistaken(self) -> list[tuple[Change, tuple[int | None, ...]]]:
        """Return changes after the snapshot whose existing columns were confused with another column."""
        return [
            (change, meant)
            for change, meant in self._meant
            if change.lsn > self._taken
            and any(
                meant_number != number and not self._columns.keys().isdisjoint({meant_number, number})
                for meant_number, number in zip(meant, change.attnums, strict=True)
            )
        ]

    def _snapshot(self) -> None:
        self._recorded.append(self._catalog())
        self._taken, self._looked = Lsn(self._lsn - 1), ObservedStorage(self._storage())
        self.snapshots += 1

    def _names(self) -> dict[str, int]:
        return {column.name: attnum for attnum, column in self._columns.items() if attnum != 1}

    def _write(self, attnum: int, name: str, oid: int) -> None:
        type_ = builtin_type(oid, -1).to_json()
        self._columns[attnum] = StoredColumn(name, type_, self._lsn, missing=False)
        self._lsn += 10

    def _storage(self) -> Storage:
        return Storage(OID, dict(self._columns), {OID: Part("t", self._file)}, self._attnums)

    def _catalog(self) -> Relation:
        types = {
            attnum: PgType.from_json(column.type) for attnum, column in self._columns.items() if column.type
        }
        columns = tuple(
            Column(self._columns[attnum].name, attnum, type_, format_type(type_), attnum == 1, attnum == 1)
            for attnum, type_ in sorted(types.items())
        )
        return Relation(OID, TABLE, columns, ("id",), "d", Lsn(self._lsn - 1))


def _place(version: Relation) -> Lsn:
    return version.from_lsn


NAME, TYPE = st.sampled_from("ab"), st.sampled_from([TEXT, VARCHAR, INT])
ACT = st.one_of(
    st.tuples(st.just("add"), NAME, TYPE),
    st.tuples(st.just("drop"), NAME),
    st.tuples(st.just("generate"), NAME),
    st.tuples(st.just("publish"), NAME, TYPE),
    st.tuples(st.just("settle")),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.just("retype"), NAME, TYPE),
    st.tuples(st.just("change")),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.tuples(st.just("look")),
)


def play(acts: Sequence[tuple[object, ...]]) -> Story:
    story = Story()
    for act, *values in [*acts, ("change",), ("read", 1000), ("look",)]:
        getattr(story, str(act))(*values)
    return story


@settings(max_examples=300)
@given(st.lists(ACT, max_size=30))
def test_no_change_is_taken_for_another_columns(acts: list[tuple[object, ...]]) -> None:
    assert play(acts).mistaken() == []


@pytest.mark.parametrize(
    ("acts", "snapshots"),
    [
        pytest.param(
            "add a; change; drop a; look; add a; read", 2, id="a look saw it gone, and nobody had read it"
        ),
        pytest.param("add a; change; rename a b; add a; read", 1, id="its name was given to a later one"),
        pytest.param("add a; change; rename a b; look; add a; read", 1, id="with a look in between"),
        pytest.param(
            "add a; change; read; drop a; look; change; read; look; add a; change; read", 1, id="all was read"
        ),
        pytest.param("add a; change; settle; drop a; settle; add b; change", 1, id="after a while"),
        pytest.param(
            "add a; change; settle; drop a; settle; add a; change; rename a b", 1, id="gone without a message"
        ),
        pytest.param(
            "add a; change; settle; drop a; settle; add a; change; retype a", 1, id="gone, and another type"
        ),
        pytest.param(
            "generate a; settle; publish a; change; drop a; add b; change", 2, id="ordinary for a while"
        ),
        pytest.param("add a; change; read; look; add b; change; read; look", 1, id="one after the other"),
        pytest.param("add a; look; add b; look; add c; change; read; look", 1, id="each was looked at"),
    ],
)
def test_only_doubtful_columns_cause_snapshot(acts: str, snapshots: int) -> None:
    values = {"add": [TEXT], "publish": [TEXT], "retype": [VARCHAR], "read": [1000]}
    acts_ = [act.split() for act in acts.split("; ")]
    story = play([(name, *arguments, *values.get(name, [])) for name, *arguments in acts_])
    assert story.mistaken() == []
    assert story.snapshots == snapshots
