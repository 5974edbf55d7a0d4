"""SQL in document files: one deterministic scalar expression over the row's columns, and nothing else."""

from __future__ import annotations

import pytest

from deltasmelt.gold.expressions.expressions import parse_expression

COLUMNS = {"id": "BIGINT", "status": "STRING", "Total": "DECIMAL(12,2)", "order": "INT",
           "placed_at": "TIMESTAMP", "a b": "INT", "tags": "ARRAY<STRING>", "position": "INT",
           "date": "DATE"}  # fmt: skip


def read(text: str) -> tuple[str, set[str]]:
    expression = parse_expression(text, COLUMNS, "public.orders")
    return expression.sql("t"), set(expression.columns)


@pytest.mark.parametrize(
    ("text", "sql", "columns"),
    [
        ("status <> 'cancelled'", "`t`.`status` <> 'cancelled'", {"status"}),
        ("lower( trim(STATUS) )", "lower( trim(`t`.`status`) )", {"status"}),
        ("total*2 > 1.5e3", "`t`.`Total`*2 > 1.5e3", {"Total"}),
        ("`a b` is not null", "`t`.`a b` is not null", {"a b"}),
        ("status in ('a', 'it''s', 'b\\'c')", "`t`.`status` in ('a', 'it''s', 'b\\'c')", {"status"}),
        (
            "cast(id as decimal(10, 2)) = total",
            "cast(`t`.`id` as decimal(10, 2)) = `t`.`Total`",
            {"id", "Total"},
        ),
        ("cast(tags as array<string>)[0]", "cast(`t`.`tags` as array<string>)[0]", {"tags"}),
        ("placed_at > date '2024-01-01'", "`t`.`placed_at` > date '2024-01-01'", {"placed_at"}),
        ("placed_at + interval '1' day", "`t`.`placed_at` + interval '1' day", {"placed_at"}),
        (
            "placed_at - interval 2 hours 3 minutes",
            "`t`.`placed_at` - interval 2 hours 3 minutes",
            {"placed_at"},
        ),
        ("extract(year from placed_at)", "extract(year from `t`.`placed_at`)", {"placed_at"}),
        ("case when id=1 then 'x' else null end", "case when `t`.`id`=1 then 'x' else null end", {"id"}),
        ("status is distinct from 'x'", "`t`.`status` is distinct from 'x'", {"status"}),
        ("tags.first.name", "`t`.`tags`.`first`.`name`", {"tags"}),
        ("`order` = position", "`t`.`order` = `t`.`position`", {"order", "position"}),
        ("position('a' in status) + date", "position('a' in `t`.`status`) + `t`.`date`", {"status", "date"}),
        ("id\n  =\t1", "`t`.`id` = 1", {"id"}),
        ("'select now()'", "'select now()'", set()),
    ],
)
def test_columns_are_found_and_everything_else_stays(text: str, sql: str, columns: set[str]) -> None:
    assert read(text) == (sql, columns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("statsu = 'x'", "public.orders has no column 'statsu'; did you mean 'status'?"),
        ("o.status = 'x'", "has no column 'o'"),
        ("id in (select id from other)", "'select' is not allowed here: a subquery"),
        ("sum(total) > 1", "'sum' is not allowed here: an aggregate"),
        ("row_number() over (order by id)", "'row_number' is not allowed here: a window function"),
        ("placed_at > now()", "'now' is not allowed here: the clock"),
        ("placed_at > current_date", "'current_date' is not allowed here: the clock"),
        ("placed_at > Current_Timestamp()", "is not allowed here: the clock"),
        ("rand() < 0.5", "'rand' is not allowed here: chance"),
        ("uuid()", "'uuid' is not allowed here: chance"),
        ("status = current_user()", "'current_user' is not allowed here: the session"),
        ("exists(tags, x -> x = 1)", "lambdas and named arguments cannot be used"),
        ("my_udf(id)", "'my_udf' is not a known deterministic function of one row"),
        ("lowr(status)", "did you mean 'lower'?"),
        ('"status" = 1', "write columns as plain names or in `backticks`, text in 'single quotes'"),
        ("id = 1; drop table x", "';' is not allowed here: write only one expression"),
        ("id = 1 -- comment", "comments are not allowed in an expression"),
        ("id /* x */ = 1", "comments are not allowed in an expression"),
        ("(id = 1", "'(' is never closed"),
        ("id = 1)", "')' has no opening bracket"),
        ("tags[0) = 1", "')' has no opening bracket"),
        ("id, status", "',' is not allowed here: write only one expression"),
        ("id as x", "'as' belongs in cast(… as type)"),
        ("id::int", "write cast(… as …)"),
        ("status = 'x", "a text without an end"),
        ("status = :x", "':' is not allowed here"),
        ("placed_at + interval id day", "has no column"),
    ],
)
def test_forbidden_expression_is_rejected_with_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(text)
    assert message in str(caught.value)


def test_excessively_nested_expression_is_rejected_normally() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_expression("(" * 100_000 + "id" + ")" * 100_000, {"id": "int"}, "public.t")
