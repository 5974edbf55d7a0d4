"""The records of subjects in `bronze.changes`: their search, and their removal (`smelt forget`).

**The subjects.** Each key names one. Its records are all records whose new or old row has the key, whenever
that was: no record belongs to a subject whose key the user did not give. An update may move a row from or to
a key that was not given. The caller refuses then (`Found.moved`), so no part of a subject stays behind.

**The removal keeps the log's promises.** A record of the stream loses its values and gets the operation
`OP_ERASED`: `seq` stays without gaps, each transaction has its end, and the next start can still compare
bronze's newest transaction with the server's log. Every reader of bronze selects operations by name, so no
reader applies such a record. A record of a snapshot is removed: snapshots have no order to keep. Only files
with records of the subjects are rewritten, in one commit, under the names of stream and snapshot.

**At each point of failure:**

* *killed before the commit*: files that no version names, as after a killed reader. Nothing has changed.
* *killed after the commit*: the former files are still on disk, and no version names them. The next search
  reads these files, too (`unnamed`), and finds the same records again.
* *a commit of another process*: the caller holds the lock of bronze, so no reader writes. A request for a
  snapshot may add marks; the commit is then made on the newer version.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.compaction import conform, exchange
from deltasmelt.bronze.lake.parquet import PartWriter, file_system
from deltasmelt.bronze.lake.table import retry_conflict
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.contract import (
    CHANGES_SCHEMA,
    MEASURED,
    OP_DELETE,
    OP_ERASED,
    OP_INSERT,
    OP_SNAPSHOT,
    OP_UPDATE,
    REPEATING,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Column, PgType, Relation

Key: TypeAlias = tuple[str, ...]
Place: TypeAlias = tuple[int, int, int]
"""Place of a record: relation id, commit LSN, `seq`."""

NEW_LAKE: Final = "start a new lake after the row was deleted at the source, and remove the old lake"
_READ: Final = ["commit_lsn", "seq", "lsn", "op", "relation_id", "columns", "new", "old", "unchanged"]
_KINDS: Final = frozenset({OP_INSERT, OP_UPDATE, OP_DELETE, OP_SNAPSHOT})
_VALUES: Final = ("columns", "new", "old", "old_is_key", "unchanged")
"""Columns that an erased record loses."""
_BY_TEXT: Final = frozenset(
    {"int2", "int4", "int8", "oid", "uuid", "text", "varchar", "bpchar", "name", "date", "timestamp",
     "timestamptz", "time", "bool", "bytea"}
)  # fmt: skip
"""Types in which equal values have equal texts."""
_NO_TEXTS: Final = frozenset(
    {"int2", "int4", "int8", "oid", "numeric", "float4", "float8", "bool", "date", "timestamp", "timestamptz",
     "time", "timetz", "interval"}
)  # fmt: skip
"""Types whose values no search for texts can attribute to a row."""


class Shapes:
    """The key of a table's rows in each version of the shape.

    Args:
        relations: all versions of the table's shape, under every name and relation id of the table.

    Raises:
        DefiniteError: ``erasure-identity``: old rows lack columns of the key. ``erasure-key-type``: equal
            keys may have several texts.
    """

    def __init__(self, relations: Sequence[Relation]) -> None:
        self._versions: dict[int, list[tuple[tuple[float, float], Key]]] = {}
        self._kinds: set[tuple[str, ...]] = set()
        # by number of an enum's label, the labels of the number
        self._labels: dict[tuple[str, int], str] = {}
        newest = {one.relation_id: one for one in sorted(relations, key=lambda version: version.place)}
        # A recreated table may have other columns in its key: equal texts would name different rows.
        if len({last.key for last in newest.values()}) > 1:
            raise _unsure(relations[-1])
        for relation in relations:
            last = newest[relation.relation_id]
            self._add(relation, [last.column(name).attnum for name in last.key])
        for versions in self._versions.values():
            versions.sort()
        if len(self._kinds) > 1:
            raise _several_texts(relations[-1], "the key's columns had other types before")
        # A name may have belonged to a column of another type.
        columns = [column for relation in relations for column in relation.columns]
        texts = {column.name for column in columns if _base(column.type).name not in _NO_TEXTS}
        self._silent = {column.name for column in columns} - texts

    def _add(self, relation: Relation, numbers: Sequence[int | None]) -> None:
        """Add a version in which old rows have the newest key's columns."""
        names = relation.names
        key = tuple(names[number] for number in numbers if number is not None and number in names)
        sent = {column.name for column in relation.columns if column.in_identity}
        whole = relation.replica_identity == "f" or set(key) <= sent
        if not key or len(key) < len(numbers) or not whole or relation.fold_key != relation.key:
            raise _unsure(relation)
        columns = [relation.column(name) for name in key]
        unsure = [column.name for column in columns if not _has_one_text(column.type)]
        if unsure:
            raise _several_texts(relation, f"equal values of {', '.join(unsure)} may have several texts")
        for column in columns:
            self._require_labels(relation, _base(column.type))
        self._kinds.add(tuple(_kind(column) for column in columns))
        versions = self._versions.setdefault(relation.relation_id, [])
        versions.append(((float(relation.from_lsn), float(relation.after_lsn)), key))

    def _require_labels(self, relation: Relation, kind: PgType) -> None:
        """Require that no label of an enum was renamed: earlier records have the former label."""
        if kind.labels and len(kind.numbers) != len(kind.labels):
            raise _several_texts(relation, f"labels of {kind.name} may have been renamed")
        for number, label in zip(kind.numbers, kind.labels, strict=False):
            if self._labels.setdefault((kind.name, number), label) != label:
                raise _several_texts(relation, f"a label of {kind.name} was renamed")

    @property
    def relation_ids(self) -> list[int]:
        """The relation ids of the table."""
        return sorted(self._versions)

    def keys_of(self, row: Mapping[str, Any]) -> tuple[Key | None, Key | None]:
        """Return the keys of a record's new and old row; None without a row, or without a whole key."""
        new, old = self._cells(row, "new"), self._cells(row, "old")
        # PostgreSQL logs an unchanged value outside of the row in the old tuple alone.
        new |= {name: old[name] for name in row["unchanged"] or () if new and name in old}
        versions = self._versions[row["relation_id"]]
        lsn = inf if row["lsn"] is None else row["lsn"]
        names = versions[max(bisect_left(versions, ((row["commit_lsn"], lsn), ())) - 1, 0)][1]
        return _whole(new, names), _whole(old, names)

    def texts_of(self, row: Mapping[str, Any]) -> set[str]:
        """Return the values of a record that a search for texts can attribute to the row."""
        cells = [*self._cells(row, "new").items(), *self._cells(row, "old").items()]
        return {text for name, text in cells if text is not None and name not in self._silent}

    @staticmethod
    def _cells(row: Mapping[str, Any], side: str) -> dict[str, str | None]:
        values = row[side]
        return {} if values is None else dict(zip(row["columns"], values, strict=True))


