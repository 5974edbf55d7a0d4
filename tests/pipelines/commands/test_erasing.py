"""Refusals of `smelt forget` and rows of others, without a server and without Spark."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.control import Cut, OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing, open_or_create
from deltasmelt.bronze.lake.erasures import Erasures, Unfinished, digest_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.traces import Search
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.rules import Rules, key_number
from deltasmelt.bronze.store.changes_table import ChangesTable, commit_marks
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.bronze.store.erasure import Found, find
from deltasmelt.bronze.store.marks import HASH_KEY_APP
from deltasmelt.pipelines.commands.erasing import STEPS, Erasure, content_of, rows_with
from deltasmelt.pipelines.commands.forget import (
    Target,
    begun_of,
    known_folders,
    require_built,
    require_clear,
    require_hash_key,
    require_known,
    run_abandon,
)
from deltasmelt.pipelines.commands.subjects import Subjects, given, subjects_of
from deltasmelt.pipelines.runtime.sweeping import former_rows, unnamed_files
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.run.erasure import is_erased, is_live_with
from deltasmelt.silver.schema.catalog import history_of, silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.pipelines.runtime.test_sweeping import KEY, OTHERS, PEOPLE, SECRETS, SHAPES, bronze_of
from tests.silver.histories import INT, TEXT, BronzeWriter, change, insert, relation

if TYPE_CHECKING:
    from pathlib import Path

PAIRS = relation("pairs", (("a", INT), ("b", TEXT)), ["a", "b"], relation_id=2)
CATALOG = silver_catalog([PEOPLE, PAIRS], SilverSettings(history=["public.people"]))
NAME = TableName.parse("public.people")
SUBJECTS = Subjects((("1",), ("2",)), frozenset({("hash1",), ("hash2",)}), frozenset("12"))


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (Found(keys={("1",), ("2",)}), None),
        (Found(keys={("1",)}), "erasure-key"),
        (Found(keys={("1",), ("2",)}, moved={("7",)}), "erasure-moved"),
        (Found(keys={("1",), ("hash2",)}), "erasure-key-type"),
    ],
)
def test_records_under_other_keys_are_refused(found: Found, code: str | None) -> None:
    if code is None:
        require_clear(NAME, found, SUBJECTS, complete=True)
        return
    with pytest.raises(DefiniteError) as raised:
        require_clear(NAME, found, SUBJECTS, complete=True)
    assert raised.value.code == code
    assert {"erasure-moved": "(7)", "erasure-key": "number 2"}.get(code, "") in str(raised.value)
    if code == "erasure-key":  # bronze without old changes may lack the record
        require_clear(NAME, found, SUBJECTS, complete=False)


@pytest.mark.parametrize(
    "stray", ["silver/former_people", "gold/removed", "_verify/copy-1", "_fresh/clone", "silver/a.csv"]
)
def test_lake_with_strays_is_refused(tmp_path: Path, stray: str) -> None:
    documents: Any = [SimpleNamespace(name="customer")]
    for known in ("silver/people", "silver/people__history", "silver/pairs", "gold/customer", "bronze/x"):
        (tmp_path / known).mkdir(parents=True)
    owned = known_folders(CATALOG, documents)
    unfinished = tmp_path / "silver" / "_made-1"  # by a process killed in a table's creation
    unfinished.mkdir()
    require_known(Lake(str(tmp_path)), owned)
    assert not unfinished.exists()
    if stray.endswith(".csv"):
        (tmp_path / stray).touch()
    else:
        (tmp_path / stray).mkdir(parents=True)
    with pytest.raises(DefiniteError) as raised:
        require_known(Lake(str(tmp_path)), owned)
    assert raised.value.code == "erasure-stray"
    assert stray in str(raised.value)


def test_only_same_keys_continue_an_erasure() -> None:
    former = relation("former", (("id", INT),), ["id"], relation_id=1)
    versions = [former, PEOPLE]

    def unfinished(table: str, *keys: str, secret: bytes = b"s") -> Unfinished:
        digests = frozenset(digest_of(table, (key,), secret) for key in keys)
        return Unfinished("e", table, digests, datetime.now(UTC), rewritten=True)

    assert begun_of([], versions, SUBJECTS, b"s") == (unfinished("public.people", "1", "2").digests, None)
    for table in ("public.people", "public.former"):  # renamed in between
        one = unfinished(table, "1", "2")
        assert begun_of([one], versions, SUBJECTS, b"s") == (one.digests, one)
    for other in (
        unfinished("public.people", "1"),
        unfinished("public.people", "1", "2", "3"),
        unfinished("public.people", "1", "2", secret=b"t"),
        unfinished("public.pairs", "1", "2"),
    ):
        with pytest.raises(DefiniteError) as raised:
            begun_of([other], versions, SUBJECTS, b"s")
        assert raised.value.code == "erasure-unfinished"
        # Before the rewrite of bronze, no file matters to the other erasure.
        assert begun_of([replace(other, rewritten=False)], versions, SUBJECTS, b"s")[1] is None


def test_abandoned_erasure_blocks_nothing(tmp_path: Path) -> None:
    lake = bronze_of(tmp_path)
    (tmp_path / "a.csv").write_text(SECRETS[1])
    require_incomplete(lake)
    ControlTables(lake).record_cut(Cut("silver", Lsn(50), None, {"people": 1}))
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'postgresql://x', slot: s, publication: p}\n"
        f"lake: {{path: {tmp_path}}}\n"
    )
    pipeline = load_pipeline(file)
    with pytest.raises(ConfigurationError) as raised:
        run_abandon(pipeline, "public.others", Output())
    assert raised.value.code == "erasure-key"
    with pytest.raises(ConfigurationError):  # of which schema?
        run_abandon(pipeline, "people", Output())
    run_abandon(pipeline, "public.people", Output())
    assert Erasures(lake).unfinished() == []


def test_document_behind_or_ahead_is_refused(tmp_path: Path) -> None:
    lake, people = Lake(str(tmp_path)), CATALOG[PEOPLE.table]
    control, target = ControlTables(lake), Target(people, (people,), ("doc",), frozenset())
    open_or_create(lake.uri("gold", "doc"), pa.schema([pa.field("id", pa.int64())]), description="")
    silver = Cut("silver", Lsn(50), None, {"people": 3})
    control.record_cut(silver)

    def refusal(cut: Cut) -> str:
        with pytest.raises(DefiniteError) as raised:
            require_built(lake, control, target, cut, [people])
        assert raised.value.code == "erasure-behind"
        return str(raised.value)

    assert "lacks doc" in refusal(silver)
    control.record_cut(Cut("gold", Lsn(51), None, {"doc": 1}, marks={"doc": Lsn(50)}))
    assert "ahead" in refusal(silver)  # the table has another mark
    control.record_cut(Cut("gold", Lsn(52), None, {"doc": 1}))
    require_built(lake, control, target, silver, [people])
    newer = Cut("silver", Lsn(60), None, {"people": 4})
    control.record_cut(newer)
    assert "not yet built" in refusal(newer)
    # Others changed the document after its cut, and left its mark.
    write_deltalake(lake.uri("gold", "doc"), pa.table({"id": [1]}), mode="append")
    control.record_cut(Cut("gold", Lsn(60), None, {"doc": 0}))
    assert "another program wrote gold.doc" in refusal(newer)


@pytest.mark.parametrize("values", [[], ["1"], ["1", "x", "2"]])
def test_values_fill_whole_keys(values: list[str]) -> None:
    with pytest.raises(ConfigurationError) as raised:
        subjects_of(cast("Any", None), CATALOG[PAIRS.table], values)
    assert raised.value.code == "erasure-key"


def test_keys_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n-\na\u2028b\n\nDE\n"))
    assert given(["-"]) == ["1", "-", "a\u2028b", "", "DE"]
    assert given(["-"]) == []
    assert given(["-", "2"]) == ["-", "2"]


def test_conditions_name_all_keys() -> None:
    people, pairs = CATALOG[PEOPLE.table], CATALOG[PAIRS.table]
    assert is_erased(history_of(people), [("2",), ("1",)]).startswith("`id` IN (")
    assert is_live_with(people, [("1",)]).count("`id`") == 1
    both = is_erased(pairs, [("1", "x"), ("2", "y")])
    assert both.startswith("((`a` = ")
    assert both.count(" OR ") == 1


def test_texts_in_rows_of_others() -> None:
    rows = [
        insert(PEOPLE, "5", "a quagga here"),
        change(PAIRS, "delete", old=["1", 'Zo\\u00eb "z"'], old_is_key=True),
        change(PAIRS, "message", columns=["prefix", "zebulon"], table_schema=None, table_name=None),
    ]
    table = pa.Table.from_pylist([dict.fromkeys(CHANGES_SCHEMA.names) | row for row in rows], CHANGES_SCHEMA)
    held, tables = rows_with(table, {"quagga", "Zoë", "zebulon", "nobody"})
    assert (held, tables) == ({"quagga", "Zoë"}, {"public.people", "public.pairs"})
    assert content_of(table) == "prefix\0zebulon"


def erasure_of(lake: Lake) -> Erasure:
    """Return a new erasure, or the one that the lake has begun; without tables of silver and gold."""
    changes = open_existing(lake.uri("bronze", "changes"))
    begun = next(iter(Erasures(lake).unfinished()), None)
    unnamed = former_rows(changes) if begun else []
    return Erasure(
        spark=cast("Any", None),
        lake=lake,
        control=ControlTables(lake),
        erasures=Erasures(lake),
        changes=changes,
        shapes=SHAPES,
        table=CATALOG[PEOPLE.table],
        silver=(),
        documents=(),
        ended=frozenset(),
        known=known_folders(CATALOG, ()),
        subjects=Subjects((KEY,), frozenset(), frozenset()),
        found=find(changes, SHAPES, [KEY], unnamed=unnamed),
        cut=Cut("silver", Lsn(50), None, {"people": 1}),
        digests=frozenset({"digest"}),
        begun=begun,
        done_by="me@here",
        output=Output(),
    )


def erased(lake: Lake) -> dict[str, Any]:
    """Run all steps that need no Spark; return the counts."""
    erasure = erasure_of(lake)
    for _, step in STEPS:
        if step is not Erasure.purge:
            step(erasure)
    assert Erasures(lake).unfinished() == []
    assert list(Search(SECRETS[1:]).in_lake(str(lake.root))) == []
    return erasure.counts


def require_incomplete(lake: Lake, words: str | None = None) -> None:
    with pytest.raises(DefiniteError, match=words) as raised:
        erased(lake)
    assert raised.value.code == "erasure-incomplete"
    assert len(Erasures(lake).unfinished()) == 1


def test_value_of_others_stays_in_their_rows(tmp_path: Path) -> None:
    lake = bronze_of(tmp_path, insert(OTHERS, "6", SECRETS[0]))
    orphan = ChangesTable(lake.uri("bronze", "changes"), {})
    counts = erased(lake)
    assert (counts["values_of_others"], counts["tables_of_others"]) == (1, ["public.others"])
    assert (counts["bronze_rows"], counts["values_searched"]) == (4, 3)
    # A reader that has outlived its command commits no more: its files are gone.
    with pytest.raises(SmeltError):
        orphan.commit([], [])


def test_value_of_ended_tables_and_words_stay(tmp_path: Path) -> None:
    """No cut names a history that ended, or a table that an error has stopped; a word is in every file."""
    lake = bronze_of(tmp_path, *(insert(PEOPLE, KEY[0], text) for text in ("insert", "Peoples", "failed")))
    # what a reader that copies tables leaves, and the command's own lock
    locks = lake.locks
    assert locks is not None
    locks.mkdir()
    (locks / "progress.json").write_text('{"snapshots": {"Peoples": {"failed": false}}}')
    (locks / "bronze").write_text('{"command": "smelt forget", "host": "Peoples"}')
    write_deltalake(lake.uri("silver", "people__history"), pa.table({"note": [SECRETS[0]]}))
    ControlTables(lake).open_error(OpenError("table", "Peoples", "value-missing", "Peoples"))
    counts = erased(lake)
    assert (counts["values_of_others"], counts["tables_of_others"]) == (1, ["silver.people__history"])
    assert counts["values_in_names"] == 2
    (locks / "a.csv").write_text("untouched")
    shutil.rmtree(locks)
    (tmp_path / "a.csv").write_text("Peoples")
    for name in ("bronze", "control"):
        shutil.rmtree(tmp_path / name)
    bronze_of(tmp_path, insert(PEOPLE, KEY[0], "Peoples"))
    ControlTables(lake).open_error(OpenError("table", "Peoples", "value-missing", "Peoples"))
    require_incomplete(lake)


def test_value_in_file_of_nobody_is_incomplete(tmp_path: Path) -> None:
    """Also a value that rows of others have; once the file is gone, the same call ends."""
    lake = bronze_of(tmp_path, insert(OTHERS, "6", SECRETS[0]))
    for name in ("a.csv", "control/a.csv"):
        (tmp_path / name).write_text(SECRETS[0])
        require_incomplete(lake)
        (tmp_path / name).unlink()
    # what a process left that was killed in a checkpoint
    staged = tmp_path / "bronze/changes/_checkpoint-x/_delta_log"
    staged.mkdir(parents=True)
    pq.write_table(pa.table({"add": [SECRETS[0]]}), staged / f"{0:020}.checkpoint.parquet")
    counts = erased(lake)
    # bronze's records are those of the first call
    assert (counts["values_searched"], counts["bronze_rows"]) == (3, 4)


def test_result_recorded_meanwhile_is_incomplete(tmp_path: Path) -> None:
    erasure = erasure_of(bronze_of(tmp_path))
    for _, step in STEPS:
        if step is Erasure.prove:
            erasure.control.open_error(OpenError("table", "public.people", "value-missing", "row 1"))
            with pytest.raises(DefiniteError, match="meanwhile"):
                step(erasure)
            break
        if step is not Erasure.purge:
            step(erasure)
    assert erased(erasure.lake)["bronze_rows"] == 4


def test_other_hash_key_is_refused(tmp_path: Path) -> None:
    lake, rules = bronze_of(tmp_path), Rules.of({}, {}, "a-key-of-hashes-in-this-lake")
    changes = open_existing(lake.uri("bronze", "changes"))
    require_hash_key(changes, Rules(), "pipeline.yml")
    commit_marks(changes, [Transaction(HASH_KEY_APP, key_number(rules.key))])
    require_hash_key(changes, rules, "pipeline.yml")
    for other in (Rules(), Rules.of({}, {}, "another-key-of-hashes")):
        with pytest.raises(ConfigurationError) as raised:
            require_hash_key(changes, other, "pipeline.yml")
        assert raised.value.code == "erasure-key-missing"


def test_value_in_message_is_incomplete(tmp_path: Path) -> None:
    sent = change(OTHERS, "message", columns=["prefix", SECRETS[0]])
    sent |= {"table_schema": None, "table_name": None, "relation_id": None}
    require_incomplete(bronze_of(tmp_path, insert(OTHERS, "6", SECRETS[0]), sent))


def test_values_without_former_files_are_unknown(tmp_path: Path) -> None:
    """Bronze's maintenance removes the files by which a repeated call knows the values."""
    lake = bronze_of(tmp_path)
    (tmp_path / "a.csv").write_text(SECRETS[1])
    require_incomplete(lake)
    changes = open_existing(lake.uri("bronze", "changes"))
    for path in unnamed_files(changes):
        (tmp_path / "bronze/changes" / path).unlink()
    # Later records of the same key do not stand for the lost ones.
    bronze = BronzeWriter(lake)
    for lsn in range(60, 66):
        bronze.add(lsn, [insert(PEOPLE, KEY[0], "another")])
        bronze.commit(lsn)
    require_incomplete(lake, "no longer known")
