"""No text becomes a moment of today, as an element or a field of any value: Spark's types decide."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from deltasmelt.gold.compile.column_types import objections
from deltasmelt.gold.expressions.expressions import parse_expression
from deltasmelt.gold.expressions.functions import FUNCTIONS, REFUSED
from deltasmelt.silver.sql import quote
from tests.gold.random_expressions import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.gold.expressions.clock_texts import Coercion

pytestmark = pytest.mark.spark

MORE = {
    **COLUMNS,
    "moments": "ARRAY<TIMESTAMP>",
    "by_moment": "MAP<TIMESTAMP, STRING>",
    "moment_of": "MAP<STRING, TIMESTAMP>",
    "stay": "STRUCT<since: TIMESTAMP, note: STRING>",
    "photo": "BINARY",
    "anything": "VARIANT",
    "wei": "DECIMAL(38,0)",
    "weights": "ARRAY<FLOAT>",
}
CLOCK = """
cast(tags as array<timestamp>)
cast(split(name, ',')[0] as timestamp)
cast(place.city as timestamp)
cast(place as struct<a: timestamp, b: int, c: struct<d: string>>)
try_cast(place as struct<a: string, b: int, c: struct<d: timestamp>>)
cast(map(1, name) as map<int, timestamp>)
cast(name || placed_at as timestamp)
cast(try_parse_json(name) as timestamp)
cast(anything as array<timestamp>)
timestamp(place.city)
to_timestamp(tags[0])
placed_at > tags[0]
tags[0] in (placed_at)
place.city between placed_at and placed_at
placed_at is distinct from element_at(tags, 1)
case placed_at when tags[0] then 1 end
case when active then placed_at else tags[0] end
if(active, placed_at, place.city)
nvl(place.city, placed_at)
nvl2(id, place.city, placed_at)
coalesce(tags[0], placed_at)
stay.since > case when active then '12:30' else '2024-01-01' end
greatest(split_part(name, ',', 1), placed_at)
nullif(placed_at, tags[0])
decode(placed_at, tags[0], 1)
decode(id, 1, place.city, placed_at)
array(name, placed_at)
array_contains(moments, name)
array_contains(array(timestamp '2024-01-01'), name)
array_contains(tags, placed_at)
array_position(moments, name)
array_append(moments, name)
array_insert(moments, 1, name)
array_union(tags, moments)
arrays_overlap(moments, tags)
concat(tags, moments)
tags || moments
map(placed_at, 1, name, 2)
map(1, placed_at, 2, name)
element_at(by_moment, name)
by_moment[name]
map_contains_key(by_moment, name)
map_concat(by_moment, map(name, name))
struct(stay.note as a, 1 as b) = struct(placed_at as a, 1 as b)
name + interval '1' day
tags[0] - interval '1' hour
try_add(name, interval '1' day)
name - placed_at
sequence(name, place.city, interval '1' day)
timestampadd(day, 1, tags[0])
timestampdiff(day, placed_at, place.city)
extract(hour from place.city)
date_trunc('day', tags[0])
date_format(place.city, 'HH')
hour(tags[0])
months_between(tags[0], placed_at)
unix_micros(tags[0])
from_utc_timestamp(place.city, 'UTC')
from_json(name, 'a timestamp')
from_json(name, 'array<struct<a: timestamp_ltz>>')
variant_get(try_parse_json(name), '$.a', 'timestamp')
try_variant_get(anything, '$', 'array<timestamp>')
""".strip().splitlines()
PRINTED = """
to_json(map(photo, 1))
to_json(struct(array(map(struct(id), 1)) as x))
format_string('%s', photo)
printf('%s %s', name, tags)
""".strip().splitlines()
OTHER_NUMBERS = """
abs(wei) > 0.5
round(wei) in (0.25, 1)
greatest(abs(wei), 0.5) > 1
case abs(wei) when 0.5 then 1 end
case when active then abs(wei) else 0.5 end
array_contains(array(wei), 0.5)
arrays_overlap(array(wei), array(0.5))
element_at(array(wei), 1) > Total
length(name) / 2
floor(Total) / 3
round(cast(1 as decimal(38,30)), 30) * round(cast(1 as decimal(38,30)), 30)
abs(wei) div 7
tags || tags
name || Total
name || placed_at
name || photo
name || last_day(date)
name || place
(date - date) || 'x'
cast(coalesce(Total, 0) as int)
try_cast(abs(Total) as smallint)
cast(greatest(Total, 1) as int)
cast(nullif(Total, 0) as bigint)
cast(case when active then Total else 0 end as int)
cast(weights[0] as int)
bigint(abs(Total))
cast(array(Total, Total) as array<int>)
cast(map(1, struct(Total as a)) as map<int, struct<a: int>>)
cast(coalesce(weights[0], weights[1]) as decimal(9,2))
cast(sqrt(Total) as decimal(16,2))
abs(smallint(id)) << 2
abs(Total) * 1e3
coalesce(abs(Total), 1e3)
if(active, 1e3, abs(Total))
abs(wei) > 1e3
abs(wei) in (1, 2 * 1e3)
nullif(abs(wei), 1e3) is null
weights[0] in (0.1, 1)
coalesce(weights[0], 1)
place.city = 1
array(1, name)
""".strip().splitlines()
SAME_NUMBERS = """
abs(Total) > 0.5
abs(wei) > 1
length(name) div 2
length(name) / 2D
name || id || date
photo || photo is null
active || name
timestamp || name
cast(floor(Total) as int)
cast(ceil(weights[0]) as int)
cast(round(weights[0], 0) as int)
cast(round(abs(Total)) as int)
cast(array(Total, Total) as array<decimal(20,4)>)
cast(sqrt(Total) as decimal(15,2))
length(name) << 2
sqrt(Total) * 1e3
length(name) > 1e3
abs(cast(Total as decimal(9,2))) between 1 and 1e3
nullif(weights[0], 0)
cast(Total as float) in (0, 1)
round(order) / 2
tags[0] = name
array_contains(all , 1)
attributes['to'] > 1
weights[0] > 0.1
abs(Total) * abs(Total)
""".strip().splitlines()
FREE = """
array_contains(tags, 'today')
array_contains(split(name, ','), 'x')
array_position(cast(all as array<string>), '12:30')
array_remove(tags, 'now')
cast(tags[0] as timestamp_ntz)
cast(tags as array<date>)
to_timestamp(tags[0], 'HH:mm')
try_to_timestamp(place.city, 'yyyy-MM-dd')
to_unix_timestamp(name, 'yyyy-MM-dd')
placed_at > '2024-01-01'
array(placed_at, '2024-01-01')
struct(name, placed_at)
map('a', placed_at, name, placed_at)
element_at(moment_of, name)
moment_of['today']
stay.since > placed_at
cast(stay as struct<a: timestamp, b: string>)
concat(name, placed_at)
date_trunc(name, placed_at)
cast(last_day(date) as timestamp)
cast(cast(placed_at as string) as timestamp_ntz)
from_json(name, 'a timestamp_ntz, b date')
variant_get(parse_json(name), '$.a', 'string')
placed_at + interval '1' day
date - date
decode(photo, 'UTF-8')
decode(name, 'a', placed_at, 'b', placed_at)
to_json(map(name, photo))
format_string('%s %d', name, id)
array_sort(array(stay, stay))
coalesce(date, placed_at)
nullif(tags, array('x'))
typeof(name) = 'string'
make_timestamp(2024, 1, 1, 0, 0, 0, 'UTC')
""".strip().splitlines()


def rows(columns: Mapping[str, str]) -> str:
    listed = ", ".join(f"CAST(NULL AS {ddl}) AS {quote(name)}" for name, ddl in columns.items())
    return f"(SELECT {listed})"


def read(text: str) -> str:
    """Return the text with backticks around the columns that need backticks."""
    return text.replace(" all ", " `all` ").replace("(all ", "(`all` ")


def refused(spark: SparkSession, texts: list[str]) -> dict[str, str]:
    """Return the texts refused by their types, each with the message."""
    noted: list[tuple[str, Coercion]] = []
    for text in texts:
        noted += [(text, meeting) for meeting in parse_expression(read(text), MORE, "public.t").meetings]
    refusals = objections(spark, rows(MORE), [meeting for _, meeting in noted])
    return {noted[place][0]: message for place, (message, _) in refusals.items()}


def by_the_words(text: str) -> bool:
    """Check whether the parser refuses the expression for the clock before any type is known."""
    try:
        parse_expression(read(text), MORE, "public.t")
    except ValueError as error:
        return "the clock" in str(error) or "today's date" in str(error)
    return False


def test_a_text_that_meets_a_timestamp_is_refused(spark: SparkSession) -> None:
    late = [text for text in CLOCK if not by_the_words(text)]
    refusals = refused(spark, late)
    assert [text for text in late if "today's date" not in refusals.get(text, "")] == []


def test_a_number_unlike_postgresqls_is_found_by_type(spark: SparkSession) -> None:
    refusals = refused(spark, OTHER_NUMBERS)
    assert [text for text in OTHER_NUMBERS if text not in refusals] == []
    assert refused(spark, SAME_NUMBERS) == {}


def test_a_value_without_a_text_is_not_printed(spark: SparkSession) -> None:
    assert refused(spark, PRINTED).keys() == set(PRINTED)


def test_expressions_independent_of_the_day_are_free(spark: SparkSession) -> None:
    assert refused(spark, FREE) == {}
    spark.sql(
        "SELECT "
        + ", ".join(parse_expression(read(text), MORE, "public.t").sql("t") for text in FREE)
        + f" FROM {rows(MORE)} AS t"
    )


def test_dates_and_plain_timestamps_are_no_clock(spark: SparkSession) -> None:
    """Such texts give NULL, or an error: only a TIMESTAMP takes its date from the clock."""
    texts = "('now'), ('today'), ('12:30:00'), ('T12'), (' 7:3 '), ('+T12'), ('-7:00')"
    row = spark.sql(
        f"SELECT count(try_cast(x AS DATE)) AS dates, count(try_cast(x AS TIMESTAMP_NTZ)) AS plain, "
        f"count(try_cast(x AS TIMESTAMP)) AS moments FROM VALUES {texts} AS t(x)"
    ).first()
    assert row is not None
    assert row.asDict() == {"dates": 0, "plain": 0, "moments": 3}


ARGUMENTS = {
    "text": "STRING", "moment": "TIMESTAMP", "number": "INT", "texts": "ARRAY<STRING>",
    "moments": "ARRAY<TIMESTAMP>", "by": "MAP<TIMESTAMP, STRING>", "step": "INTERVAL DAY TO SECOND",
}  # fmt: skip


def calls() -> Iterator[str]:
    """Return calls of every function over texts, with all kinds of further arguments."""
    names = sorted(FUNCTIONS - {"cast", "try_cast", "extract", "overlay", "position", "struct"})
    kinds = """`text`;`texts`;`text`, `text`;`text`, `moment`;`moment`, `text`;`text`, `number`;`text`, `step`
        `moments`, `text`;`texts`, `moment`;`texts`, `moments`;`by`, `text`;`text`, '2024-01-01'
        `moment`, `text`, `moment`;`text`, `text`, `text`;`moments`, 1, `text`"""
    lists = [entry.strip() for line in kinds.splitlines() for entry in line.split(";")]
    for name in names:
        yield from (f"{name}({entry})" for entry in lists)


def reads_text(expression: Any) -> bool:
    """Check whether an analysed expression, as JSON, casts a text column to a type with a TIMESTAMP."""
    nodes: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                walk(item)
            for this, after in pairwise(value):
                if isinstance(this, dict) and this.get("class", "").endswith(".Cast"):
                    nodes.append({"kind": this["dataType"], "of": after})
        elif isinstance(value, dict):
            for item in value.values():
                walk(item)

    walk(expression)
    return any(
        "timestamp" in json.dumps(node["kind"]).replace("timestamp_ntz", "")
        and node["of"].get("name") in {"text", "texts"}
        for node in nodes
    )


@pytest.mark.torture
def test_no_function_reads_moments_unknown_to_readers(spark: SparkSession) -> None:
    """Spark's own plan of each call shows the casts that Spark adds."""
    relation, missed, analysed_count = rows(ARGUMENTS), [], 0
    for call in calls():
        try:
            frame: Any = spark.sql(f"SELECT {call} AS u FROM {relation} AS t")
        except AnalysisException:
            continue
        plan = json.loads(frame._jdf.queryExecution().analyzed().toJSON())
        if not reads_text(plan[0]):
            continue
        analysed_count += 1
        try:
            meetings = parse_expression(call, ARGUMENTS, "public.t").meetings
        except ValueError:
            continue
        if not objections(spark, relation, meetings):
            missed.append(call)
    assert missed == []
    assert analysed_count > 50


