"""`smelt forget`: erase rows of a table from every layer, and prove the erasure.

A call may name many subjects (keys): each file is rewritten once for all of them. There is no condition in
place of keys: what a condition selects changes with the data, and a repeated call must mean the same rows.
`smelt sql` and psql list the keys of a condition, and `--key -` reads them.

The command holds the locks of all stages, so no process reads or writes the lake by changes meanwhile. A
reader whose command was killed may outlive its lock for some seconds. A mark of its own makes this command
the owner of bronze: no later commit of such a reader succeeds, so its files may go.

**Refusals, before anything changes.** A row still lives at the source: the next snapshot would bring the row
back. A row had another key, which was not named. Silver or any document has yet to apply the delete: also a
document that does not read the table, because its rows may come from an earlier definition. Somebody else
wrote a table: the erasure would hide that commit from the next cycle. The lake has tables that belong to no
table of the source and to no document: they may hold short texts and numbers, which no search can attribute
to a row. The lake is in a store or a catalog, where this command cannot see all files and log entries.

**Steps** (`pipelines.commands.erasing`), each safe to repeat. The values of the subjects are known from
bronze, so bronze comes last, and its former files stay on disk until the search over the lake has ended:

1. `control.erasures` gets a row, so `smelt check` reports an unfinished erasure. Bronze gets a mark of its
   owner.
2. Silver's table and its history lose the subjects' rows, each document's table its deleted rows: also the
   tables of documents that do not read the table, because an earlier definition may have read it. Every table
   gets a checkpoint. Cuts continue to name the versions before.
3. One commit lets the cuts with the same rows name the new versions; older cuts lose these tables, and keep
   the others. Gold's position moves with its cuts: the next build reads silver's change feed from the new
   versions on.
4. Recorded errors, runs and quality results lose the values.
5. One commit rewrites the files of bronze with the subjects' records.
6. Log entries and files of all former versions go, except bronze's former files.
7. The search over all other files of the lake; then bronze's former files go.
8. `control.erasures` gets the last row.

**At each point of failure:**

* *killed in or after 2*: silver and gold have the same live rows in newer versions, as after maintenance; the
  subjects are still in bronze, and the next call finds them there.
* *killed in 3*: one commit rewrites the cuts, or none.
* *killed in or after 5*: the next call finds the subjects in bronze's former files (`find`, `unnamed`). All
  of them left the log in one commit, so the reader's maintenance removes all or none. Without them the
  values are unknown, and the command ends with ``erasure-incomplete`` instead of a search for nothing. Such
  an erasure can only be abandoned (`abandon`), which `control.erasures` records.
* *killed in 6 or 7*: the newest version of each table stays readable (`pipelines.runtime.sweeping`). The next
  call removes the rest.
* *a run between a kill and the next call*: the stages continue from marks and cuts, which name existing
  versions at each moment. The call checks again whether the layers have caught up.

The search is a search for texts. Numbers, times and texts that are too short (`bronze.lake.traces`) are
proved by the rows: after the commits the command finds no record and no row of a subject, no file of a former
version is left, and the lake has no other tables. A value that also stands in a row of somebody else stays
there, and the command reports the tables.

The erasure covers the changes up to silver's newest cut. Which later changes the server has, nobody knows
before a reader has received them: `control.erasures` and the output name the LSN.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.copies import FRESH, VERIFY, remove_left
from deltasmelt.bronze.lake.delta import open_existing, open_table, remove_unfinished
from deltasmelt.bronze.lake.erasures import Begun, Erasures, digest_of
from deltasmelt.bronze.lake.foreign_commits import first_foreign
from deltasmelt.bronze.lake.location import folder_name
from deltasmelt.bronze.rules import key_number
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.erasure import NEW_LAKE, Found, Shapes, find
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import HASH_KEY_APP, kept_from
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.pipelines.commands.context import load_documents_of, require_lake, spark_for
from deltasmelt.pipelines.commands.erasing import Erasure
from deltasmelt.pipelines.commands.rebuild import tables_named
from deltasmelt.pipelines.commands.subjects import CATCH_UP, Subjects, given, gone, subjects_of
from deltasmelt.pipelines.runtime.locks import lake_lock, writing
from deltasmelt.pipelines.runtime.sweeping import former_rows
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import DELETED, histories, history_of, silver_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.erasures import Unfinished
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.rules import Rules
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.schema.catalog import SilverTable

VARIABLE: Final = "SMELT_ERASURE_KEY"
"""Environment variable with the key of the digests in `control.erasures`, without `source.hash_key`."""
_SHORTEST: Final = 16
_SHOWN: Final = 10
"""Number of keys or folders that a message shows."""


@dataclass(frozen=True, slots=True)
class Target:
    """The tables of the lake that may hold a subject."""

    table: SilverTable
    # silver's table and its history, as far as they exist
    silver: tuple[SilverTable, ...]
    # names of all documents with a table
    documents: tuple[str, ...]
    # names of a table that silver no longer updates: a history that the pipeline file no longer names
    ended: frozenset[str]


def run_forget(
    pipeline: Pipeline, name: str, key: Sequence[str], output: Output, *, dry_run: bool = False
) -> None:
    """Erase subjects; with `dry_run` print what would be erased.

    Raises:
        SmeltError: a stage runs, a subject lives, a layer is behind, or the search has found a value.
    """
    lake = pipeline.lake_address()
    require_local(lake)
    require_lake(pipeline)
    (source_table,) = tables_named(pipeline, name)
    secret, values = secret_of(pipeline), given(key)
    with (
        lake_lock(lake, ("bronze", "silver", "gold"), command="smelt forget"),
        writing(lake, "silver"),
        writing(lake, "gold"),
    ):
        control, erasures = ControlTables(lake), Erasures(lake)
        relations = read_relations(lake)
        catalog = silver_catalog(relations, pipeline.silver)
        table, documents = catalog[source_table], load_documents_of(pipeline)
        versions = _relations_of(relations, source_table)
        shapes = Shapes(versions)
        subjects = subjects_of(pipeline, table, values)
        digests, begun = begun_of(erasures.unfinished(), versions, subjects, secret)
        known = known_folders(catalog, documents)
        require_known(lake, known, clears=not dry_run)
        changes = open_existing(lake.uri("bronze", CHANGES))
        if is_left_out(changes, source_table):
            raise gone(source_table, "the pipeline no longer reads the table")
        require_hash_key(changes, pipeline.source.rules, str(pipeline.path))
        with output.waiting("reading bronze"):
            # Of a finished erasure, or of none, former files hold only what compaction has joined.
            unnamed = [] if begun is None else former_rows(changes)
            found = find(changes, shapes, {*subjects.keys, *subjects.others}, unnamed=unnamed)
        # Bronze without old changes may have lost records whose rows silver, or former versions, still hold.
        require_clear(source_table, found, subjects, complete=begun is None and not kept_from(changes))
        target = _target(pipeline, table, documents)
        cut = require_lake(pipeline)
        _require_caught_up(lake, control, target, cut, found)
        with spark_for(pipeline, output) as spark:
            erasure = Erasure(
                spark=spark,
                lake=lake,
                control=control,
                erasures=erasures,
                changes=changes,
                shapes=shapes,
                table=target.table,
                silver=target.silver,
                documents=target.documents,
                ended=target.ended,
                known=known,
                subjects=subjects,
                found=found,
                cut=cut,
                digests=digests,
                begun=begun,
                done_by=_account(),
                output=output,
            )
            erasure.require_dead()
            if dry_run:
                erasure.show_plan()
            else:
                erasure.run()


def run_abandon(pipeline: Pipeline, name: str, output: Output) -> None:
    """End the unfinished erasures of a table without their proof; `control.erasures` records that.

    Raises:
        SmeltError: a stage runs. ``erasure-key``: no erasure of the table is unfinished.
    """
    lake = pipeline.lake_address()
    require_local(lake)
    require_lake(pipeline)
    with lake_lock(lake, ("bronze", "silver", "gold"), command="smelt forget"):
        erasures = Erasures(lake)
        unfinished = [one for one in erasures.unfinished() if one.table == name]
        if not unfinished:
            raise ConfigurationError(
                "no erasure of this table is unfinished",
                code="erasure-key",
                where=name,
                remedy="give the table's name as `smelt check` shows it with erasure-unfinished",
            )
        for one in unfinished:
            begun = Begun(one.erasure_id, one.table, one.digests, one.until, _account())
            erasures.record(begun, "abandoned")
            output.line(
                f"{one.table}: the erasure of {counted(len(one.digests), 'key')} is abandoned; values of the "
                "rows may still be in the lake"
            )


def require_local(lake: Lake) -> None:
    """Refuse a lake whose files this process cannot list completely.

    Raises:
        DefiniteError: ``erasure-place``.
    """
    if lake.folder is None:
        raise DefiniteError(
            "smelt forget works on a lake in a local folder; in an object store or a catalog it cannot prove "
            "that every former version is gone",
            code="erasure-place",
            where=lake.label,
            remedy="to erase there, start a new lake with another lake.path and source.slot, then remove "
            "the old lake",
        )


def secret_of(pipeline: Pipeline) -> bytes:
    """Return the key of the digests, which is no part of the lake.

    Raises:
        ConfigurationError: ``erasure-key-missing``.
    """
    configured = pipeline.source.hash_key
    text = os.environ.get(VARIABLE, "") if configured is None else configured.get_secret_value()
    if len(text.encode()) < _SHORTEST:
        raise ConfigurationError(
            f"no key for the digest of the subject: neither source.hash_key nor {VARIABLE} has at least "
            f"{_SHORTEST} bytes",
            code="erasure-key-missing",
            where=str(pipeline.path),
            remedy=f"export {VARIABLE}, for example from `openssl rand -hex 32`, and keep it outside of the "
            "lake",
        )
    return text.encode()


def _account() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _relations_of(relations: Sequence[Relation], table: TableName) -> list[Relation]:
    """Return all versions of the relations whose newest name is a table's name."""
    newest = {relation.relation_id: relation.table for relation in relations}  # oldest first
    return [relation for relation in relations if newest[relation.relation_id] == table]


