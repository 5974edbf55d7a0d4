"""The parser knows exactly which columns an expression reads, or refuses; no expression reads the clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.gold.expressions.expressions import parse_expression
from tests.gold.random_expressions import COLUMNS, SPECIAL, Expressions


def reads(text: str) -> set[str]:
    return set(parse_expression(text, COLUMNS, "public.orders").columns)


def refusal(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        reads(text)
    return str(caught.value)


@pytest.mark.parametrize(("text", "columns"), SPECIAL)
def test_columns_differ_from_names_fields_units_and_texts(text: str, columns: set[str]) -> None:
    assert reads(text) == columns


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("struct(name as mail, status as level)", "struct(`t`.`name` as `mail`, `t`.`status` as `level`)"),
        ("struct(1 as id, `end` AS `to`).id", "struct(1 as `id`, `t`.`end` AS `to`).`id`"),
        ("replace(name, r'\\', '/')", "replace(`t`.`name`, r'\\', '/')"),
        ("timestampdiff(day, placed_at, interval)", "timestampdiff(day, `t`.`placed_at`, `t`.`interval`)"),
        ("timestampadd(MONTH, 1, placed_at)", "timestampadd(MONTH, 1, `t`.`placed_at`)"),
        ("dateadd(year, year, placed_at)", "dateadd(year, `t`.`year`, `t`.`placed_at`)"),
        ("dateadd(date, year)", "dateadd(`t`.`date`, `t`.`year`)"),
        ("cast(place as struct<select: int>)", "cast(`t`.`place` as struct<`select`: int>)"),
    ],
)
def test_columns_and_names_reach_spark_in_backticks(text: str, sql: str) -> None:
    assert parse_expression(text, COLUMNS, "public.orders").sql("t") == sql


@pytest.mark.parametrize("word", ["to", "end", "from", "all"])
def test_column_named_like_sql_word_requires_backticks(word: str) -> None:
    assert f"'{word}'" in refusal(f"coalesce({word}, 1)")
    assert reads(f"coalesce(`{word}`, null)") == {word}


def test_unquoted_sql_word_gets_backtick_remedy() -> None:
    assert refusal("coalesce(to, 1)") == "'to' is a word of SQL: write the column in backticks, `to`"


@pytest.mark.parametrize(
    "text",
    [
        "struct(1 as a, uuid() as b)",
        "struct(1 as a, (select max(id) from other) as b)",
        "struct(name as mail, nothing as level)",
        "r'\\'' || ' || uuid() /*'*/ || id",
        "`uuid`()",
        "name AS mail",
        "name mail",
        "'a' 'b'",
        "lower(name as x)",
        "cast(name as uuid())",
        "cast(name as string, uuid())",
        "cast(name as array<string>>)",
        "struct(name mail)",
        "id /*+ hint */",
        "(id, status)",
        "count(*)",
        "id is null is null",
        "id::int",
        "id:x",
        "concat(distinct name)",
        "case when active then 1",
        "id between 1",
        "1a",
        "struct(id, )",
        "struct(, id)",
        "'a\nb'",
        "name = '\u2028'",
        "name collate UTF8_BINARY",
        "@x",
        "id in ()",
        "year from date",
        "extract(name from date)",
        "timestampdiff(years_, placed_at, placed_at)",
        "\u212aelvin(id)",
    ],
)
def test_what_is_not_sure_is_refused(text: str) -> None:
    assert refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp 'now'",
        "date 'today'",
        "timestamp_ntz ' Tomorrow '",
        "timestamp '12:30'",
        r"timestamp '\u006eow'",
        "cast('now' as timestamp)",
        "cast(('today') as date)",
        "try_cast('yesterday' as date)",
        "cast(cast('now' as string) as date)",
        "to_date('today')",
        "to_timestamp('now')",
        "date('today')",
        "timestamp('now UTC')",
        "placed_at > 'now'",
        "'12:30' < placed_at",
        "date = 'today'",
        "date in ('2024-01-01', 'today')",
        "date between '2024-01-01' and 'today'",
        "case date when 'today' then 1 end",
        "coalesce(date, 'tomorrow')",
        "case when active then date else 'today' end",
        "if(active, placed_at, 'now')",
        "date_add('today', 1)",
        "date_format('now', name)",
        "greatest(placed_at, 'now')",
        "cast(case when true then 'now' end as date)",
        "timestampdiff(day, placed_at, 'now')",
        "extract(hour from 'now')",
        "element_at(array('now'), 1)",
        "struct('now' as x).x",
        "place.city = 'today'",
        "placed_at > 'T12'",
        "placed_at > '+T12:30'",
        r"placed_at > '\u0001now'",
        r"cast(' \u000112:30' as timestamp)",
        "'today or never' > date",
        "array_contains(all_of_them, 'today')".replace("all_of_them", "`all`"),
        "element_at(map('now', id), 'now')",
    ],
)
def test_no_text_lets_the_clock_in(text: str) -> None:
    assert "the clock" in refusal(text)


@pytest.mark.parametrize("text", ["cast('to' || 'day' as date)", "date(lower('TODAY'))", "string(x'6e6f77')",
                                  "cast(replace(typeof(name), 'string', 'today') as date)",
                                  "cast(x'6e6f77' as string)", "to_date(concat('no', 'w'))"])  # fmt: skip
def test_no_text_is_built_from_literals(text: str) -> None:
    assert "write the text itself" in refusal(text)


@pytest.mark.parametrize(
    "text",
    ["cast(name as timestamp)", "timestamp(name)", "to_timestamp(lower(name))", "placed_at > name",
     "name < timestamp '2024-01-01'", "date_trunc('day', name)", "coalesce(placed_at, name)"],
)  # fmt: skip
def test_text_with_time_only_never_means_today(text: str) -> None:
    assert "to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')" in refusal(text)


@pytest.mark.parametrize(
    "text",
    ["status = 'today'", "lower(status) in ('now', 'later')", "case when active then 'now' else 'later' end",
     "status like 'now'", "status <> '12:30'", "coalesce(status, 'today') = 'now'", "'now'",
     "case status when 'today' then 1 end", "concat(status, ' now')", "cast(place.city as string) = 'today'",
     "to_timestamp(name, 'HH:mm')", "cast(name as timestamp_ntz)", "cast(name as date)", "date = name",
     "placed_at > '2024-01-01'", "nullif(status, 'today')", "array_contains(tags, 'today')",
     "attributes['today']", "element_at(attributes, 'now')",
     "array_remove(cast(`all` as array<string>), '12:30')", "typeof(name) = 'string'", "status = 'T12'",
     "to_unix_timestamp(name, 'yyyy-MM-dd')", "parse_json(name)",
     "try_variant_get(parse_json(name), '$.a', 'int')"],
)  # fmt: skip
def test_reserved_words_are_allowed_inside_texts(text: str) -> None:
    assert reads(text) <= COLUMNS.keys()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unix_timestamp(name)", "write unix_seconds(timestamp), or to_unix_timestamp(text, "),
        ("placed_at > now()", "compare with the current time in the query that reads the document"),
        ("sum(id)", "write a separate field: {sum: schema.table.column"),
        ("explode(tags)", "keep the array"),
        ("element_at(array('now'), 1)", "cast(… as array<string>)"),
    ],
)
def test_what_is_refused_says_what_to_write_instead(text: str, message: str) -> None:
    assert message in refusal(text)


def test_formatted_timestamp_parsing_needs_no_type_check() -> None:
    """An argument parsed with an explicit format needs no check of the result's type."""
    for text in ("to_timestamp(tags[0], 'HH:mm')", "try_to_timestamp(place.city, 'yyyy')"):
        meetings = parse_expression(text, COLUMNS, "public.orders").meetings
        assert "result" not in {meeting.how for meeting in meetings}
    (meeting,) = parse_expression("to_timestamp(place.city)", COLUMNS, "public.orders").meetings
    assert meeting.how == "result"