def _whole(cells: Mapping[str, str | None], names: Key) -> Key | None:
    key = tuple(text for name in names if (text := cells.get(name)) is not None)
    return key if len(key) == len(names) else None


def _base(kind: PgType) -> PgType:
    return _base(kind.element) if kind.kind == "domain" and kind.element is not None else kind


def _kind(column: Column) -> str:
    """Return a name that types share whose equal values have equal texts."""
    name = _base(column.type).name
    return (
        "integer" if name in {"int2", "int4", "int8"} else "text" if name == "varchar" else column.type_text
    )


def _has_one_text(kind: PgType) -> bool:
    base = _base(kind)
    if base.name in {"numeric", "bpchar"} and base.kind == "base":
        return not base.collation and (base.typmod != -1 or kind.typmod != -1)
    return not base.collation and (base.kind == "enum" or (base.kind == "base" and base.name in _BY_TEXT))


def _unsure(relation: Relation) -> DefiniteError:
    return DefiniteError(
        f"old rows of {relation.table} lack columns of its present key, in a version of its shape or under "
        "another key, so records cannot be attributed to a row",
        code="erasure-identity",
        where=str(relation.table),
        remedy=NEW_LAKE,
    )


def _several_texts(relation: Relation, reason: str) -> DefiniteError:
    return DefiniteError(
        f"{reason}, so a search by text could miss records",
        code="erasure-key-type",
        where=str(relation.table),
        remedy=NEW_LAKE,
    )


@dataclass(slots=True)
class Found:
    """The records of subjects in bronze."""

    # places of the records in files of the newest version, by path
    places: dict[str, set[Place]] = field(default_factory=dict)
    # places of all records, also of those in unnamed files
    records: set[Place] = field(default_factory=set)
    # keys with a record
    keys: set[Key] = field(default_factory=set)
    # keys of the same rows before or afterwards, which are no key of a subject
    moved: set[Key] = field(default_factory=set)
    # values of the records
    texts: set[str] = field(default_factory=set)
    # commit LSN of the newest record; 0 without a record
    newest: Lsn = ZERO

    @property
    def rows(self) -> int:
        """Number of records in the newest version."""
        return sum(map(len, self.places.values()))


