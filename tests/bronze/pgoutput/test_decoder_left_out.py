"""A table with an unreadable shape is left out, and the decoder reports every change left out."""

from __future__ import annotations

from typing import Any

import pytest

import deltasmelt.bronze.pgoutput.relation_versions
from deltasmelt.bronze.builtin_types import builtin_type
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from deltasmelt.bronze.pgoutput.relation_versions import relation_version
from deltasmelt.bronze.rules import TableRules
from deltasmelt.bronze.shapes import Column, Relation
from tests.bronze import wire

B, C = TableName("public", "b"), TableName("public", "c")
Told = list[tuple[TableName, Lsn, str | None]]


@pytest.fixture(autouse=True)
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every shape with a column ``odd`` unreadable."""

    def fails(announced: Any, from_lsn: Lsn, **more: Any) -> Relation:
        if any(column.name == "odd" for column in announced.columns):
            raise KeyError("a shape of tomorrow")
        return relation_version(announced, from_lsn, **more)

    monkeypatch.setattr(deltasmelt.bronze.pgoutput.relation_versions, "relation_version", fails)


def decoder(
    reports: Told, *, knows: bool = False, reads_after: dict[TableName, Lsn] | None = None
) -> StreamDecoder:
    def unreadable(table: TableName, lsn: Lsn, error: Exception | None) -> None:
        reports.append((table, lsn, None if error is None else str(error)))

    return StreamDecoder(
        lambda _oid, _lsn: None,
        lambda _table: True,
        knows=lambda _oid: knows,
        reads_after=reads_after,
        unreadable=unreadable,
    )


def transaction(lsn: int, *messages: bytes) -> list[bytes]:
    return [wire.begin(lsn), *messages, wire.commit(lsn)]


GOOD = wire.plain_relation(1, "b", ["id", "v"])
ODD = wire.plain_relation(1, "b", ["id", "odd"])
OTHER = wire.plain_relation(2, "c", ["id", "v"])


def test_batch_reports_newest_omitted_change_per_table() -> None:
    """Other tables continue, and each batch reports the newest change of the omitted table."""
    reports: Told = []
    batch_decoder = decoder(reports)
    decoded = batch_decoder.feed(
        [
            *transaction(100, ODD, wire.insert(1, ["1", "a"]), OTHER, wire.insert(2, ["1", "a"])),
            *transaction(200, wire.insert(1, ["2", "a"])),
        ]
    )
    assert reports == [(B, Lsn(100), "'a shape of tomorrow'"), (B, Lsn(200), None)]
    assert decoded.changes["table_name"].to_pylist() == ["c"]
    assert decoded.changes["end_of_tx"].to_pylist() == [True]
    assert decoded.last_commit is not None
    assert decoded.last_commit.commit_lsn == 200
    batch_decoder.feed(transaction(300, wire.insert(2, ["2", "a"])))
    assert len(reports) == 2
    batch_decoder.feed(transaction(400, wire.insert(1, ["3", "a"])))
    assert reports[2:] == [(B, Lsn(400), None)]


def test_omitted_changes_before_recovery_in_batch_are_reported() -> None:
    """The table becomes readable again within the same batch."""
    reports: Told = []
    batch_decoder = decoder(reports)
    batch_decoder.feed(transaction(100, ODD))
    decoded = batch_decoder.feed(
        [
            *transaction(200, wire.insert(1, ["1", "a"])),
            *transaction(300, GOOD, wire.insert(1, ["2", "a"])),
        ]
    )
    assert reports[1:] == [(B, Lsn(200), None)]
    assert decoded.changes["commit_lsn"].to_pylist() == [300]
    batch_decoder.feed(transaction(400, wire.insert(1, ["3", "a"])))
    assert len(reports) == 2


def test_known_table_is_also_missing_under_other_names() -> None:
    reports: Told = []
    decoded = decoder(reports, knows=True).feed(transaction(100, ODD, wire.insert(1, ["1", "a"])))
    assert decoded.left_out == [(1, Lsn(100))]


def test_a_truncate_of_several_tables_keeps_the_others() -> None:
    reports: Told = []
    decoded = decoder(reports).feed(transaction(100, ODD, OTHER, wire.truncate([1, 2])))
    assert decoded.changes["table_name"].to_pylist() == ["c"]
    assert (B, Lsn(100), None) in reports


def test_columns_without_their_rule_are_left_out() -> None:
    """A recreated table has another name for a protected column, and an excluded column was renamed."""
    reports: Told = []
    rules = {B: TableRules((("v", "hash"), ("x", "exclude"))), C: TableRules((("*_token", "exclude"),))}
    columns = tuple(
        Column(name, number, builtin_type(25), "text") for number, name in enumerate(("id", "v"), 1)
    )
    decoder = StreamDecoder(
        lambda oid, _: None if oid == 1 else Relation(2, C, columns, (), "n", ZERO),
        lambda _table: True,
        rules=lambda _oid, table: rules[table],
        names=lambda oid, _table: {} if oid == 1 else {2: "a_token"},
        unreadable=lambda table, lsn, error: reports.append(
            (table, lsn, None if error is None else str(error))
        ),
    )
    mail = wire.plain_relation(1, "b", ["id", "w"])
    decoded = decoder.feed(
        [
            *transaction(100, mail, wire.insert(1, ["1", "a"]), OTHER, wire.insert(2, ["1", "a"])),
            *transaction(200, GOOD, wire.insert(1, ["2", "a"])),
        ]
    )
    assert decoded.changes["commit_lsn"].to_pylist() == [200]
    assert [(table, text) for table, _, text in reports if text] == [
        (B, "the table has no column v, which source.columns protects"),
        (C, "column a_token, which source.columns protects, is called v now"),
    ]


def test_without_anybody_to_tell_the_error_is_raised() -> None:
    with pytest.raises(KeyError, match="tomorrow"):
        StreamDecoder(lambda _oid, _lsn: None, lambda _table: True).feed(transaction(100, ODD))


def test_late_commits_and_incomplete_inserts_are_reported() -> None:
    """A change before a gap may commit after the snapshot; a row may enter a filter without a value."""
    reports: Told = []
    batch_decoder = decoder(reports, reads_after={B: Lsn(150)})
    decoded = batch_decoder.feed(
        [
            *transaction(100, GOOD, wire.insert(1, ["1", "a"], lsn=90)),
            *transaction(200, wire.insert(1, ["2", "a"], lsn=140), wire.insert(1, ["3", "a"], lsn=160)),
            *transaction(300, OTHER, wire.insert(2, ["1", "a"], lsn=280)),
        ]
    )
    assert reports == [(B, Lsn(200), None)]
    assert decoded.changes["new"].to_pylist() == [["3", "a"], ["1", "a"]]
    missing = wire.insert(2, ["2", wire.UNCHANGED], lsn=380)
    decoded = batch_decoder.feed(transaction(400, missing, wire.update(2, ["1", wire.UNCHANGED], lsn=390)))
    assert reports[1:] == [(C, Lsn(400), None)]
    assert decoded.changes["unchanged"].to_pylist() == [["v"], ["v"]]


@pytest.mark.parametrize("size", [1, 100])
def test_root_with_ruled_partition_is_left_out(size: int) -> None:
    """The root stays left out; tables that are only truncated together are no partitions."""
    reports: Told = []
    ruled = TableRules((("v", "exclude"),))
    batch_decoder = StreamDecoder(
        lambda _oid, _lsn: None,
        lambda _table: True,
        rules=lambda oid, _table: ruled if oid == 2 else TableRules(),
        hides=lambda oid, _table: oid == 2,
        unreadable=lambda table, lsn, error: reports.append(
            (table, lsn, None if error is None else str(error))
        ),
    )
    third = wire.plain_relation(3, "d", ["id", "v"])
    messages = [
        *(transaction(100, GOOD, OTHER, wire.truncate([1, 2])) if size > 1 else []),
        *transaction(200, GOOD, third, wire.insert(1, ["1", "a"])),
        *transaction(300, wire.insert(1, ["2", "a"]), GOOD, OTHER, wire.insert(1, ["3", "b"])),
        *transaction(400, GOOD, third, wire.insert(1, ["4", "b"])),
    ]
    rows: list[Any] = []
    for at in range(0, len(messages), size):
        decoded = batch_decoder.feed(messages[at : at + size]).changes
        rows += [row["new"] for row in decoded.to_pylist() if row["op"] == "insert"]
    assert rows == [["1", "a"], ["2", "a"]]
    refusals = [(table, lsn, text) for table, lsn, text in reports if text]
    assert {refusal[0] for refusal in refusals} == {B}
    assert all("public.c, for which the pipeline file has rules" in str(text) for *_, text in refusals)
    assert [lsn for _, lsn, text in reports if text is None][-1] == Lsn(400)
