"""Names of tables, and the one function that quotes identifiers for PostgreSQL.

Every identifier that reaches SQL was first parsed into a value. This module quotes identifiers for
PostgreSQL, `silver.sql` for Spark. Names of any spelling therefore work, and no name can act as SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

_PART = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s]+))\s*')


def quote_identifier(name: str) -> str:
    """Return a name in PostgreSQL's quotes, also where SQL needs none: ``a"b`` becomes ``"a""b"``."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return a string literal for PostgreSQL under ``standard_conforming_strings = on``."""
    return "'" + text.replace("'", "''") + "'"


def folded(name: str) -> str:
    """Return a form in which two names are equal if Spark or Delta regards both as equal."""
    # Delta compares lower-case names, and the lower case of a dotted capital I is two characters.
    return "".join(map(_folded, name.lower().replace("i\u0307", "i")))


def _folded(letter: str) -> str:
    """Return the lower case of a letter's upper case; a letter without either stays unchanged."""
    # Spark compares letter by letter like Java's `equalsIgnoreCase`: a long s equals an s, a dotless i equals
    # an i.
    large = next((form for form in (letter.upper(), letter.title()) if len(form) == 1), letter)
    return large.lower()[0]


@dataclass(frozen=True, order=True, slots=True)
class TableName:
    """A table of the source: schema and name as PostgreSQL stores them, with their case."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``schema.table``; SQL quotes are allowed around each part. Unquoted parts keep their case.

        Raises:
            ValueError: the text has not exactly two parts.
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
        """Return ``schema.table``; quotes around a schema with a point or quote keep all texts distinct."""
        plain = not {".", '"'} & set(self.schema)
        return f"{self.schema if plain else quote_identifier(self.schema)}.{self.name}"

    @property
    def quoted(self) -> str:
        """The quoted name for PostgreSQL's SQL."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    @property
    def silver_name(self) -> str:
        """Name of the table in silver: bare for ``public``, otherwise ``<schema>__<table>``."""
        return self.name if self.schema == "public" else f"{self.schema}__{self.name}"

    def matches(self, pattern: str) -> bool:
        """Check whether a pattern of the pipeline file (``public.*``, ``sales.order_?``) selects this table.

        Shell wildcards match part by part and respect case; quotes around a part are removed.
        """
        schema, dot, name = pattern.partition(".")
        return (
            bool(dot)
            and fnmatchcase(self.schema, schema.strip('"'))
            and fnmatchcase(self.name, name.strip('"'))
        )


def pattern_of(schema: str, name: str | None = None) -> str:
    """Return a pattern of the pipeline file that selects this table, or all tables of the schema.

    Brackets make a wildcard match itself. A point in the schema's name would end the schema, so the pattern
    has ``?`` (any character) at the point's place.
    """
    return f"{_literally(schema).replace('.', '?')}.{'*' if name is None else _literally(name)}"


def _literally(text: str) -> str:
    return "".join(f"[{sign}]" if sign in '*?["' else sign for sign in text)
