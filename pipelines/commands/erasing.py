"""The steps of `smelt forget`; `pipelines.commands.forget` argues their order."""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import bytes_text, counted
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.delta import open_existing, open_table, remove_workspaces
from deltasmelt.bronze.lake.erasures import Begun
from deltasmelt.bronze.lake.location import table_name
from deltasmelt.bronze.lake.parquet import delete_files
from deltasmelt.bronze.lake.thinning import Move
from deltasmelt.bronze.lake.traces import UNREADABLE, Search, searchable, size_of, spellings
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES, OP_MESSAGE, RELATIONS
from deltasmelt.bronze.store.erasure import erase, find
from deltasmelt.bronze.store.marks import READER_APP, kept_from
from deltasmelt.pipelines.quality.erasing import erase_texts, words_of_pipeline
from deltasmelt.pipelines.quality.results import RESULTS_TABLE
from deltasmelt.pipelines.runtime.reader_progress import NOTE
from deltasmelt.pipelines.runtime.sweeping import Swept, sweep, unnamed_files
from deltasmelt.pipelines.runtime.table_files import files_of
from deltasmelt.silver.rebuild import PURPOSE, SCRATCH
from deltasmelt.silver.run.erasure import is_erased, is_live_with, purge
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.spark.access import child_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.erasures import Erasures, Unfinished
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lake.traces import Trace
    from deltasmelt.bronze.store.erasure import Found, Shapes
    from deltasmelt.pipelines.commands.subjects import Subjects
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.schema.catalog import SilverTable

_LAYERS: Final = ("bronze", "silver")
"""Layers whose rows come from the source: a value there belongs to a row."""