# -- refusals


def begun_of(
    unfinished: Sequence[Unfinished], versions: Sequence[Relation], subjects: Subjects, secret: bytes
) -> tuple[frozenset[str], Unfinished | None]:
    """Return the digests of the subjects, and the unfinished erasure that this call continues.

    After the first call's commit to bronze, a second erasure is refused: its sweep would remove files that
    the search of the first needs. The table may have been renamed since the first call.

    Raises:
        DefiniteError: ``erasure-unfinished``.
    """
    names = list(dict.fromkeys(str(relation.table) for relation in reversed(versions)))
    by_name = {name: frozenset(digest_of(name, key, secret) for key in subjects.keys) for name in names}
    same = [erasure for erasure in unfinished if by_name.get(erasure.table) == erasure.digests]
    for erasure in unfinished:
        if erasure.rewritten and erasure not in same:
            error = erasure.error
            raise DefiniteError(
                f"{error.message}; other keys, or another {VARIABLE}, were given then",
                code=error.code,
                where=erasure.table,
                remedy=error.remedy,
            )
    return (same[0].digests, same[0]) if same else (by_name[names[0]], None)


def require_hash_key(changes: Table, rules: Rules, file: str) -> None:
    """Refuse a file without the key of the lake's hashes: hashes of a given key could not be searched.

    Raises:
        ConfigurationError: ``erasure-key-missing``.
    """
    recorded = changes.transaction_version(HASH_KEY_APP)
    if recorded is not None and recorded != key_number(rules.key):
        raise ConfigurationError(
            "the lake has hashes of another source.hash_key, so a hashed key cannot be searched",
            code="erasure-key-missing",
            where=file,
            remedy="give source.hash_key the value with which the lake's hashes were made",
        )


