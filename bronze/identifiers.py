"""Names of tables, and the one function that quotes identifiers for PostgreSQL.

Every identifier that reaches SQL was parsed into a value first and is quoted here (PostgreSQL) or in
`silver.sql` (Spark). So names of any spelling pass, and none can be read as SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s]+))\s*')


def quote_identifier(name: str) -> str:
    """Quote for PostgreSQL, always: ``a"b`` becomes ``"a""b"``."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A string literal for PostgreSQL under ``standard_conforming_strings = on``."""
    return "'" + text.replace("'", "''") + "'"


def folded(name: str) -> str:
    """Return a form that names share if Spark or Delta takes them for one name.

    Spark compares letter by letter, as Java's `equalsIgnoreCase`: there a long s is an s, and a dotless i an
    i. Delta compares names in small letters, in which a dotted capital I is two characters.
    """
    return "".join(map(_folded, name.lower().replace("i\u0307", "i")))


def _folded(letter: str) -> str:
    """Return the small letter of the large one; letters without one of either are as they are."""
    large = next((form for form in (letter.upper(), letter.title()) if len(form) == 1), letter)
    return large.lower()[0]


@dataclass(frozen=True, order=True, slots=True)
class TableName:
    """A table of the source: schema and name, as PostgreSQL stores them (case kept)."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``schema.table``; either part may be quoted as in SQL. Unquoted parts keep their case.

        Raises:
            ValueError: not exactly two parts.
        """
        parts: list[str] = []
        position = 0
        while position < len(text) and len(parts) < 3:
            match = _PART.match(text, position)
            if match is None:
                break
            parts.append(match[1].replace('""', '"') if match[1] is not None else match[2])
            position = match.end()
            if position < len(text) and text[position] == ".":
                position += 1
            else:
                break
        if len(parts) != 2 or position != len(text):
            raise ValueError(f"not a table name: {text!r} (expected schema.table)")
        return cls(*parts)

    def __str__(self) -> str:
        """``schema.table``; a schema with a point or a quote in its name is quoted: no two are alike."""
        plain = not {".", '"'} & set(self.schema)
        return f"{self.schema if plain else quote_identifier(self.schema)}.{self.name}"

    @property
    def quoted(self) -> str:
        """The name as PostgreSQL SQL."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    @property
    def silver_name(self) -> str:
        """Name of its silver table: bare for ``public``, else ``<schema>__<table>``."""
        return self.name if self.schema == "public" else f"{self.schema}__{self.name}"

    def matches(self, pattern: str) -> bool:
        """Whether a pattern of the pipeline file (``public.*``, ``sales.order_?``) selects this table.

        Shell wildcards, matched part by part, case-sensitive; quotes around a part are taken off.
        """
        schema, dot, name = pattern.partition(".")
        return (
            bool(dot)
            and fnmatchcase(self.schema, schema.strip('"'))
            and fnmatchcase(self.name, name.strip('"'))
        )


def pattern_of(schema: str, name: str | None = None) -> str:
    """The pattern of the pipeline file that selects this table, or all of the schema.

    Signs of patterns stand for themselves in brackets. A point in a schema's name would end it, so any sign
    is matched there.
    """
    return f"{_literally(schema).replace('.', '?')}.{'*' if name is None else _literally(name)}"


def _literally(text: str) -> str:
    return "".join(f"[{sign}]" if sign in '*?["' else sign for sign in text)