@dataclass(slots=True)
class Erasure:
    """One erasure, under the locks of the lake."""

    spark: SparkSession
    lake: Lake
    control: ControlTables
    erasures: Erasures
    changes: Table
    shapes: Shapes
    table: SilverTable
    # silver's table and its history, as far as they exist
    silver: tuple[SilverTable, ...]
    documents: tuple[str, ...]
    # names of tables of `silver` that silver no longer updates
    ended: frozenset[str]
    # folders of silver and gold with an owner, by layer
    known: Mapping[str, Collection[str]]
    subjects: Subjects
    found: Found
    cut: Cut
    digests: frozenset[str]
    # the unfinished erasure that this one continues; None for a new erasure
    begun: Unfinished | None
    done_by: str
    output: Output
    counts: dict[str, Any] = field(default_factory=dict)
    swept: Swept = field(default_factory=Swept)
    # the values to search for
    texts: set[str] = field(default_factory=set)
    # values that are words of the pipeline, too; in its own files they stand for another reason
    words: set[str] = field(default_factory=set)
    # former files of errors, runs and results that their logs soon forget, by table
    former: dict[str, list[str]] = field(default_factory=dict)
    # versions of errors, runs and quality results without the values
    clean: dict[str, int] = field(default_factory=dict)
    erasure_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> None:
        """Run all steps; each is safe to repeat.

        Raises:
            DefiniteError: ``erasure-incomplete``: the search has found a value.
        """
        for text, step in STEPS:
            with self.output.waiting(text):
                step(self)
        self._report()

    # -- before the first change

    def require_dead(self) -> None:
        """Refuse subjects with a live row in silver.

        Raises:
            DefiniteError: ``erasure-alive``, ``erasure-behind``.
        """
        with child_session(self.spark) as session:
            for table in (table for table in self.silver if table.name not in self.ended):
                address = self.lake.sql("silver", table.name)
                (row,) = session.sql(
                    f"SELECT count(*) AS rows FROM {address} WHERE {is_live_with(table, self.subjects.keys)}"
                ).collect()
                if row["rows"]:
                    raise DefiniteError(
                        f"silver.{table.name} still has a live row with a given key: silver has yet to "
                        "apply the delete",
                        code="erasure-alive",
                        where=str(self.table.table),
                        remedy="delete the row at the source if it still exists there; then smelt run FILE "
                        "--until-caught-up, and run this command again",
                    )

    def show_plan(self) -> None:
        """Print the files and rows that the erasure would change, and what it would read and remove."""
        for path, places in sorted(self.found.places.items()):
            self._plan(f"bronze.{CHANGES}", path, len(places))
        for name, path, rows in self._silver_rows():
            self._plan(f"silver.{name}", path, rows)
        for place in self._places():
            layer, folder = self._folder(place).split("/")
            former = len(unnamed_files(open_existing(place)))
            self._plan(f"{layer}.{table_name(folder)}", None, 0, former=former)
        _, removed = self.control.readdress(self._moves(), dry_run=True)
        size = size_of(self.lake.root)
        if self.output.json:
            self._plan(None, None, 0, cut_records=removed, bytes_to_search=size)
        else:
            self.output.line(f"control.cuts: {counted(removed, 'record')} of older versions")
            self.output.line(f"the search reads {bytes_text(size)}")

    def _plan(self, table: str | None, path: str | None, rows: int, *, former: int = 0, **more: int) -> None:
        if self.output.json:
            self.output.value({"table": table, "file": path, "rows": rows, "former_files": former, **more})
        elif path is not None:
            self.output.line(f"{table}: {counted(rows, 'row')} in {path}")
        else:
            self.output.line(f"{table}: {counted(former, 'file')} of former versions")

    def _silver_rows(self) -> Iterator[tuple[str, str, int]]:
        """Yield table, file and number of rows to delete in silver."""
        with child_session(self.spark) as session:
            for table in self.silver:
                if table.versioned:
                    rows = session.sql(
                        f"SELECT _metadata.file_name AS file, count(*) AS rows "
                        f"FROM {self.lake.sql('silver', table.name)} "
                        f"WHERE {is_erased(table, self.subjects.keys)} GROUP BY 1 ORDER BY 1"
                    ).collect()
                    for row in rows:
                        yield table.name, row["file"], row["rows"]

    def _silver_texts(self) -> set[str]:
        """Return the values of the rows to delete in silver: bronze may no longer have their records."""
        tables = [table for table in self.silver if table.versioned]
        if not tables:
            return set()
        with child_session(self.spark) as session:
            return {
                text
                for table in tables
                for row in session.sql(
                    f"SELECT * FROM {self.lake.sql('silver', table.name)} "
                    f"WHERE {is_erased(table, self.subjects.keys)}"
                ).collect()
                for text in texts_in(row.asDict(recursive=True))
            }

    # -- the steps, in order

    def start(self) -> None:
        """Record the start; become the owner of bronze; remove what killed rebuilds left."""
        if self.begun is None:
            self.erasures.record(self._begun(), "started")
        else:
            self.erasure_id = self.begun.erasure_id
        # No commit of a reader that outlives its command succeeds from now on, so its files may go.
        commit_marks(self.changes, [Transaction(READER_APP, secrets.randbits(62))])
        remove_workspaces(self.lake, SCRATCH, PURPOSE)
        assert self.lake.locks is not None  # noqa: S101 - the caller has refused other places
        (self.lake.locks / NOTE).unlink(missing_ok=True)  # no reader runs
        silver = self._silver_texts() if kept_from(self.changes) else set()
        self.texts = searchable(self.found.texts | silver | self.subjects.texts)
        words = words_of_pipeline(self.lake)
        self.words = {text for text in self.texts if text in words}
        self.counts |= {"keys": len(self.digests), "values_in_names": len(self.words)}

    def purge(self) -> None:
        """Delete the subjects' rows of silver, and every deleted row of the affected tables."""
        rows: Counter[str] = Counter()
        for name, _, count in self._silver_rows():
            rows[name] += count
        self.counts["silver_rows"] = dict(rows)
        erased = {
            table.name: is_erased(table, self.subjects.keys) for table in self.silver if table.versioned
        }
        with child_session(self.spark) as session:
            for layer, name in self._tables():
                table = open_existing(self.lake.uri(layer, name))
                condition = erased.get(name) if layer == "silver" else None
                purge(session, Writer(self.lake, layer), table, name, condition)
                self._require_whole(session, table, layer, name)
        if any(True for _ in self._silver_rows()):
            raise self._incomplete("silver still has rows of the keys", [])

    def move_cuts(self) -> None:
        """Let cuts name the new versions; older cuts lose the rewritten tables."""
        moved, removed = self.control.readdress(self._moves())
        self.counts |= {"cut_records_moved": moved, "cut_records_removed": removed}

    def _moves(self) -> dict[tuple[Layer, str], Move]:
        moves: dict[tuple[Layer, str], Move] = {}
        cuts, log = {"silver": self.cut, "gold": self.control.latest_cut("gold")}, SilverLog(self.lake)
        for layer, name in self._tables():
            table, cut = open_existing(self.lake.uri(layer, name)), cuts[layer]
            version, named = table.version(), None if cut is None else cut.named(name)
            stored = log.read(name) if layer == "silver" else None
            # No cut of a table that silver no longer updates has the present rows.
            same = version if named is None else named.version
            moves[layer, name] = Move(same, version, None if stored is None else stored.table_id)
        return moves

    def erase_texts(self) -> None:
        """Remove the values from errors, runs and quality results."""
        tables = {f"{layer}.{name}" for layer, name in self._tables()} | {f"bronze.{CHANGES}"}
        names = {str(self.table.table), self.table.name, *self.documents, *tables}
        # The checkpoint forgets files that were removed more than a day ago.
        self.former = {place: open_existing(place).removed_files() for place in self._recorded()}
        texts = self.texts - self.words
        erase_texts(self.lake, self.control, tables, texts, names=names, keys=self.subjects.texts)
        for place in self._recorded():
            open_existing(place).checkpoint()
        self.clean = self._versions()

    def erase_records(self) -> None:
        """Rewrite the files of bronze with the subjects' records."""
        self._require_values()
        self.counts |= {"bronze_rows": len(self.found.records), "bronze_files": len(self.found.places)}
        # Before the commit: a kill in between leaves the records where the next call finds them.
        self.erasures.record(self._begun(), "rewritten", self.counts)
        erase(self.changes, self.found.places)
        if find(self.changes, self.shapes, self.subjects.keys).rows:
            raise self._incomplete("bronze still has records of the keys", [])
        self.changes.checkpoint()

    def sweep(self) -> None:
        """Remove former versions, except bronze's files, by which a repeated call knows the values."""
        for layer, name in self._tables():
            self.swept.add(sweep(open_existing(self.lake.uri(layer, name))))
        for recorded in self._recorded():
            # `smelt quality` and `smelt maintain` append without a lock.
            table = open_existing(recorded)
            delete_files(recorded, sorted({*self.former.get(recorded, ())} - {*table.paths()}))
            self.swept.add(sweep(table, shared=True))
        self.swept.add(sweep(self.changes, sparing=True))

    def prove(self) -> None:
        """Search all files of the lake, then remove bronze's former files.

        Raises:
            DefiniteError: ``erasure-incomplete``.
        """
        folder = self._folder(self.lake.uri("bronze", CHANGES))
        former = {f"{folder}/{path}" for path in unnamed_files(self.changes)}
        # the locks that this command holds
        former |= {
            f".locks/{layer}{more}" for layer in ("bronze", "silver", "gold") for more in ("", ".writing")
        }
        traces = list(Search(self.texts).in_lake(self.lake.root, leaving_out=former)) if self.texts else []
        shared, tables = self._of_others(traces)
        excused = shared | self.words
        left = [trace.path for trace in traces if trace.texts - excused or not self._is_own(trace.path)]
        if left:
            raise self._incomplete(
                f"{counted(len(left), 'file')} still hold values of the row, or cannot be read", left
            )
        # `smelt quality` holds no lock, and its examples may be numbers.
        if self._versions() != self.clean:
            raise self._incomplete("errors, runs or quality results were recorded meanwhile", [])
        self.erasures.record(self._begun(), "searched")
        self.changes.refresh()
        self.changes.checkpoint()  # a request for a snapshot may have written marks meanwhile
        self.swept.add(sweep(self.changes))
        if unnamed_files(self.changes):
            raise self._incomplete("bronze still has files of former versions", [])
        self.counts |= {
            "values_searched": len(self.texts),
            "values_of_others": len(shared),
            "tables_of_others": sorted(tables),
            "files_removed": self.swept.files,
            "log_entries_removed": self.swept.log_entries,
        }

    def finish(self) -> None:
        """Record the end."""
        self.erasures.record(self._begun(), "finished", self.counts)

    def _begun(self) -> Begun:
        table, lsn = str(self.table.table), int(self.cut.commit_lsn)
        return Begun(self.erasure_id, table, self.digests, lsn, self.done_by)

    # -- parts

    def _require_values(self) -> None:
        """Require the records of an unfinished erasure: from them a repeated call knows the values.

        The reader's maintenance may have removed the former files. The key may have new records.

        Raises:
            DefiniteError: ``erasure-incomplete``.
        """
        begun = self.begun
        if begun is not None and begun.records is not None:
            known = sum(lsn <= begun.until for _, lsn, _ in self.found.records)
            if known < begun.records:
                raise self._incomplete("the values are no longer known, so nothing can be searched", [])

    def _tables(self) -> list[tuple[Layer, str]]:
        """Return the tables of silver and gold that may hold the subject in any file."""
        silver: list[tuple[Layer, str]] = [("silver", table.name) for table in self.silver]
        return silver + [("gold", name) for name in self.documents]

    def _recorded(self) -> list[str]:
        places: list[str] = [self.lake.uri("control", name) for name in ("errors", "runs")]
        places.append(self.lake.uri("quality", RESULTS_TABLE))
        return [place for place in places if open_table(place) is not None]

    def _versions(self) -> dict[str, int]:
        return {place: open_existing(place).version() for place in self._recorded()}

    def _places(self) -> list[str]:
        own = [self.lake.uri(layer, name) for layer, name in self._tables()]
        return [self.lake.uri("bronze", CHANGES), *own, *self._recorded()]

    def _folder(self, place: str) -> str:
        return place.removeprefix(f"{self.lake.root}/")

    def _require_whole(self, session: SparkSession, table: Table, layer: Layer, name: str) -> None:
        """Require files without deleted rows, because a later step removes all other files."""
        if files_of(session, table, self.lake.sql(layer, name)).deleted_rows:
            raise self._incomplete(f"{layer}.{name} still has files with deleted rows", [])

    def _of_others(self, traces: list[Trace]) -> tuple[set[str], set[str]]:
        """Return the texts in rows of others, and tables with these rows.

        Bronze and silver have no row of the subjects, so a text in a row of their newest version belongs to
        another row. Gold has no rows but silver's. A message has no key, so no call can erase it.
        """
        shared: set[str] = set()
        tables: set[str] = set()
        messages = Search(self.texts)
        in_messages: set[str] = set()
        files: dict[str, set[str]] = {}
        for trace in traces:
            layer, folder, path = (*trace.path.split("/", 2), "", "")[:3]
            place, texts = f"{layer}/{folder}", set(trace.texts) - {UNREADABLE}
            if layer in _LAYERS and self._is_own(trace.path) and not path.startswith("_delta_log/"):
                if place not in files:
                    table = open_table(self.lake.root / place)
                    files[place] = set() if table is None else set(table.paths())
                if path not in files[place]:
                    continue
                if place == f"bronze/{CHANGES}":
                    rows = self.changes.read_file(path)
                    held, holders = rows_with(rows, texts - shared)
                    in_messages |= messages.in_bytes(content_of(rows).encode())
                    shared, tables = shared | held, tables | holders
                else:
                    shared |= texts
                    tables.add(f"{layer}.{table_name(folder)}")
        return shared - in_messages, tables

    def _is_own(self, path: str) -> bool:
        """Check whether a file belongs to a table of the pipeline; nobody else's file may hold a value."""
        layer, _, rest = path.partition("/")
        names = {
            **self.known,
            "bronze": {CHANGES, RELATIONS},
            "control": {"cuts", "errors", "runs", "storage", "partitions", "comments", "erasures"},
            "quality": {RESULTS_TABLE, "constraints"},
        }
        return rest.partition("/")[0] in names.get(layer, ())

    def _incomplete(self, reason: str, paths: list[str]) -> DefiniteError:
        for path in paths:
            self.output.report(f"holds a value, or cannot be read: {path}")
        return DefiniteError(
            reason,
            code="erasure-incomplete",
            where=self.lake.label,
            remedy="remove files that do not belong to the pipeline, or correct the file with the value "
            "(`smelt explain-error erasure-incomplete`); then run the command again",
        )

    def _report(self) -> None:
        if self.output.json:
            table, lsn = str(self.table.table), str(self.cut.commit_lsn)
            digests = sorted(self.digests)
            self.output.value({"table": table, "key_digests": digests, "until_lsn": lsn, **self.counts})
            return
        counts = self.counts
        silver = sum(counts["silver_rows"].values())
        self.output.line(
            f"{self.table.table}: erased {counted(counts['bronze_rows'], 'record')} of bronze and "
            f"{counted(silver, 'row')} of silver; removed {counted(counts['files_removed'], 'file')} and "
            f"{counted(counts['log_entries_removed'], 'log file')} of former versions"
        )
        self.output.line(
            f"cuts: {counted(counts['cut_records_moved'], 'record')} name the new versions, "
            f"{counted(counts['cut_records_removed'], 'record')} of older versions are removed"
        )
        self.output.line(f"searched every file of the lake for {counted(counts['values_searched'], 'value')}")
        self.output.line(
            f"changes of the source up to {self.cut.commit_lsn} are covered, later changes are not"
        )
        if counts["values_in_names"]:
            self.output.line(
                f"names or words of the pipeline contain {counted(counts['values_in_names'], 'value')}; "
                "the command erases nothing there"
            )
        if counts["values_of_others"]:
            self.output.line(
                f"other rows also have {counted(counts['values_of_others'], 'value')}, in "
                f"{', '.join(counts['tables_of_others'])}; to erase such rows, run the command "
                "for their table"
            )


