"""Text split into statements: exactly at the semicolons that Spark treats as separators."""

from __future__ import annotations

import pytest

from deltasmelt.pipelines.sql_shell.splitting import Statement, split


def texts(text: str) -> list[str]:
    return [statement.text for statement in split(text).all]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        (" ;; SELECT 1 ; ;\nSELECT 2;\n", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        (r"SELECT 'it\'s; one'; SELECT 2", [r"SELECT 'it\'s; one'", "SELECT 2"]),
        ("SELECT 'it''s; one'; SELECT 2", ["SELECT 'it''s; one'", "SELECT 2"]),
        (r"SELECT r'a\'; SELECT R'b\'", [r"SELECT r'a\'", r"SELECT R'b\'"]),
        (r"SELECT bar'\''; SELECT 2", [r"SELECT bar'\''", "SELECT 2"]),
        ("SELECT 1 AS `a;``b'`; SELECT 2", ["SELECT 1 AS `a;``b'`", "SELECT 2"]),
        ("SELECT 1 -- no; 'end\n+ 1; SELECT 2", ["SELECT 1 -- no; 'end\n+ 1", "SELECT 2"]),
        ("SELECT 1 -- on \\\n; still\n; SELECT 2", ["SELECT 1 -- on \\\n; still", "SELECT 2"]),
        ("SELECT /* a; /* b; */ c; */ 1; SELECT 2", ["SELECT /* a; /* b; */ c; */ 1", "SELECT 2"]),
        ("-- only a comment;\n/* and; another */", []),
        ("SELECT '-- no comment'; SELECT '/*'", ["SELECT '-- no comment'", "SELECT '/*'"]),
        ("SELECT 4 - -1; SELECT 6 / 2", ["SELECT 4 - -1", "SELECT 6 / 2"]),
        ("SELECT 'Größe; 日\U0001f642'; SELECT 2", ["SELECT 'Größe; 日\U0001f642'", "SELECT 2"]),
    ],
)
def test_semicolon_ends_statement_only_as_in_spark(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


@pytest.mark.parametrize(
    "script",
    [
        "BEGIN SELECT 1; SELECT 2; END",
        "outer: BEGIN BEGIN SELECT 1; END; SELECT 2; END outer",
        "begin if a then select 1; end if; select case when b then 1 end; end",
        "BEGIN WHILE x DO SET x = 1; END WHILE; CASE WHEN y THEN SELECT 1; END CASE; SELECT 2; END",
    ],
)
def test_sql_script_is_single_statement(script: str) -> None:
    assert texts(f"{script}; SELECT 3;") == [script, "SELECT 3"]


def test_begin_within_another_statement_begins_no_script() -> None:
    assert texts("SELECT begin FROM t; SELECT end FROM t") == ["SELECT begin FROM t", "SELECT end FROM t"]


def test_statement_knows_first_line_after_comments() -> None:
    statements = split("-- head\n\nSELECT 1;\n\n/* two\nlines */ SELECT\n2; SELECT 3").all
    assert statements == (Statement("SELECT 1", 3), Statement("SELECT\n2", 6), Statement("SELECT 3", 7))


def test_meta_command_ends_with_line_between_statements() -> None:
    """A meta command begins only at a place where a statement could begin."""
    statements = split("\\d silver.*\nSELECT '\n\\d';\n  \\o csv\nSELECT 2").all
    assert [(statement.text, statement.is_meta) for statement in statements] == [
        ("\\d silver.*", True),
        ("SELECT '\n\\d'", False),
        ("\\o csv", True),
        ("SELECT 2", False),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT 1;\nSELECT 'it", ("text in single quotes", 2)),
        ('SELECT "a;', ("text in double quotes", 1)),
        ("SELECT\nr'a;", ("text in single quotes", 2)),
        ("SELECT 1 AS `a;", ("name in backticks", 1)),
        ("SELECT 1;\n\n/* a /* b */", ("comment /*", 3)),
    ],
)
def test_unclosed_text_is_named_with_starting_line(text: str, what: tuple[str, int]) -> None:
    assert split(text).unclosed == what
    assert not split(text).complete


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("\\d", True),
        ("SELECT 1", False),
        ("SELECT 1; SELECT", False),
        ("SELECT ';", False),
        ("BEGIN SELECT 1;", False),
    ],
)
def test_a_statement_is_complete_with_its_semicolon(text: str, complete: bool) -> None:  # noqa: FBT001
    assert split(text).complete is complete