def find(changes: Table, shapes: Shapes, keys: Collection[Key], *, unnamed: Collection[str] = ()) -> Found:
    """Return the records of subjects, from the files of an open `bronze.changes` and from unnamed files.

    Args:
        unnamed: files of former versions; only an unfinished erasure reads them.
    """
    found, wanted, former = Found(), set(keys), set(unnamed)
    for path in (*changes.paths(), *sorted(former)):
        for row in _candidates(changes.table_uri, path, shapes, wanted, required=path not in former):
            sides = {key for key in shapes.keys_of(row) if key is not None}
            if sides & wanted:
                found.keys |= sides & wanted
                found.moved |= sides - wanted
                found.texts |= shapes.texts_of(row)
                found.newest = max(found.newest, Lsn(row["commit_lsn"]))
                place = row["relation_id"], row["commit_lsn"], row["seq"]
                found.records.add(place)
                if path not in former:
                    found.places.setdefault(path, set()).add(place)
    return found


def _candidates(
    uri: str, path: str, shapes: Shapes, keys: Collection[Key], *, required: bool
) -> Iterator[dict[str, Any]]:
    """Yield the table's records with the cells of a key somewhere, from row groups with the table."""
    ids = pa.array(shapes.relation_ids, pa.int64())
    wanted = [pa.array(sorted(set(cells)), pa.string()) for cells in zip(*keys, strict=True)]
    schema = pa.schema([CHANGES_SCHEMA.field(name) for name in _READ])
    try:
        with file_system(uri).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                if not pc.any(pc.is_in(_group(uri, path, parquet, group, ["relation_id"])[0], ids)).as_py():
                    continue
                rows = conform(_group(uri, path, parquet, group, _READ), schema)
                rows = rows.filter(pc.is_in(rows["relation_id"], ids))
                rows = rows.filter(pc.is_in(rows["op"], pa.array(sorted(_KINDS))))
                chosen = np.ones(rows.num_rows, np.bool_)
                for texts in wanted:
                    chosen &= _holds(rows["new"], texts) | _holds(rows["old"], texts)
                yield from rows.filter(pa.array(chosen)).to_pylist()
    except (OSError, pa.ArrowException):
        # A file without a footer is what a killed writer left.
        if required:
            raise


def _group(uri: str, path: str, parquet: pq.ParquetFile, group: int, columns: list[str] | None) -> pa.Table:
    return perform(Effect.READ_FILE, f"{uri}/{path}", partial(parquet.read_row_group, group, columns))


def _holds(lists: pa.ChunkedArray, wanted: pa.Array) -> np.ndarray:
    """Return whether each list has one of the wanted elements."""
    found, start = np.zeros(len(lists), np.bool_), 0
    for chunk in lists.chunks:
        hits = pc.is_in(pc.list_flatten(chunk), wanted)
        found[start + pc.list_parent_indices(chunk).filter(hits).to_numpy()] = True
        start += len(chunk)
    return found


@retry_conflict
def erase(changes: Table, places: Mapping[str, Collection[Place]]) -> list[str]:
    """Rewrite the files with the subjects' records in one durable commit; return the paths of the new files.

    The handle is at the newest version afterwards. The former files stay on disk.

    Raises:
        DeltaError, OSError: the lake cannot be read or written.
    """
    if not places:
        return []
    changes.refresh()
    changes.permit_removals({})
    version, added = changes.version(), []
    for path, erased in places.items():
        prefix = path.partition("-")[0]
        writer = PartWriter(
            changes.table_uri, prefix, schema=CHANGES_SCHEMA, measured=MEASURED, repeating=REPEATING
        )
        for rows in _kept(changes.table_uri, path, erased):
            writer.write(rows)
        added += writer.finish()
    if not exchange(changes, places, added, CHANGES_SCHEMA, as_of=version):
        raise CommitFailedError(f"{changes.table_uri}: another process rewrites the same files")
    return [action.path for action in added]


def _kept(uri: str, path: str, erased: Collection[Place]) -> Iterator[pa.Table]:
    with file_system(uri).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
        for group in range(parquet.num_row_groups):
            yield without(conform(_group(uri, path, parquet, group, None), CHANGES_SCHEMA), erased)


def without(rows: pa.Table, erased: Collection[Place]) -> pa.Table:
    """Return rows of `bronze.changes` without the values of some records. Pure."""
    places = zip(*(rows[name].to_pylist() for name in ("relation_id", "commit_lsn", "seq")), strict=True)
    chosen = pa.array([place in erased for place in places], pa.bool_())
    for name in _VALUES:
        empty = pa.scalar(None, rows.schema.field(name).type)
        rows = _with(rows, name, pc.if_else(chosen, empty, rows[name]))
    copied = pc.and_(chosen, pc.equal(rows["op"], OP_SNAPSHOT))
    rows = _with(rows, "op", pc.if_else(chosen, OP_ERASED, rows["op"]))
    return rows.filter(pc.invert(copied))


def _with(rows: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    field = rows.schema.field(name)
    return rows.set_column(rows.schema.get_field_index(name), field, values.cast(field.type))
