"""`control.erasures`: several subjects of one erasure, and erasures without an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.erasures import Begun, Erasures, digest_of
from deltasmelt.bronze.lake.location import Lake

if TYPE_CHECKING:
    from pathlib import Path


def test_erasure_ends_for_all_its_subjects(tmp_path: Path) -> None:
    erasures = Erasures(Lake(str(tmp_path)))
    assert erasures.unfinished() == []
    digests = frozenset(digest_of("public.a", (key,), b"secret") for key in "123")
    first = Begun("1", "public.a", digests, 7, "me@here")
    second = Begun("2", "public.b", frozenset({"d"}), 7, "me@here")
    erasures.record(first, "started")
    for count in (4, 5):
        erasures.record(first, "rewritten", {"bronze_rows": count})
    erasures.record(second, "started")
    found = erasures.unfinished()
    assert [(one.erasure_id, one.digests) for one in found] == [("1", digests), ("2", {"d"})]
    assert [(one.rewritten, one.records, one.until) for one in found] == [(True, 5, 7), (False, None, 0)]
    assert "3 keys" in found[0].error.message
    erasures.record(first, "searched")
    assert erasures.unfinished()[0].records is None
    erasures.record(first, "finished", {"bronze_rows": 4})
    assert [one.erasure_id for one in erasures.unfinished()] == ["2"]
    erasures.record(second, "abandoned")
    assert erasures.unfinished() == []
    table = open_existing(Lake(str(tmp_path)).uri("control", "erasures"))
    rows = [row for path in table.paths() for row in table.read_file(path).to_pylist()]
    assert {row["key_digest"] for row in rows if row["state"] == "finished"} == digests


def test_digest_depends_on_secret_table_and_key() -> None:
    digests = {
        digest_of(table, key, secret)
        for table in ("a", "b")
        for key in (("1", "2"), ("12",))
        for secret in (b"x", b"y")
    }
    assert len(digests) == 8
