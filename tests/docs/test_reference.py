"""The generated parts of the pages are current."""

from __future__ import annotations

import pytest

from deltasmelt.pipelines.settings import Pipeline
from tests.docs.reference import DOCS, KEYS, SCHEMAS, TABLES, columns_table, keys, keys_table, pages


def test_generated_pages_are_up_to_date() -> None:
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, (
            f"run `make reference`: {path.relative_to(DOCS.parent)}"
        )


def test_a_key_without_a_meaning_is_noticed() -> None:
    with pytest.raises(KeyError, match=r"lake\.retention"):
        keys_table(KEYS.read_text(encoding="utf-8").replace("| `lake.retention`", "| lake.retention"))


def test_types_and_defaults_are_written_as_in_file() -> None:
    by_key = {key: (kind, default) for key, kind, default in keys(Pipeline)}
    assert by_key["bronze.flush_interval"] == ("duration", "`500ms`")
    assert by_key["bronze.flush_bytes"] == ("size", "`64MB`")
    assert by_key["source.slot"] == ("text", "required")
    assert by_key["silver.deletes"] == ("`hard` `soft`", "`hard`")
    assert by_key["source.tables"] == ("list", "`[public.*]`")
    assert by_key["snapshot.workers"] == ("integer, at least 1, at most 64", "`4`")
    assert "pipeline" in by_key


def test_every_table_has_columns_with_meanings() -> None:
    """A column without a meaning is noticed."""
    page = TABLES.read_text(encoding="utf-8")
    assert [name for name in SCHEMAS if f"## {name}\n" not in page] == []
    with pytest.raises(KeyError, match="commit_ts"):
        columns_table("control.cuts", "| `commit_lsn` | BIGINT | a commit |\n")
