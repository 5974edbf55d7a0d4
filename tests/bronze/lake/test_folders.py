"""Names and locations of folders: reversible, distinct, and as the libraries report them."""

from __future__ import annotations

import re
import string
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st

from deltasmelt.bronze.lake.location import LONGEST, Lake, folder_name, table_name
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.place import local_folder, misread

ODD = [
    "Größe", "Order Details", "a/b", "../control/cuts", "..%2F/x", "tä日\U0001f642", "CON", "con", "trail.",
    "trail ", " ", ".", "..", "%", "%20", "~", "_delta_log", "_", "-", "--", "-00", "-01", "-0", "a\\b",
    'a"b', "a`b", "a'b", "a\nb", "a\x01b", "\u202eb", "a:b", "a?b", "a#b", "a+b", "a*b", "a[b]", "a{b}",
    "a=b", "$dollar${env:HOME}", "\u0130", "\u0131", "\u017f", "\u212a", "\u00e9", "e\u0301", "x" * 63,
    "\U0001f642" * 15, "ü" * 31 + "x", "A" * 128 + "__history",
]  # fmt: skip

names = st.text(st.characters(exclude_categories=[]), min_size=1, max_size=140) | st.sampled_from(ODD)
alike = st.text("aAbB-_0fFsSkK.\u017f\u212a/ ", min_size=1, max_size=6)
"""Short names of few letters, so that two names are often nearly equal."""


@given(names)
@example("a" * 64 + "Ü" * 64)
def test_folder_name_is_short_and_names_table(name: str) -> None:
    folder = folder_name(name)
    assert re.fullmatch(r"[a-z0-9-][a-z0-9_-]*", folder)
    assert len(folder) <= LONGEST
    assert table_name(folder) == (None if folder.startswith("-01") else name)


@given(st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=120))
def test_plain_names_stay(name: str) -> None:
    devices = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
    assert (folder_name(name) == name) == (not name.startswith("_") and name not in devices)


@given(alike | names, alike | names)
def test_two_names_make_two_folders_despite_case_folding(one: str, other: str) -> None:
    """Names that differ only in case or accents get different folders."""
    folded = [unicodedata.normalize("NFKD", folder_name(name)).casefold() for name in (one, other)]
    assert (folded[0] == folded[1]) == (one == other)


@given(st.text("abcxyz019-_", max_size=12))
def test_foreign_folder_is_rejected_and_others_round_trip(folder: str) -> None:
    try:
        name = table_name(folder)
    except ValueError:
        return
    assert name is None or folder_name(name) == folder


@pytest.mark.parametrize(
    ("schema", "table"),
    [("ä" * 31, "ö" * 31), ("\U0001f642" * 15, "日" * 21), ("A" * 63, "/" * 63), (".", "..")],
)
def test_every_utf8_name_round_trips_with_history_suffix(schema: str, table: str) -> None:
    name = f"{schema}__{table}__history"
    assert table_name(folder_name(name)) == name


def test_folders_can_be_read() -> None:
    assert folder_name("Order Details") == "-order-20--details"
    assert folder_name("Größe") == "-gr-0f6--0df-e"
    assert folder_name("../control/cuts") == "-2e--2e--2f-control-2f-cuts"
    with pytest.raises(ValueError, match="must not be empty"):
        folder_name("")


def test_every_layer_is_addressed_by_it() -> None:
    for path in ("/a lake", "s3://bucket/a lake", "abfss://box@account.dfs.core.windows.net/lake"):
        lake = Lake(path=path)
        assert lake.uri("silver", "../control/cuts") == f"{path}/silver/-2e--2e--2f-control-2f-cuts"
        assert lake.sql("gold", "Customer") == f"delta.`{path}/gold/-customer`"
    assert Lake(catalog="main").sql("silver", "Größe") == "`main`.`silver`.`Größe`"


characters = st.characters(exclude_characters="/\0", exclude_categories=["Cs"])
segments = st.text(characters, min_size=1, max_size=12)


@given(st.lists(segments.filter(lambda one: one not in {".", ".."}), min_size=1, max_size=4).map("/".join))
def test_a_path_is_read_back_from_its_uri(relative: str) -> None:
    path = Path("/") / relative
    assert local_folder(str(path)) == path
    assert local_folder(path.as_uri()) == path
    assert local_folder(path.as_uri().replace("file:///", "file:/")) == path
    assert local_folder(path.as_uri().replace("file:///", "FILE:///")) == path
    assert local_folder(path.as_uri().replace("file:///", "file://localhost/")) == path
    assert local_folder(f"s3://bucket{path}") is None


@pytest.mark.parametrize(
    "name",
    ["my läke", "tä日\U0001f642", "100%", "a#b", "q?x", "a+b", "a:b", "a*b", "a{b}", "a'b", 'a"b', "a`b",
     "a;b", "a,b", "a=b", "~a", "a<b>", "_hidden", ".hidden", "trail ", "trail.", "\u202eb", "$x${env:HOME}"],
)  # fmt: skip
def test_deltalake_says_where_a_table_lies(tmp_path: Path, name: str) -> None:
    lake = Lake(path=str(tmp_path / name))
    assert misread(str(lake.path)) is None
    uri = lake.uri("silver", f"table {name}")
    write_deltalake(uri, pa.table({"a": [1]}))
    location = DeltaTable(uri).table_uri
    assert local_folder(location) == Path(uri)
    assert file_system(location).get_file_info("_delta_log/00000000000000000000.json").is_file
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("part", ["%20", "%2F", "[", "]", "^", "|", "\\", "\n", "\x7f"])
def test_what_deltalake_misreads_is_named(part: str) -> None:
    assert misread(f"/data/a{part}b/lake") == part
    assert misread(f"s3://bucket/a{part}b/lake") == part[:1]