def rows_with(rows: pa.Table, texts: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the texts in rows of `bronze.changes`, and the tables of these rows. Pure."""
    held, tables = set(), set[str]()
    names = pc.binary_join_element_wise(rows["table_schema"], rows["table_name"], ".").combine_chunks()
    for cells in (rows["new"].combine_chunks(), rows["old"].combine_chunks()):
        values, parents = pc.list_flatten(cells), pc.list_parent_indices(cells)
        for text, form in ((one, form) for one in texts for form in spellings(one)):
            found = parents.filter(pc.fill_null(pc.match_substring(values.cast(pa.binary()), form), False))
            if len(found):
                held.add(text)
                tables |= set(names.take(found).unique().drop_null().to_pylist())
    return held, tables


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a row of silver, at any depth. Pure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def content_of(rows: pa.Table) -> str:
    """Return the content of the logical messages in rows of `bronze.changes`. Pure."""
    cells = rows.filter(pc.equal(rows["op"], OP_MESSAGE))["columns"].to_pylist()
    return "\0".join(text or "" for one in cells for text in one or ())


STEPS: Final[tuple[tuple[str, Callable[[Erasure], None]], ...]] = (
    ("recording the start", Erasure.start),
    ("rewriting silver and gold", Erasure.purge),
    ("moving cuts", Erasure.move_cuts),
    ("rewriting recorded texts", Erasure.erase_texts),
    ("rewriting bronze", Erasure.erase_records),
    ("removing former versions", Erasure.sweep),
    ("searching every file", Erasure.prove),
    ("recording the end", Erasure.finish),
)
