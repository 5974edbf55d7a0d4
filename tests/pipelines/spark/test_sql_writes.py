"""Writing statements over the lake are recognised by their words."""

from __future__ import annotations

import json

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.spark.sql_writes import refuse_writing, spelled_out, writing_word


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("DELETE FROM delta.`/lake/silver/orders`", "delete"),
        ("-- a comment\n/* 'x' /* -- y */ ; */ update control.cuts SET layer = 'x'", "update"),
        ("MERGE WITH SCHEMA EVOLUTION INTO t USING s ON a = b", "merge"),
        ("CREATE TABLE silver.mine AS SELECT 1", "create"),
        ("create or replace view mine as select 1", "create"),
        ("CREATE SCHEMA x", "create"),
        ("DROP TABLE silver.orders", "drop"),
        ("DROP VIEW IF EXISTS main.silver.v", "drop"),
        ("DROP VIEW `a b`.v", "drop"),
        ("OPTIMIZE delta.`/lake/silver/orders`", "optimize"),
        ("vacuum silver.orders", "vacuum"),
        ("RESTORE TABLE silver.orders TO VERSION AS OF 1", "restore"),
        ("INSERT OVERWRITE DIRECTORY '/x' SELECT 1", "insert"),
        ("WITH a AS (SELECT (1) AS x), b AS (SELECT 2) INSERT INTO t SELECT * FROM a", "insert"),
        ("WITH a AS (SELECT 1) DELETE FROM t", "delete"),
        ("FROM silver.orders INSERT INTO t SELECT id", "insert"),
        ("BEGIN DECLARE x INT = 1; IF x = 1 THEN DELETE FROM t; END IF; END", "delete"),
        ("BEGIN EXECUTE IMMEDIATE q; END", "execute"),
        ("run: BEGIN /* now */ INSERT INTO t VALUES (1); END", "insert"),
        ("WITH q AS (SELECT 1 AS id) FROM q INSERT INTO delta.`/lake/silver/orders` SELECT id", "insert"),
        ("BEGIN WITH q AS (SELECT 1) INSERT INTO t SELECT * FROM q; END", "insert"),
        ("BEGIN FROM (SELECT 1) q INSERT INTO t SELECT *; END", "insert"),
        ("BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION DELETE FROM t; SELECT raise_error('x'); END", "delete"),
        ("BEGIN NOT ATOMIC DELETE FROM t; END", "delete"),
        ("WITH a AS (SELECT 1) UPDATE t SET x = 1", "update"),
        ("-- x\rDELETE FROM t", "delete"),
        ("-- x \\\r\nDELETE FROM t", "delete"),
    ],
)
def test_statement_with_lasting_effect_is_rejected(statement: str, word: str) -> None:
    assert writing_word(statement) == word
    with pytest.raises(DefiniteError, match=f"only read, and {word.upper()} writes") as refused:
        refuse_writing(statement)
    assert refused.value.code == "sql-writes"


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "SELECT delete, update FROM silver.orders",
        "SELECT 'DELETE FROM t; DROP TABLE x', \"insert into\", `merge` -- drop table x",
        "WITH a AS (SELECT 1) SELECT delete FROM a",
        "WITH a AS (SELECT 1) (SELECT delete FROM a)",
        "FROM silver.orders |> WHERE id > 1",
        "EXPLAIN DELETE FROM silver.orders",
        "CREATE TEMPORARY VIEW mine AS SELECT * FROM silver.orders",
        "create or replace global temp view mine as select 1",
        "CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1",
        "DROP VIEW IF EXISTS mine",
        "DROP TEMPORARY VARIABLE x",
        "SET x = 1",
        "BEGIN SELECT CASE WHEN true THEN 1 ELSE 2 END; END",
        "SELECT begin, CASE WHEN a THEN comment ELSE 1 END FROM t",
        "WITH q AS (SELECT 1) SELECT count(*) update FROM q",
        "DROP VIEW v;",
        "DECLARE q = 'DELETE FROM t'",
        "SELEC 1",
        "SHOW CREATE TABLE silver.orders",
    ],
)
def test_what_only_reads_is_left_to_spark(statement: str) -> None:
    assert writing_word(statement) == ""


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT 1", "SELECT 1"),
        ("EXECUTE IMMEDIATE 'SELECT 1'", "SELECT 1"),
        (
            "execute immediate 'SELECT ? + ?' USING 5, 1 + f(2, 3)",
            "SELECT CAST('(5)' AS int) + CAST('(1 + f(2, 3))' AS int)",
        ),
        (
            "EXECUTE IMMEDIATE 'SELECT :a, a::int, \\':a\\' WHERE b > :B' USING (5 AS b, f(x) AS a)",
            "SELECT CAST('(f(x))' AS int), a::int, ':a' WHERE b > CAST('(5)' AS int)",
        ),
        ("EXECUTE IMMEDIATE 'SELECT ?' USING (1) + (2)", "SELECT CAST('((1) + (2))' AS int)"),
        ("EXECUTE IMMEDIATE 'SELECT ?' INTO v USING 1", "EXECUTE IMMEDIATE 'SELECT ?' INTO v USING 1"),
    ],
)
def test_execute_immediate_is_expanded_with_arguments(statement: str, message: str) -> None:
    def text_of(expression: str) -> str:
        if expression.startswith("to_json"):
            return json.dumps(
                {"of": "int", "text": expression.partition("typeof(")[2].partition("), 'text'")[0]}
            )
        return expression.strip()[1:-1].replace("\\'", "'")

    assert spelled_out(statement, text_of) == message