def known_folders(
    catalog: Mapping[TableName, SilverTable], documents: Sequence[Document]
) -> dict[str, set[str]]:
    """Return the folders of silver and gold with an owner, by layer; copies for a command have none."""
    tables = {one.name for table in catalog.values() for one in (table, history_of(table))}
    return {
        "silver": {folder_name(name) for name in tables},
        "gold": {folder_name(document.name) for document in documents},
        VERIFY: set(),
        FRESH: set(),
    }


def require_known(lake: Lake, known: Mapping[str, set[str]], *, clears: bool = True) -> None:
    """Refuse a lake with tables of no owner: a search for texts finds no number and no short text there.

    Args:
        known: folders by layer (`known_folders`).
        clears: remove copies that killed commands left an hour ago.

    Raises:
        DefiniteError: ``erasure-stray``.
    """
    assert lake.folder is not None  # noqa: S101 - `require_local` has refused other places
    if clears:
        remove_left(lake)
        for layer in known:  # of any age: no other process writes, because the command holds every lock
            remove_unfinished(lake.folder / layer)
    strays = [
        f"{layer}/{path.name}"
        for layer, names in known.items()
        for path in sorted((lake.folder / layer).glob("*"))
        if path.name not in names
    ]
    if strays:
        raise DefiniteError(
            f"{len(strays)} folders belong to no table and to no document, so they may hold the row: "
            f"{', '.join(strays[:_SHOWN])}",
            code="erasure-stray",
            where=lake.label,
            remedy="remove these folders, or move them out of the lake; then run the command again",
        )