def folded(spark: SparkSession, names: Iterable[str]) -> list[str]:
    """Return the functions of a text column that Spark evaluates when it plans, and then reads the clock."""
    constants = []
    for name in names:
        try:
            frame: Any = spark.sql(f"SELECT {name}(`text`) AS u FROM {rows(ARGUMENTS)} AS t")
        except AnalysisException:
            continue
        alias = frame._jdf.queryExecution().analyzed().expressions().apply(0)
        if alias.child().foldable():
            constants.append(name)
    return constants


def test_constants_of_spark_are_constants_to_readers(spark: SparkSession) -> None:
    assert folded(spark, ["typeof", "upper"]) == ["typeof"]
    with pytest.raises(ValueError, match="write the text itself"):
        parse_expression("replace(typeof(text), 'string', 'today')", ARGUMENTS, "public.t")


@pytest.mark.torture
def test_spark_folds_no_other_function(spark: SparkSession) -> None:
    """Only a new function, or a new version of Spark, changes the answer."""
    names = FUNCTIONS - {"cast", "try_cast", "extract", "overlay", "position", "struct"}
    assert folded(spark, sorted(names)) == ["typeof"]


def test_refused_words_name_what_to_write() -> None:
    for word, hint in {"unix_timestamp": "unix_seconds", "now": "that reads the document"}.items():
        assert word in REFUSED
        with pytest.raises(ValueError, match=hint):
            parse_expression(f"{word}()", ARGUMENTS, "public.t")