@given(st.integers(0, 2**32))
def test_what_a_random_expression_reads_is_found(seed: int) -> None:
    expressions = Expressions(random.Random(seed), COLUMNS)
    text = expressions.any()
    assert reads(text) == expressions.read, text


PIECES = """' ` " \\ r' /* */ -- ( ) [ ] , . as from uuid() end case when id name struct( cast( interval 1 day
    to not in = || 'x' date x' 0f' like escape is null between and `a`b` int : < >> é""".split()  # noqa: SIM905


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_whatever_is_written_is_read_or_refused(words: list[str]) -> None:
    for text in ("".join(words), " ".join(words)):
        try:
            expression = parse_expression(text, COLUMNS, "public.orders")
        except ValueError:
            continue
        # Outside texts and backticks the SQL has no column and no unknown function.
        assert "uuid" not in bare_words(expression.sql("t"))
        assert not bare_words(expression.sql("t")) & {"id", "name"}


def bare_words(sql: str) -> set[str]:
    """Return words outside texts and backticks, found character by character."""
    words, word, quote, raw = set(), "", "", False
    place = 0
    while place < len(sql):
        c = sql[place]
        if quote:
            if c == "\\" and quote == "'" and not raw:
                place += 1
            elif c == quote:
                quote = ""
        elif c in "'`":
            raw, quote, word = c == "'" and word.lower() == "r", c, ""
        elif c.isalnum() or c == "_":
            word += c
            place += 1
            continue
        words.add(word.lower())
        word = ""
        place += 1
    return words | {word.lower()}