def require_clear(table: TableName, found: Found, subjects: Subjects, *, complete: bool) -> None:
    """Refuse keys without a record, and records of the subjects under keys that were not named.

    Args:
        complete: whether bronze has a record of each row that the lake ever had.

    Raises:
        DefiniteError: ``erasure-key``, ``erasure-moved``, ``erasure-key-type``.
    """
    unknown = [number for number, key in enumerate(subjects.keys, 1) if key not in found.keys]
    if complete and unknown and not found.keys & subjects.others:
        shown = ", ".join(map(str, unknown[:_SHOWN])) + (" …" if unknown[_SHOWN:] else "")
        raise DefiniteError(
            f"the lake has no record of {len(unknown)} of {counted(len(subjects.keys), 'key')}: number "
            f"{shown} of the call",
            code="erasure-key",
            where=str(table),
            remedy="compare the keys with bronze.changes; perhaps they are erased already (control.erasures)",
        )
    if found.keys & subjects.others:
        raise DefiniteError(
            "bronze has records of the key in clear and hashed, from before and after a rule",
            code="erasure-key-type",
            where=str(table),
            remedy=NEW_LAKE,
        )
    if found.moved:
        keys = ["(" + ", ".join(key) + ")" for key in sorted(found.moved)]
        raise DefiniteError(
            f"an update changed the key of the row; it also had the key {', '.join(keys[:_SHOWN])}",
            code="erasure-moved",
            where=str(table),
            remedy="name these keys as well, in the same call",
        )


# -- the lake


def _target(pipeline: Pipeline, table: SilverTable, documents: Sequence[Document]) -> Target:
    lake, log = pipeline.lake_address(), SilverLog(pipeline.lake_address())
    built = [document for document in documents if open_table(lake.uri("gold", document.name)) is not None]
    existing = []
    for one in (table, history_of(table)):
        stored = log.read(one.name)
        if stored is not None:
            # The table itself decides, because the settings may have changed since.
            soft = any(column.name == DELETED and column.attnum is None for column in stored.fields)
            existing.append(replace(one, soft=soft and not one.history))
    updated = {one.name for one in (table, *histories([table], pipeline.silver))}
    ended = frozenset(one.name for one in existing if one.name not in updated)
    names = tuple(document.name for document in built)
    return Target(table, tuple(existing), names, ended)


def _require_caught_up(lake: Lake, control: ControlTables, target: Target, cut: Cut, found: Found) -> None:
    """Check that the newest cuts of silver and gold hold everything that bronze has of the subjects.

    Raises:
        DefiniteError: ``erasure-behind``.
    """
    if found.newest > cut.commit_lsn:
        raise _behind(target, "silver has not yet applied all changes of the row")
    log = SilverLog(lake)
    updated = [table for table in target.silver if table.name not in target.ended]
    for table in updated:
        stored, named = log.read(table.name), cut.named(table.name)
        if stored is None or named is None:
            raise _behind(target, f"silver's newest cut lacks {table.name}: an error has stopped the table")
        if named.mark is not None and stored.mark != named.mark:
            raise _behind(target, f"silver.{table.name} is ahead of silver's newest cut")
        require_ours(
            target, f"silver.{table.name}", open_existing(lake.uri("silver", table.name)), named.version
        )
    if target.documents:
        require_built(lake, control, target, cut, updated)


def require_built(
    lake: Lake, control: ControlTables, target: Target, cut: Cut, updated: Sequence[SilverTable]
) -> None:
    """Check that all documents were built from silver's newest cut, by this pipeline alone.

    A document's rows may come from an earlier definition, which read the table.

    Raises:
        DefiniteError: ``erasure-behind``.
    """
    gold = control.latest_cut("gold")
    base = None if gold is None else control.latest_cut("silver", at=gold.commit_lsn, known_by=gold.seen)
    for name in target.documents:
        built, stored = None if gold is None else gold.named(name), open_existing(lake.uri("gold", name))
        if built is None:
            raise _behind(target, f"gold's newest cut lacks {name}: an error has stopped the document")
        if built.mark not in {None, stored.transaction_version(GOLD_APP)}:
            raise _behind(target, f"gold.{name} is ahead of gold's newest cut")
        require_ours(target, f"gold.{name}", stored, built.version)
    for table in updated:
        if base is None or base.tables.get(table.name) != cut.tables[table.name]:
            raise _behind(target, "gold has not yet built from silver's newest cut")


def require_ours(target: Target, name: str, table: Table, since: int) -> None:
    """Check that nobody else changed rows since a cut's version.

    The next cycle has to see such a commit, to stop the table or to build the document anew. The erasure
    removes the log, and lets the cut name a later version.

    Raises:
        DefiniteError: ``erasure-behind``.
    """
    version = table.version()
    if since < version:
        foreign = first_foreign(range(version, since, -1), table.commits(version - since))
        if foreign is not None:
            raise _behind(target, f"another program wrote {name}, in {foreign}, after its newest cut")


def _behind(target: Target, reason: str) -> DefiniteError:
    return DefiniteError(
        reason,
        code="erasure-behind",
        where=str(target.table.table),
        remedy=f"first: {CATCH_UP}; `smelt status FILE` shows errors",
    )
