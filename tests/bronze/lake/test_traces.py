"""The search for texts in Parquet files, logs and other files."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltasmelt.bronze.lake.traces import UNREADABLE, Search, searchable

if TYPE_CHECKING:
    from pathlib import Path

TEXT = 'Zoë "Zed" Quagga'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("short", set()),
        ("longer", {"longer"}),
        ("1234567890", set()),
        ("+49 170 1234567", {"+49 170 1234567"}),
        ('{"Quagga, Zoë",x}', {'{"Quagga, Zoë",x}', "Quagga"}),
        ("q" * 999, {"q" * 200, "q" * 32}),
        # the name of a field in JSON is no value
        ('{"operation": ["Quagga", {"timestamp": 1}]}',
         {'{"operation": ["Quagga", {"timestamp": 1}]}', '{"operation": ["Quagga", {"times', "Quagga"}),
    ],
)  # fmt: skip
def test_searchable_texts(text: str, found: set[str]) -> None:
    assert searchable([text]) == found


def test_search_finds_text_in_every_kind_of_file(tmp_path: Path) -> None:
    nested = pa.table({"a": [[{"b": [TEXT]}]], "n": [1]})
    pq.write_table(nested, tmp_path / "nested.parquet", compression="zstd", write_statistics=False)
    plain = pa.table({"a": ["x", TEXT]})
    pq.write_table(plain, tmp_path / "dictionary.parquet", compression="zstd", write_statistics=False)
    pq.write_table(pa.table({"a": ["x"]}).replace_schema_metadata({"k": TEXT}), tmp_path / "footer.parquet")
    mapped = pa.table({"m": pa.array([[("k", TEXT)]], pa.map_(pa.string(), pa.string()))})
    pq.write_table(mapped, tmp_path / "map.parquet", compression="zstd", write_statistics=False)
    binary = pa.table({"a": [b"secret-bytes"]})
    pq.write_table(binary, tmp_path / "binary.parquet", compression="zstd", write_statistics=False)
    log = tmp_path / "_delta_log"
    log.mkdir()
    stats = json.dumps({"minValues": {"a": TEXT}})
    (log / "1.json").write_text(json.dumps({"add": {"stats": stats}}))
    (tmp_path / "clean.json").write_text("{}")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "clean.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    fixed = pa.table({"a": pa.array([b"secret-bytes"], pa.binary(12))})
    pq.write_table(fixed, tmp_path / "fixed.parquet", compression="zstd", write_statistics=False)
    search = Search([TEXT, r"\x" + b"secret-bytes".hex()])
    traces = {trace.path: trace.texts for trace in search.in_lake(str(tmp_path), leaving_out={"map.parquet"})}
    assert set(traces) == {
        "nested.parquet", "dictionary.parquet", "footer.parquet", "binary.parquet", "fixed.parquet",
        "_delta_log/1.json", "torn.parquet",
    }  # fmt: skip
    assert traces["torn.parquet"] == {UNREADABLE}
    assert search.in_file(str(tmp_path), "map.parquet") == {TEXT}


def test_damaged_page_is_unreadable(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["text-" * 99]}), tmp_path / "page.parquet", compression="zstd")
    data = bytearray((tmp_path / "page.parquet").read_bytes())
    data[4:60] = bytes(56)
    (tmp_path / "page.parquet").write_bytes(data)
    assert Search([TEXT]).in_file(str(tmp_path), "page.parquet") == {UNREADABLE}
    assert Search([TEXT]).in_file(str(tmp_path), "removed.parquet") == set()


def test_neighbours_in_buffer_are_no_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["abcd", "efgh"]}), tmp_path / "a.parquet", compression="zstd")
    search = Search(["abcdefgh"])
    assert search.in_bytes(b"abcdefgh") == {"abcdefgh"}
    assert search.in_file(str(tmp_path), "a.parquet") == set()


def test_text_across_pieces_is_found(tmp_path: Path) -> None:
    size = 1 << 20
    (tmp_path / "a").write_bytes(b"x" * (size - 3) + b"zebulon" + b"x" * size)
    assert Search(["zebulon", "quagga"]).in_file(str(tmp_path), "a") == {"zebulon"}
    assert Search(["zebulon"]).in_bytes(b"x" * (size - 1) + b"zebulon") == {"zebulon"}


def test_cost_hardly_depends_on_texts() -> None:
    random = np.random.default_rng(1)
    texts = [bytes(row).decode() for row in random.integers(97, 123, (10_000, 12), np.uint8)]
    data = random.integers(97, 123, 8 << 20, np.uint8).tobytes() + texts[5_000].encode()
    seconds = []
    for count in (10, 10_000):
        search = Search(texts[:count])
        start = time.process_time()
        assert search.in_bytes(data) == ({texts[5_000]} if count > 10 else set())
        seconds.append(time.process_time() - start)
    assert seconds[1] < 5 * seconds[0] + 1


def test_words_of_pipeline_are_no_values(tmp_path: Path) -> None:
    """A value may be the name of an operation, a field, a column or a document."""
    words = ["DELETE", "operation", "comment", "customer", "zebulon"]
    add = {"path": "a", "partitionValues": {"comment": "zebulon"}, "stats": '{"minValues":{"comment":"x"}}'}
    info = {"operation": "DELETE", "operationParameters": {"predicate": "id = 1", "mode": "customer"}}
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "1.json").write_text("\n".join(json.dumps(line) for line in ({"commitInfo": info}, {"add": add})))
    schema = {"metaData": {"schemaString": "customer comment"}, "add": add}
    pq.write_table(pa.Table.from_pylist([schema]), log / "1.checkpoint.parquet")
    pq.write_table(pa.table({"comment": ["x"]}), tmp_path / "names.parquet")
    pq.write_table(pa.table({"comment": ["comment"]}), tmp_path / "value.parquet")
    (log / "torn.json").write_text("{DELETE")
    traces = {trace.path: trace.texts for trace in Search(words).in_lake(str(tmp_path))}
    assert traces == {
        "_delta_log/1.json": {"zebulon"}, "_delta_log/1.checkpoint.parquet": {"zebulon"},
        "value.parquet": {"comment"}, "_delta_log/torn.json": {"DELETE"},
    }  # fmt: skip
