"""Uploads of data files to a store: one request for a small file, and no leftovers of a failed upload."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector
from pyarrow.parquet import read_table

from deltasmelt.bronze.lake.parquet import HELD_BYTES, PartWriter, UnusableWriterError, file_system
from deltasmelt.bronze.lake.place import Location, in_store
from tests.docs.blocks import ROOT
from tests.object_store import Faults

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

SCHEMA = pa.schema({"body": pa.binary()})


@pytest.fixture
def table(store: ObjectStore, place: Location) -> Location:
    store.forget()
    return place / "changes"


def rows(size: int) -> pa.Table:
    return pa.table({"body": [os.urandom(size)]}, SCHEMA)


def read(uri: str, path: str) -> pa.Table:
    with file_system(uri).open_input_file(path) as file:
        return read_table(file)


def test_a_small_file_is_put_by_one_request(store: ObjectStore, table: str) -> None:
    writer, first, second = PartWriter(table, "stream", schema=SCHEMA), rows(10), rows(20)
    writer.write(first)
    writer.write(second)
    assert store.requests() == []
    (part,) = writer.finish()
    assert [request.method for request in store.requests()] == ["PUT"]
    assert read(table, part.path) == pa.concat_tables([first, second])


def test_file_exceeding_memory_is_uploaded_in_parts(store: ObjectStore, table: str) -> None:
    writer, groups = PartWriter(table, "stream", schema=SCHEMA), [rows(HELD_BYTES // 2) for _ in range(3)]
    for group in groups:
        writer.write(group)
    (part,) = writer.finish()
    sent = [request.method for request in store.requests() if "upload" in request.query]
    assert (sent[0], sorted(sent[1:-1]), sent[-1]) == ("POST", ["PUT", "PUT"], "POST")
    assert part.size > HELD_BYTES
    assert read(table, part.path) == pa.concat_tables(groups)


def test_aborted_multipart_upload_leaves_nothing(store: ObjectStore, table: str) -> None:
    writer = PartWriter(table, "stream", schema=SCHEMA)
    for _ in range(3):
        writer.write(rows(HELD_BYTES // 2))
    writer.discard()
    assert store.requests("POST")
    assert not file_system(table).get_file_info(FileSelector("", allow_not_found=True))


def test_put_with_lost_answer_is_sent_again(store: ObjectStore, table: str) -> None:
    writer, expected = PartWriter(table, "stream", schema=SCHEMA), rows(10)
    store.set_faults(Faults(lose="stream-"))
    writer.write(expected)
    (part,) = writer.finish()
    assert read(table, part.path) == expected


@pytest.mark.parametrize("size", [1000, HELD_BYTES * 2])
def test_writer_is_unusable_after_rejected_upload(
    store: ObjectStore, table: str, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.lake.objects._TIMEOUT_OF_FILES", timedelta(seconds=1))
    writer = PartWriter(table, "stream", schema=SCHEMA)
    store.set_faults(Faults(unavailable=60))
    with pytest.raises(OSError):
        write_all(writer, size)
    with pytest.raises(UnusableWriterError):
        writer.finish()
    store.set_faults()
    assert not file_system(table).get_file_info(FileSelector("", allow_not_found=True))


def write_all(writer: PartWriter, size: int) -> None:
    writer.write(rows(size))
    writer.finish()


def test_a_writer_that_is_given_up_sends_nothing(store: ObjectStore, table: str) -> None:
    writer = PartWriter(table, "stream", schema=SCHEMA)
    writer.write(rows(10))
    writer.discard()
    assert store.requests("PUT") == []


def test_reader_of_local_lake_loads_no_store_client() -> None:
    code = "import sys, deltasmelt.pipelines.runtime.reader_process; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_changed_options_of_place_apply_at_once(store: ObjectStore, table: str) -> None:
    system = file_system(table)
    assert file_system(table) == system
    elsewhere = in_store(table, store.options() | {"aws_region": "eu-central-1"})
    assert file_system(elsewhere) != system
    assert file_system(table) == system
