"""A database with every kind of type, relation and change, and schemas too large to write by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_TEXT: Final = Path(__file__).with_name("rich_schema.sql")
COLUMNS: Final = 1600
"""The maximum number of columns of a PostgreSQL table."""
MANY: Final = 200


def sections() -> dict[str, tuple[str, list[str]]]:
    """Return each section by name: the schema, then the transactions."""
    parsed = {}
    for section in _TEXT.read_text().split("=== ")[1:]:
        name, _, text = section.partition("\n")
        schema, *steps = text.split("--- step\n")
        parsed[name] = (
            schema,
            [statement for step in steps for statement in step.split("\n\n") if statement.strip()],
        )
    return parsed


def wide() -> tuple[str, list[str]]:
    """Return a table with the maximum number of columns, and its changes."""
    columns = [f"c{number} {_KINDS[number % len(_KINDS)]}" for number in range(1, COLUMNS)]
    schema = (
        f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(columns)}); INSERT INTO wide (id) VALUES (1); "
        "INSERT INTO wide SELECT i FROM generate_series(2, 5) i"
    )
    sets = ", ".join(f"c{number} = {number % 2}::text::{_KINDS[number % 4]}" for number in range(1, COLUMNS))
    return schema, [
        f"UPDATE wide SET {sets} WHERE id = 2",
        "ALTER TABLE wide RENAME c1 TO other",
        "ALTER TABLE wide DROP c2",
        f"UPDATE wide SET other = true, c{COLUMNS - 1} = NULL WHERE id < 4",
        "DELETE FROM wide WHERE id = 5",
    ]


_KINDS: Final = ("int2", "bool", "text", "int4")


def many(tables: int = MANY) -> tuple[str, list[str]]:
    """Return many tables, created at once, and changes of all tables; some are dropped or recreated."""
    statements = [_made(f"many_{number}") for number in range(tables)]
    changes = []
    for number in range(tables):
        name = f"many_{number}"
        changes.append(
            f"UPDATE {name} SET a = a || 'x' WHERE id = 1; INSERT INTO {name} VALUES (3, 'new', 3)"
        )
        kind = number % 10
        if kind == 0:
            changes.append(f"DROP TABLE {name}")
        elif kind == 1:
            changes += [f"DROP TABLE {name}", _made(name), f"INSERT INTO {name} VALUES (9, 'again', 9)"]
        elif kind == 2:
            changes += [
                f"ALTER TABLE {name} ADD c timestamp DEFAULT '2024-01-01'",
                f"DELETE FROM {name} WHERE id = 2",
            ]
        elif kind == 3:
            changes += [
                f"ALTER TABLE {name} ALTER b TYPE text",
                f"INSERT INTO {name} VALUES (4, 'text', 'b')",
            ]
        elif kind == 4:
            changes += [f"TRUNCATE {name}", f"INSERT INTO {name} VALUES (5, 'only', NULL)"]
        elif kind == 5:
            changes += [f"CREATE TABLE more_{number} (id bigint PRIMARY KEY, a jsonb)",
                        f"INSERT INTO more_{number} VALUES (1, '{{\"a\": 1}}')"]  # fmt: skip
        elif kind == 6:
            changes += [f"ALTER TABLE {name} RENAME a TO z; ALTER TABLE {name} RENAME b TO a",
                        f"UPDATE {name} SET a = 50"]  # fmt: skip
    return "; ".join(statements), changes


def _made(name: str) -> str:
    rows = "(1, 'a', 1), (2, repeat(md5('b'), 200), 2)"
    return f"CREATE TABLE {name} (id int PRIMARY KEY, a text, b int); INSERT INTO {name} VALUES {rows}"
