"""Document files: their allowed content, and the messages for mistakes. The tests need no table."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.language.notation import OrderedColumn, parse_ordering, parse_target
from tests.gold.shop_documents import COUNTRY, CUSTOMER, document

LINK = "table: public.l, on: {a: id}, to: {b: id}"
HEAD = "document: d\nroot: public.t\nfields:\n"


def complaint(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        document(text)
    return str(caught.value)


def test_a_document_with_everything_is_read() -> None:
    assert document(CUSTOMER).name == "customer"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            ("x: {mny: public.a, on: {id: id}, fields: [id]}"),
            ("count_distinct, collect, first, last; did you mean 'many'?"),
        ),
        ("x: {many: public.a, one: public.a}", "'many' and 'one' cannot be used in one field"),
        (
            "x: {many: public.a, on: {id: id}, fields: [id], limt: 5}",
            "unknown key 'limt'; did you mean 'limit'?",
        ),
        ("x: {many: public.a, on: {id: id}}", "write either 'fields' or 'values'"),
        ("x: {many: public.a, fields: [id]}", "write either 'on' or 'through'"),
        ("x: {many: public.a, on: {}, fields: [id]}", "should have at least 1 item"),
        ("x: {many: a, on: {id: id}, fields: [id]}", "not a table name: 'a' (expected schema.table)"),
        ("x: {many: public.a, on: {id: id}, fields: [id], limit: 0}", "at least 1"),
        ("x: {many: public.a, on: {id: id}, fields: [id], order_by: [a b c]}", "is not an ordering"),
        ("x: {many: public.a, on: {id: id}, fields: id}", "expected a list, found text"),
        ("x: {one: public.a, on: {id: id}, fields: [id], limit: 1}", "unknown key 'limit'"),
        ("x: {one: public.a, fields: [id]}", "'on' is missing"),
        ("x: {sum: public.a, on: {id: id}}", "sum needs a column (expected schema.table.column)"),
        ("x: {sum: public.a.b.c, on: {id: id}}", "is not a table or column"),
        ("x: {sum: public.a.b, on: {id: id}, limit: 3}", "'limit' and 'cap' cannot be used with sum"),
        ("x: {last: public.a, on: {id: id}}", "last needs a column"),
        (
            "x: {many: public.a, on: {id: id}, fields: [id], limit: 3, cap: 3}",
            "write either 'limit' or 'cap'",
        ),
        ("x: {many: public.a, on: {id: id}, fields: [id], key_by: id, cap: 3}", "a map contains all rows"),
        (
            "x: {many: public.a, on: {id: id}, fields: [id], recurse: {on: {up: id}}}",
            "'max_depth' is missing",
        ),
        (
            "x: {many: public.a, on: {id: id}, fields: [id], recurse: {on: {up: id}, max_depth: 1}}",
            "at least 2",
        ),
        (
            "x: {many: public.a, on: {id: id}, values: id, recurse: {on: {up: id}, max_depth: 2}}",
            "write 'fields', not 'values'",
        ),
        (
            "x: {one: public.a, on: {id: id}, fields: [i], flatten: a, recurse: {on: {a: b}, max_depth: 2}}",
            "the row cannot be flattened",
        ),
        (
            "x: {many: public.a, on: {id: id}, fields: [id, X], recurse: {on: {up: id}, max_depth: 2}}",
            "field 'X' occurs twice in one object",
        ),
        (
            "x: {one: public.a, on: {id: id}, fields: [id], flatten: true}",
            "field 'id' occurs twice in one object",
        ),
        (
            "x: {one: public.a, on: {id: id}, fields: [commit_lsn], flatten: _}",
            "'_commit_lsn' is the name of a column",
        ),
        (
            "x: {one: public.a, on: {id: id}, fields: [name], flatten: 'a b'}",
            "'a b' cannot be the name of a field",
        ),
        (
            "x: {many: public.a, through: {table: public.l, on: {a: id}}, fields: [n]}",
            "'to' is missing in 'through'",
        ),
        (
            f"x: {{many: public.a, through: [{{{LINK}}}, {{{LINK}}}], fields: [n]}}",
            "'to' leads to the far table: write 'to' only in the last step",
        ),
        ("x: {many: public.a, through: [], fields: [n]}", "at least 1 item"),
        ("x: {many: public.a, through: [{tabel: public.l}], fields: [n]}", "did you mean 'table'?"),
        ("x: {column: a, defualt: 1}", "unknown key 'defualt'; did you mean 'default'?"),
        ("x: {column: [a]}", "expected text, found a list"),
        ("x: a", "expected a mapping with one of column, sql"),
        ("{x: {column: a}, y: {column: b}}", "one name with a mapping; this entry has 'x', 'y'"),
        ("[a]", "an entry is a column's name, or one name with a mapping"),
        ("'a b': {column: a}", "'a b' cannot be the name of a field"),
        ("a b", "'a b' cannot be the name of a field; set a name: {column: 'a b'}"),
        ("_commit_lsn", "'_commit_lsn' is the name of a column of every gold table"),
        ("x: {object: [a, {A: {column: b}}]}", "field 'A' occurs twice in one object"),
        (
            f"x: {{many: public.a, through: {{{LINK}, fields: [n]}}, values: name}}",
            "'through.fields' cannot be used with plain 'values'",
        ),
        (
            f"x: {{many: public.a, through: {{{LINK}, fields: [id]}}, fields: [ID]}}",
            "field 'id' occurs twice in one object",
        ),
    ],
)
def test_field_mistake_names_line_and_suggestion(field: str, expected: str) -> None:
    message = complaint(f"{HEAD}  - id\n  - {field}\n")
    assert expected in message
    assert message.startswith("document.yml:5: ")


def test_names_differing_in_case_collide_in_spark() -> None:
    assert "field 'Name' occurs twice in one object (first at line 4)" in complaint(
        f"{HEAD}  - name\n  - Name\n"
    )


def test_the_same_name_in_two_objects_is_fine() -> None:
    document(f"{HEAD}  - id\n  - a: {{object: [id]}}\n  - b: {{object: [id]}}\n")


def test_all_mistakes_of_a_file_come_at_once() -> None:
    message = complaint("document: 1d\nroot: t\nwhere: ''\nfields: []\nlimit: 3")
    assert len(message.splitlines()) == 5


def test_two_documents_of_one_name_name_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(COUNTRY)
    (tmp_path / "b.yml").write_text("# another\n" + COUNTRY.replace("country\n", "Country\n", 1))
    with pytest.raises(
        ConfigurationError, match=r"b\.yml:2: document 'Country' is defined twice \(also at .*a\.yml:1\)"
    ):
        load_documents(sorted(tmp_path.glob("*.yml")))


def test_invalid_document_is_collected_without_affecting_others(tmp_path: Path) -> None:
    """The loader collects the error of each invalid document and returns the valid documents."""
    torn, invalid = "document: d\nfields: [", "document: Named\nroot: public.t\nfields: {}\n"
    for name, text in {"a": COUNTRY, "b": CUSTOMER, "c": COUNTRY, "torn": torn, "named": invalid}.items():
        (tmp_path / f"{name}.yml").write_text(text)
    wrong: dict[str, ConfigurationError] = {}
    loaded = load_documents(sorted(tmp_path.glob("*.yml")), wrong)
    assert [doc.name for doc in loaded] == ["customer"]
    assert wrong.keys() == {"country", "torn.yml", "Named"}
    assert "is defined twice" in str(wrong["country"])
    for folder, text in {"x": torn, "y": invalid}.items():
        (tmp_path / folder).mkdir()
        for name in ("torn", "named"):
            (tmp_path / folder / f"{name}.yml").write_text(text)
    files, wrong = sorted(tmp_path.glob("**/*.yml")), {}
    assert [doc.name for doc in load_documents(files, wrong)] == ["customer"]
    messages = "\n".join(map(str, wrong.values()))
    assert [file for file in files if str(file) not in messages and file.name != "b.yml"] == []


def test_the_demo_documents_are_read() -> None:
    files = sorted((Path(__file__).parents[3] / "conf" / "demo" / "documents").glob("*.yml"))
    assert [doc.name for doc in load_documents(files)] == ["customer", "order"]


def test_nulls_lie_as_in_postgresql_unless_said_otherwise() -> None:
    assert parse_ordering("a") == OrderedColumn("a", descending=False, nulls_first=False)
    assert parse_ordering("a DESC") == OrderedColumn("a", descending=True, nulls_first=True)
    assert parse_ordering("a desc nulls last") == OrderedColumn("a", descending=True, nulls_first=False)
    assert parse_ordering("`a b` asc nulls first") == OrderedColumn("a b", descending=False, nulls_first=True)


def test_targets_name_tables_or_columns_also_quoted_ones() -> None:
    assert parse_target("public.t") == (TableName("public", "t"), None)
    assert parse_target('public."a.b"."c""d"') == (TableName("public", "a.b"), 'c"d')


def test_a_digest_sees_meaning_and_not_layout() -> None:
    compact = document(f"{HEAD}  - x: {{many: public.a, on: {{id: id}}, fields: [id]}}\n")
    airy = document(
        f"# a comment\n{HEAD}  - x:\n      fields: [id]\n      many: public.a\n      on: {{id: id}}\n"
    )
    changed = document(f"{HEAD}  - x: {{many: public.a, on: {{id: id}}, fields: [id], limit: 1}}\n")
    assert compact.digest == airy.digest != changed.digest
