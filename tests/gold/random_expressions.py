"""Random SQL of documents from all allowed parts, with the columns that each text reads by construction."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

COLUMNS: Final = {
    "id": "BIGINT", "to": "INT", "end": "INT", "year": "INT", "Total": "DECIMAL(12,2)", "order": "DOUBLE",
    "status": "STRING", "from": "STRING", "a b": "STRING", "name": "STRING", "tick`ed": "STRING",
    "placed_at": "TIMESTAMP", "interval": "TIMESTAMP", "date": "DATE", "timestamp": "TIMESTAMP_NTZ",
    "active": "BOOLEAN", "not": "BOOLEAN", "tags": "ARRAY<STRING>", "all": "ARRAY<INT>",
    "place": "STRUCT<city: STRING, `from`: INT, `a b`: STRUCT<select: STRING>>",
    "attributes": "MAP<STRING, INT>",
}  # fmt: skip
"""Columns of all kinds, many named like words of SQL."""

BARE: Final = frozenset(("id", "year", "Total", "order", "status", "name", "placed_at", "interval", "date",
                         "timestamp", "active", "tags", "place", "attributes"))  # fmt: skip
"""Columns that need no backticks."""

_KINDS: Final = {"BIGINT": "number", "INT": "number", "DECIMAL(12,2)": "number", "DOUBLE": "number",
                 "SMALLINT": "number", "STRING": "text", "TIMESTAMP": "moment", "DATE": "date",
                 "TIMESTAMP_NTZ": "plain", "BOOLEAN": "truth", "ARRAY<STRING>": "texts",
                 "ARRAY<INT>": "numbers"}  # fmt: skip


@dataclass
class Expressions:
    """Writer of expressions over a row.

    Attributes:
        read: columns that the last text reads.
    """

    source: random.Random
    columns: Mapping[str, str]
    read: set[str] = field(default_factory=set)

    def any(self) -> str:
        """Return an expression of any type, with the columns read in `read`."""
        self.read = set()
        return self.of(
            self.source.choice(["number", "text", "moment", "date", "truth", "texts", "struct"]), 3
        )

    def truth(self) -> str:
        """Return a condition, with the columns read in `read`."""
        self.read = set()
        return self.of("truth", 3)

    def of(self, kind: str, depth: int) -> str:
        """Return an expression of a kind, with operands `depth` levels deep."""
        if kind in {"word", "instant"}:
            kind_of_column = {"word": "text", "instant": "moment"}[kind]
            return self._column(self.source.choice(self._known(kind_of_column)))
        if depth == 0 or self.source.random() < 0.25:
            return self._leaf(kind)
        template = self.source.choice(_TEMPLATES[kind])
        return self._spelt(_HOLE.sub(lambda hole: self.of(hole[1], depth - 1), template))

    def _spelt(self, text: str) -> str:
        """Write a text at times in parentheses or over two lines; SQL texts keep their content."""
        if self.source.random() < 0.2:
            text = f"( {text}\n)"
        return text

    def _leaf(self, kind: str) -> str:
        names = self._known(kind)
        if names and self.source.random() < 0.8:
            return self._column(self.source.choice(names))
        if kind == "struct":
            return f"struct({self._leaf('text')} as mail, {self._leaf('number')} AS `to`)"
        return self.source.choice(_LITERALS[kind])

    def _known(self, kind: str) -> list[str]:
        return [name for name, ddl in self.columns.items() if _KINDS.get(ddl) == kind]

    def _column(self, name: str) -> str:
        self.read.add(name)
        if name in BARE and self.source.random() < 0.7:
            return self.source.choice([name, name.upper(), name.lower()])
        return "`" + name.replace("`", "``") + "`"


SPECIAL: Final = [
    ("place.city", {"place"}),
    ("place.from", {"place"}),
    ("place.`a b`.select", {"place"}),
    ("PLACE . city || 'x'", {"place"}),
    ("tags[0]", {"tags"}),
    ("attributes['to']", {"attributes"}),
    ("element_at(attributes, name)", {"attributes", "name"}),
    ("`place`.`a b`", {"place"}),
    ("map_keys(attributes)[cast(id as int)]", {"attributes", "id"}),
    ("struct(place.`from` as id).id", {"place"}),
    ("cast(place as struct<x:string,y int,z:struct<`select`:string>>).y", {"place"}),
    ("map_concat(attributes, map('to', `to`))", {"attributes", "to"}),
    ("named_struct('to', 1).to", set()),
    ("struct(status as id, id as status).id", {"status", "id"}),
    ("placed_at + interval -1 day", {"placed_at"}),
    ("interval - interval '1' hour", {"interval"}),
    ("year(date) + year", {"date", "year"}),
    ("timestamp > timestamp_ntz '2024-01-01'", {"timestamp"}),
    ("date_add(date, year)", {"date", "year"}),
    ("dateadd(year, year, placed_at)", {"year", "placed_at"}),
    ("!active", {"active"}),
    ("extract(year from interval) = year", {"interval", "year"}),
    ("case `end` when `end` then `to` else `all`[0] end", {"end", "to", "all"}),
    ("`from` is distinct from `tick``ed`", {"from", "tick`ed"}),
    ("unix_seconds(placed_at)", {"placed_at"}),
    ("r'\\' || status || ' || uuid() /*'", {"status"}),
    ("`to` between 1 and `end` and active", {"to", "end", "active"}),
]
"""Expressions over `COLUMNS` worth a separate line, with the columns read."""

_LITERALS: Final = {
    "number": ["1", "2L", "1.5", "3e2D", ".5BD", "7S", "-4", "10"],
    "text": [
        "'x'",
        "'it''s'",
        r"'a\'b'",
        r"r'\'",
        "'-- to'",
        "'/* end */'",
        "'`from`'",
        r"'\u0041\n'",
        "''",
        "R'uuid()'",
    ],
    "moment": ["timestamp '2024-01-31 10:00:00'", "TIMESTAMP'2024-02-29T00:00:00Z'", "timestamp '2024'"],
    "date": ["date '2024-01-31'", "DATE '9999-12-31'"],
    "truth": ["true", "FALSE", "1 = 1"],
    "texts": ["array('a', 'b')"],
    "numbers": ["array(1, 2)"],
}
_HOLE: Final = re.compile(r"\{(\w+)\}")
_TEMPLATES: Final = {
    "number": [
        "{number} + {number}",
        "{number}*{number}",
        "- {number}",
        "abs({number})",
        "length({text})",
        "coalesce({number}, {number})",
        "size( {texts} )",
        "case when {truth} then {number} else {number} end",
        "CASE {text} WHEN {text} THEN {number} END",
        "extract(YEAR from {moment})",
        "position({text} in {text})",
        "timestampdiff(day, {moment}, {moment})",
        "datediff({date}, {date})",
        "date_diff(MONTH, {moment}, {moment})",
        "if({truth}, {number}, {number})",
        "year({date})",
        "cast({number} as decimal(15, 4))",
        "try_cast({text} AS double)",
        "(cast(floor({number}) as int) div 7 % 3)",
        "(cast(floor({number}) as int) & 3 | 1)",
        "struct({number} as to, {text} as x).to",
        "{numbers}[0]",
        "array_position({texts}, {text})",
        "nullif({number}, 0)",
    ],
    "text": [
        "{text} || {word} || {text}",
        "lower({number} || {word})",
        "concat({word}, {text}, {number})",
        "replace({word}, r'\\', {text})",
        "trim(both 'x' from {word})",
        "trim( {word} )",
        "substring({word} from 1 for 2)",
        "overlay({word} placing {text} from 2 for 1)",
        "cast({number} as string)",
        "coalesce({text}, {text})",
        "case when {truth} then {text} end",
        "date_format({instant}, 'yyyy-MM')",
        "named_struct('from', {text}).`from`",
        "split({word}, ',')[0]",
        "regexp_replace({word}, '[-/*]+', {text})",
    ],
    "moment": [
        "{moment} + interval '1' day",
        "{moment} - INTERVAL 2 hours 3 minutes",
        "timestampadd(HOUR, 2, {moment})",
        "dateadd(day, 1, {moment})",
        "date_trunc('month', {moment})",
        "cast({date} as timestamp)",
        "to_timestamp({text}, 'yyyy-MM-dd')",
        "greatest({moment}, {moment})",
        "{moment} + interval '1-2' year to month",
    ],
    "date": [
        "date_add({date}, 3)",
        "cast({moment} as date)",
        "coalesce({date}, date '9999-12-31')",
        "last_day({date})",
        "dateadd({date}, cast(round({number}, 0) as int))",
    ],
    "truth": [
        "({truth}) and not ({truth})",
        "({truth}) OR ! ({truth})",
        "{number} > {number}",
        "{text} <=> {text}",
        "{moment} between {moment} and {moment}",
        "{date} is not null",
        "{word} in ({word}, 'today', 'it''s')",
        "{text} not like 'x%' escape '/'",
        "{text} ilike any ('a%', {text})",
        "{text} rlike r'\\d+'",
        "{number} is not distinct from {number}",
        "({truth}) is unknown",
        "array_contains({texts}, {text})",
        "{number} not in (1, 2)",
    ],
    "texts": [
        "array({text}, {text})",
        "array_distinct({texts})",
        "array_union({texts}, {texts})",
        "cast({numbers} as array<string>)",
        "map_keys(map({text}, {number}))",
    ],
    "numbers": [
        "array({number}, {number})",
        "array_sort({numbers})",
        "cast(array(array({number})) as array<array<bigint>>)[0]",
    ],
    "struct": [
        "struct({text} as from, {number} AS `a b`, {struct} as level)",
        "named_struct('to', {date}, 'end', {texts})",
        "struct({word}, {truth})",
    ],
}
"""Ways to write a kind of expression; a kind in braces stands for any expression of the kind."""
