"""Histories of real tables whose rows and shapes change within one transaction: stories and random ones.

Random histories may also contain changes that the log omits: types, storage, partitions, the publication.

A history records only the state that valid SQL needs: names and types of columns, used ids, the key. The
server alone holds the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

KINDS: Final = (
    "add", "away", "case", "drop", "identity", "key", "out", "partitions", "passed on", "rename", "retype",
    "root identity", "swap", "tables", "truncate", "widen",
)  # fmt: skip
"""Kinds of changes to a table, in addition to changes of rows; a test may exclude each kind.

``away``: renamed and back; ``out``: renamed to a name outside the pipeline's patterns, and back; ``case``: a
column's name changes only its case; ``passed on``: a column is dropped and a new column gets its name;
``root identity``: a partitioned table's root has a different identity from its partitions; ``tables``: a
second table with equal rows replaces the table under its name.
"""

UNLOGGED_KINDS: Final = (
    "attributes", "children", "deep", "filter", "grant", "labels", "not null", "operations", "parts",
    "publication", "schema", "third", "type name", "unlogged", "vacuum", "volatile",
)  # fmt: skip
"""Kinds of statements that the log omits; a test may exclude each kind.

``children``: a table outside the patterns inherits from the table, has rows, and is detached or dropped;
``deep``: a partition has partitions; ``parts``: a partition is detached and attached, emptied or rewritten;
``third``: a third partition is created and dropped; ``publication``: the table leaves the publication while
rows change; ``filter``: the publication contains only some rows; ``operations``: the publication contains
only inserts; ``grant`` and ``not null``: the columns' catalog rows change, but no value; ``schema``: the
table moves to another schema; ``type name``: the table's type is renamed; ``unlogged``: the table leaves the
publication, and its rows are not logged; ``volatile``: a new column has a different default in each row.
"""

ELSEWHERE: Final = "elsewhere"
"""A schema outside the pipeline's patterns; the test creates it."""

AWAY: Final = "away_"
"""Prefix of names outside the pipeline's patterns."""

_STORIES: Final = Path(__file__).parent / "shapes_within_transactions.sql"
_NAMES: Final = ("a", "b", "c", "d", "e", "f")
_TYPES: Final = ("text", "text", "int", "numeric(8,2)")
_FREE_IDS: Final = range(1, 13)
_THIRD: Final = 9
"""The smallest id in the partition that is created and dropped."""
_OF_CHILD: Final = 100
"""Number below the ids of a child's rows."""


def stories() -> dict[str, list[list[str]]]:
    """Return the windows of each story by table name: the setup first, then the transactions."""
    windows = {}
    for story in _STORIES.read_text().split("=== ")[1:]:
        name, _, text = story.partition("\n")
        windows[name] = [
            [statement.replace("{t}", name) for statement in window.split("\n\n") if statement.strip()]
            for window in text.split("--- step\n")
        ]
    return windows


@dataclass
class History:
    """The history of one table.

    Attributes:
        name: the table's name between transactions.
        rng: random generator behind every choice.
        kinds: kinds that may occur, of `KINDS` and `UNLOGGED_KINDS`.
        here: the table's current name.
        columns: type by name of the columns other than ``id`` and ``code``.
        ids: ids of the table's current rows.
        key: column of the key, ``id`` or ``code``.
        made_again: whether a second table took the name; its constraints have different names.
        partitioned: whether the table has partitions by id.
        deep: whether the first partition has partitions itself.
        identity: replica identity of the partitions, as SQL.
        third: whether the partition of the greatest ids exists.
        labels: labels of the enum of column ``mood`` that a transaction may use; empty: no such column.
        added: labels that the next transaction may use.
        attributes: attributes of the composite type of column ``pair``.
        mood: current name of the enum type.
        child: number of rows inserted into the inheriting table; None without such a table.
        everywhere: the publication covers all tables or the schema, and names no table.
        statements: statements of the current transaction.
    """

    name: str
    rng: random.Random
    kinds: Collection[str] = KINDS
    here: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    key: str = "id"
    partitioned: bool = False
    made_again: bool = False
    deep: bool = False
    identity: str = "DEFAULT"
    third: bool = False
    labels: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    mood: str = ""
    child: int | None = None
    everywhere: bool = False
    statements: list[str] = field(default_factory=list)
    codes: int = 0

    def begin(self) -> list[str]:
        """Create the table and its first rows."""
        self.here, self.columns = self.name, {"a": "text", "b": "text", "c": "int"}
        share = 0.5 if "parts" in self.kinds else 0.2
        self.partitioned = "partitions" in self.kinds and self.rng.random() < share
        unique = "" if self.partitioned else " UNIQUE"
        by = " PARTITION BY RANGE (id)" if self.partitioned else ""
        columns = f"id int CONSTRAINT {self.name}_pk PRIMARY KEY, code int NOT NULL{unique}"
        types = []
        if "labels" in self.kinds:
            self.labels = ["low", "mid", "high"]
            self.mood = f"{self.name}_mood"
            types.append(f"CREATE TYPE {self.mood} AS ENUM ('low', 'mid', 'high')")
            types.append(f"CREATE DOMAIN {self.name}_felt AS {self.mood}")
            columns += f", mood {self.mood}, moods {self.mood}[], felt {self.name}_felt"
        if "attributes" in self.kinds:
            self.attributes = ["x", "y"]
            types.append(f"CREATE TYPE {self.name}_pair AS (x int, y int)")
            columns += f", pair {self.name}_pair"
        self.statements = [*types, f"CREATE TABLE {self.name} ({columns}, a text, b text, c int){by}"]
        if self.partitioned:
            top = str(_THIRD) if "third" in self.kinds else "MAXVALUE"
            self.deep = "deep" in self.kinds and self.rng.random() < 0.5
            below = by if self.deep else ""
            parts = [("p0", "", "MINVALUE", "5", below), ("p1", "", "5", top, "")]
            if self.deep:
                parts += [("p0a", "_p0", "MINVALUE", "3", ""), ("p0b", "_p0", "3", "5", "")]
            for part, of, low, high, divided in parts:
                self.statements.append(
                    f"CREATE TABLE {self.name}_{part} PARTITION OF {self.name}{of} "
                    f"FOR VALUES FROM ({low}) TO ({high}){divided}"
                )
        self._out_of_line("a")
        self._out_of_line("b")
        for _ in range(4):
            self._insert()
        return ["; ".join(self.statements)]

    def transactions(self) -> list[str]:
        """Return some transactions; often no write follows, so no message carries the newest shape."""
        statements = []
        for _ in range(self.rng.randint(1, 3)):
            self.statements = []
            self.labels, self.added = self.labels + self.added, []
            for _ in range(self.rng.randint(2, 7)):
                self._statement()
            if self.here != self.name:
                self._to(self.name)
            statements.append(f"BEGIN; {'; '.join(self.statements)}; COMMIT")
            if "vacuum" in self.kinds and self.rng.random() < 0.1:
                part = f"{self.name}_p0" if self.partitioned and self.rng.random() < 0.5 else self.name
                statements.append(f"VACUUM FULL {part}")
        self.statements = []
        self.labels, self.added = self.labels + self.added, []
        if "tables" in self.kinds and not self.partitioned and self.rng.random() < 0.1:
            statements += self._swap_tables()
        if self.rng.random() < 0.5:
            self._insert() if self._free() else self._update()
        return [*statements, *self.statements]

    def _statement(self) -> None:
        shapes: dict[str, Callable[[], None]] = {
            "add": self._add, "away": self._away, "case": self._case, "drop": self._drop,
            "identity": self._identity, "key": self._key, "out": self._out, "passed on": self._pass_on,
            "rename": self._rename, "retype": self._retype, "swap": self._swap, "truncate": self._truncate,
            "widen": self._widen, "attributes": self._attributes, "labels": self._labels,
            "parts": self._parts, "publication": self._unpublished, "unlogged": self._unlogged,
            "children": self._children, "filter": self._filtered, "operations": self._operations,
            "grant": self._grant, "not null": self._not_null, "schema": self._move_away,
            "type name": self._call_type, "volatile": self._add_volatile,
        }  # fmt: skip
        if self.partitioned and "parts" in self.kinds and self.rng.random() < 0.15:
            self._parts()
        elif self.rng.random() < 0.5:
            every = (*KINDS, *UNLOGGED_KINDS)
            kind = self.rng.choice([kind for kind in every if kind in self.kinds and kind in shapes])
            shapes[kind]()
        else:
            self.rng.choice(
                [self._insert, self._update, self._update, self._update, self._delete, self._move]
            )()

    # -- rows
    # ------------------------------------------------------------------------------------------------------

    def _insert(self) -> None:
        free = self._free()
        if not free:
            return
        row_id = self.rng.choice(free)
        self.ids.add(row_id)
        self.codes += 1
        cells = {name: self._value(type_) for name, type_ in self.columns.items() if self.rng.random() < 0.8}
        cells |= self._of_own_types()
        names = ", ".join(["id", "code", *map(_quoted, cells)])
        values = ", ".join([str(row_id), str(self.codes), *cells.values()])
        self.statements.append(f"INSERT INTO {self.here} ({names}) VALUES ({values})")

    def _free(self) -> list[int]:
        """Return unused ids for which a partition exists."""
        lacks = self.partitioned and "third" in self.kinds and not self.third
        return [
            free_id for free_id in _FREE_IDS if free_id not in self.ids and (free_id < _THIRD or not lacks)
        ]

    def _of_own_types(self) -> dict[str, str]:
        """Return values for the columns of the history's own types."""
        values_of_types = {}
        if self.labels and self.rng.random() < 0.6:
            label, second_label = (self.rng.choice(self.labels) for _ in range(2))
            values_of_types = {
                "mood": f"'{label}'",
                "moods": f"ARRAY['{label}', '{second_label}']::{self.mood}[]",
            }
            values_of_types["felt"] = f"'{second_label}'"
        if self.attributes and self.rng.random() < 0.6:
            values = ", ".join(str(self.rng.randint(0, 99)) for _ in self.attributes)
            values_of_types["pair"] = f"ROW({values})::{self.name}_pair"
        return values_of_types

    def _update(self) -> None:
        typed_values = self._of_own_types() if self.ids and self.rng.random() < 0.5 else {}
        if typed_values:
            sets = ", ".join(f"{name} = {value}" for name, value in typed_values.items())
            self.statements.append(f"UPDATE {self.here} SET {sets} WHERE {self._some_rows()}")
        if not self.ids or not self.columns:
            return
        chosen = self.rng.sample(sorted(self.columns), k=self.rng.randint(1, min(2, len(self.columns))))
        sets = ", ".join(f"{_quoted(name)} = {self._value(self.columns[name])}" for name in chosen)
        self.statements.append(f"UPDATE {self.here} SET {sets} WHERE {self._some_rows()}")

    def _some_rows(self) -> str:
        row_id = self.rng.choice(sorted(self.ids))
        return self.rng.choice([f"id = {row_id}", f"id = {row_id}", "id % 2 = 0"])

    def _delete(self) -> None:
        if self.ids:
            row_id = self.rng.choice(sorted(self.ids))
            self.ids.discard(row_id)
            self.statements.append(f"DELETE FROM {self.here} WHERE id = {row_id}")

    def _move(self) -> None:
        free = self._free()
        if not self.ids or not free:
            return
        row_id, to = self.rng.choice(sorted(self.ids)), self.rng.choice(free)
        self.codes += 1
        sets = [f"id = {to}", f"code = {self.codes}"]
        if self.rng.random() < 0.5:
            to, sets = (row_id, sets[1:]) if self.rng.random() < 0.5 else (to, sets[:1])
        self.ids = self.ids - {row_id} | {to}
        self.statements.append(f"UPDATE {self.here} SET {', '.join(sets)} WHERE id = {row_id}")

    def _truncate(self) -> None:
        self.ids = set()
        self.statements.append(f"TRUNCATE {self.here}")
        self._insert()

    def _value(self, type_: str) -> str:
        number = self.rng.randint(0, 99)
        if self.rng.random() < 0.1:
            return "NULL"
        if type_ != "text":
            return str(number)
        return f"repeat(md5('{number}'), 100)" if self.rng.random() < 0.6 else f"'{number}'"

    # -- columns
    # ---------------------------------------------------------------------------------------------------

    def _alter(self, action: str) -> None:
        self.statements.append(f"ALTER TABLE {self.here} {action}")

    def _out_of_line(self, name: str) -> None:
        """Store long values of the column out of line: PostgreSQL does not send an unchanged value again."""
        self._alter(f"ALTER {_quoted(name)} SET STORAGE EXTERNAL")

    def _add(self, name: str | None = None) -> None:
        free = [
            free_name for free_name in _NAMES if free_name not in {column.lower() for column in self.columns}
        ]
        if name is None and not free:
            return
        name, type_ = name or self.rng.choice(free), self.rng.choice(_TYPES)
        default = f" DEFAULT {self._value('int')}" if self.rng.random() < 0.3 else ""
        self.columns[name] = type_
        self._alter(f"ADD {_quoted(name)} {type_}{default}")
        if default:
            self._alter(f"ALTER {_quoted(name)} DROP DEFAULT")
        if type_ == "text":
            self._out_of_line(name)

    def _add_volatile(self) -> None:
        """Add a column with a different default per row: PostgreSQL rewrites the table and logs nothing."""
        free = [
            free_name for free_name in _NAMES if free_name not in {column.lower() for column in self.columns}
        ]
        if free:
            name = self.rng.choice(free)
            self.columns[name] = "int"
            self._alter(f"ADD {name} int DEFAULT (random() * 99)::int")

    def _drop(self) -> None:
        self._drop_one()

    def _drop_one(self) -> str | None:
        if not self.columns:
            return None
        name = self.rng.choice(sorted(self.columns))
        del self.columns[name]
        self._alter(f"DROP {_quoted(name)}")
        return name

    def _pass_on(self) -> None:
        """Drop a column and add a new column with its name."""
        name = self._drop_one()
        if name is not None:
            self._add(name)

    def _rename(self) -> None:
        free = [
            free_name for free_name in _NAMES if free_name not in {column.lower() for column in self.columns}
        ]
        if self.columns and free:
            name, to = self.rng.choice(sorted(self.columns)), self.rng.choice(free)
            self.columns[to] = self.columns.pop(name)
            self._alter(f"RENAME {_quoted(name)} TO {to}")

    def _case(self) -> None:
        if self.columns:
            name = self.rng.choice(sorted(self.columns))
            to = name.swapcase()
            self.columns[to] = self.columns.pop(name)
            self._alter(f"RENAME {_quoted(name)} TO {_quoted(to)}")

    def _swap(self) -> None:
        if len(self.columns) > 1:
            first, second = self.rng.sample(sorted(self.columns), 2)
            self.columns[first], self.columns[second] = self.columns[second], self.columns[first]
            self._alter(f"RENAME {_quoted(first)} TO x")
            self._alter(f"RENAME {_quoted(second)} TO {_quoted(first)}")
            self._alter(f"RENAME x TO {_quoted(second)}")

    def _retype(self) -> None:
        """Change a column's type: PostgreSQL rewrites the table without a log entry."""
        if self.columns:
            name, type_ = self.rng.choice(sorted(self.columns)), self.rng.choice(_TYPES)
            self.columns[name] = type_
            using = "left(md5(id::text), 9)" if type_ == "text" else "id"
            self._alter(f"ALTER {_quoted(name)} TYPE {type_} USING {using}")
            if type_ == "text":
                self._out_of_line(name)

    def _widen(self) -> None:
        ints = sorted(name for name, type_ in self.columns.items() if type_ == "int")
        if ints:
            name = self.rng.choice(ints)
            self.columns[name] = "bigint"
            self._alter(f"ALTER {_quoted(name)} TYPE bigint")

    # -- what the log does not say
    # ------------------------------------------------------------------------------------------------------

    def _labels(self) -> None:
        """Swap two labels, add a label, or rename a label permanently or temporarily."""
        alter = f"ALTER TYPE {self.mood}"
        label, second_label = self.rng.sample(self.labels, 2)
        self.codes += 1
        new = f"l{self.codes}"
        match self.rng.choice(["trade", "rename", "add", "while"]):
            case "trade":
                names = ((label, "x"), (second_label, label), ("x", second_label))
                self.statements += [f"{alter} RENAME VALUE '{old}' TO '{name}'" for old, name in names]
            case "rename":
                self.labels[self.labels.index(label)] = new
                self.statements.append(f"{alter} RENAME VALUE '{label}' TO '{new}'")
            case "add":
                self.added.append(new)
                position = self.rng.choice(["BEFORE", "AFTER"])
                self.statements.append(f"{alter} ADD VALUE '{new}' {position} '{label}'")
            case _:
                self.statements.append(f"{alter} RENAME VALUE '{label}' TO '{new}'")
                self.labels[self.labels.index(label)] = new
                self._update()
                self.labels[self.labels.index(new)] = label
                self.statements.append(f"{alter} RENAME VALUE '{new}' TO '{label}'")

    def _attributes(self) -> None:
        """Add an attribute, drop an attribute, or drop an attribute and add it again."""
        alter = f"ALTER TYPE {self.name}_pair"
        if len(self.attributes) > 1 and self.rng.random() < 0.6:
            attribute = self.attributes.pop(self.rng.randrange(len(self.attributes)))
            self.statements.append(f"{alter} DROP ATTRIBUTE {attribute}")
            if self.rng.random() < 0.5:
                self.attributes.append(attribute)
                self.statements.append(f"{alter} ADD ATTRIBUTE {attribute} int")
        else:
            self.codes += 1
            self.attributes.append(f"z{self.codes}")
            self.statements.append(f"{alter} ADD ATTRIBUTE z{self.codes} int")

    def _parts(self) -> None:
        """Create or drop a partition, detach and attach it, empty it, or rewrite it."""
        if not self.partitioned:
            return
        several = "third" in self.kinds
        part, of, low, high = self.rng.choice(self._places())
        match self.rng.choice(["attach", "empty", "rewrite", *(["third"] * 3 if several else [])]):
            case "attach":
                self.statements += [
                    f"ALTER TABLE {of} DETACH PARTITION {part}",
                    f"UPDATE {part} SET code = code + 1000",
                    f"ALTER TABLE {of} ATTACH PARTITION {part} FOR VALUES FROM ({low}) TO ({high})",
                ]
            case "empty":
                first = 0 if low == "MINVALUE" else int(low)
                last = _FREE_IDS.stop if high == "MAXVALUE" else int(high)
                self.ids -= set(range(first, last))
                self.statements.append(f"TRUNCATE {part}")
            case "rewrite":
                index = f"{part}_rewritten"
                self.statements += [
                    f"CREATE INDEX {index} ON {part} (id)",
                    f"CLUSTER {part} USING {index}",
                    f"DROP INDEX {index}",
                ]
            case _ if self.third:
                self._remove_third()
            case _:
                self._make_third()

    def _places(self) -> list[tuple[str, str, str, str]]:
        """Return the partitions, each with its parent table and its bounds."""
        top = str(_THIRD) if "third" in self.kinds else "MAXVALUE"
        places = [("p1", self.here, "5", top)]
        if self.third:
            places.append(("p2", self.here, str(_THIRD), "MAXVALUE"))
        if self.deep:
            below = f"{self.name}_p0"
            places += [("p0a", below, "MINVALUE", "3"), ("p0b", below, "3", "5")]
        return [(f"{self.name}_{part}", of, low, high) for part, of, low, high in places]

    def _make_third(self) -> None:
        """Create and fill the partition; then perhaps empty and refill or drop it, or create it unlogged."""
        part = f"{self.name}_p2"
        how = self.rng.choice(["plain", "emptied", "unlogged", "came and went"])
        logged = "UNLOGGED " if how == "unlogged" else ""
        self.statements.append(
            f"CREATE {logged}TABLE {part} PARTITION OF {self.here} FOR VALUES FROM ({_THIRD}) TO (MAXVALUE)"
        )
        self.statements.append(f"ALTER TABLE {part} REPLICA IDENTITY {self.identity}")
        self.third = True
        for _ in range(3):
            self._insert()
        if how == "emptied":
            self.ids = {row_id for row_id in self.ids if row_id < _THIRD}
            self.statements.append(f"TRUNCATE {part}")
            self._insert()
        elif how == "unlogged":
            self.statements.append(f"ALTER TABLE {part} SET LOGGED")
        elif how == "came and went":
            self._remove_third()

    def _remove_third(self) -> None:
        self.third = False
        self.ids = {row_id for row_id in self.ids if row_id < _THIRD}
        self.statements.append(f"DROP TABLE {self.name}_p2")

    def _unpublished(self) -> None:
        if self.everywhere:
            return
        self.statements.append(f"ALTER PUBLICATION smelt DROP TABLE ONLY {self.here}")
        self.rng.choice([self._insert, self._update, self._delete])()
        self.statements.append(f"ALTER PUBLICATION smelt ADD TABLE ONLY {self.here}")

    def _filtered(self) -> None:
        if self.everywhere:
            return
        publication = "ALTER PUBLICATION smelt"
        self.statements += [
            f"{publication} DROP TABLE ONLY {self.here}",
            f"{publication} ADD TABLE ONLY {self.here} WHERE (id > 6)",
        ]
        self._insert()
        self.statements += [
            f"{publication} DROP TABLE ONLY {self.here}",
            f"{publication} ADD TABLE ONLY {self.here}",
        ]

    def _operations(self) -> None:
        """Publish only inserts for a while. Rarely, because the reader then copies every table again."""
        if self.rng.random() > 0.1:
            return
        self.statements.append("ALTER PUBLICATION smelt SET (publish = 'insert')")
        self.rng.choice([self._insert, self._update, self._delete])()
        self.statements.append("ALTER PUBLICATION smelt SET (publish = 'insert, update, delete, truncate')")

    def _unlogged(self) -> None:
        if self.partitioned:
            return
        if not self.everywhere:
            self.statements.append(f"ALTER PUBLICATION smelt DROP TABLE ONLY {self.here}")
        self.statements.append(f"ALTER TABLE {self.here} SET UNLOGGED")
        self._insert()
        self.statements.append(f"ALTER TABLE {self.here} SET LOGGED")
        if not self.everywhere:
            self.statements.append(f"ALTER PUBLICATION smelt ADD TABLE ONLY {self.here}")

    def _grant(self) -> None:
        if self.columns:
            name = _quoted(self.rng.choice(sorted(self.columns)))
            self.statements.append(f"GRANT SELECT ({name}) ON {self.here} TO PUBLIC")

    def _not_null(self) -> None:
        """Forbid NULL in a column for a while, then allow NULL again."""
        if self.columns:
            name = self.rng.choice(sorted(self.columns))
            value = "'0'" if self.columns[name] == "text" else "0"
            quoted = _quoted(name)
            self.statements.append(f"UPDATE {self.here} SET {quoted} = {value} WHERE {quoted} IS NULL")
            self._alter(f"ALTER {quoted} SET NOT NULL")
            if self.ids:
                self.statements.append(f"UPDATE {self.here} SET {quoted} = {value} WHERE {self._some_rows()}")
            self._alter(f"ALTER {quoted} DROP NOT NULL")

    def _call_type(self) -> None:
        new = f"{self.name}_mode" if self.mood.endswith("mood") else f"{self.name}_mood"
        self.statements.append(f"ALTER TYPE {self.mood} RENAME TO {new}")
        self.mood = new

    def _children(self) -> None:
        """Add rows to an inheriting table, then perhaps detach and attach it again, and drop it."""
        child = f"{AWAY}{self.name}_child"
        if self.partitioned:
            return
        if self.child is None:
            self.child = 0
            self.statements.append(f"CREATE TABLE {child} () INHERITS ({self.here})")
            if self.everywhere:
                self.statements.append(f"ALTER TABLE {child} REPLICA IDENTITY FULL")
        for _ in range(2):
            self.child += 1
            self.statements.append(
                f"INSERT INTO {child} (id, code) VALUES ({_OF_CHILD + self.child}, {self.child})"
            )
        if self.rng.random() < 0.5:
            return
        if self.rng.random() < 0.5:
            self.statements += [
                f"ALTER TABLE {child} NO INHERIT {self.here}",
                f"UPDATE {child} SET code = code + 1000",
                f"ALTER TABLE {child} INHERIT {self.here}",
            ]
            self._update()
        self._drop_child()

    def _drop_child(self) -> None:
        self.child = None
        self.statements.append(f"DROP TABLE {AWAY}{self.name}_child")

    # -- the table
    # -------------------------------------------------------------------------------------------------

    def _to(self, name: str) -> None:
        if self.here.startswith(ELSEWHERE):
            self._alter("SET SCHEMA public")
            self.here = self.name
        if self.here != name:
            self._alter(f"RENAME TO {name}")
            self.here = name

    def _move_away(self) -> None:
        """Move the table to another schema, until the end of the transaction at the latest."""
        self._to(self.name)
        if self.rng.random() < 0.7:
            self._alter(f"SET SCHEMA {ELSEWHERE}")
            self.here = f"{ELSEWHERE}.{self.name}"

    def _away(self) -> None:
        self._to(f"{self.name}_b" if self.here == self.name else self.name)

    def _out(self) -> None:
        self._to(f"{AWAY}{self.name}" if self.here == self.name else self.name)

    def _swap_tables(self) -> list[str]:
        """Fill a second table and give it the table's name."""
        self.made_again = True
        dropped = []
        if self.child is not None:
            self.child, dropped = None, [f"DROP TABLE {AWAY}{self.name}_child"]
        new, old = f"{self.name}_new", f"{self.name}_old"
        swap = f"ALTER TABLE {self.name} RENAME TO {old}; ALTER TABLE {new} RENAME TO {self.name}"
        return [
            *dropped,
            f"DROP TABLE IF EXISTS {old}",
            f"CREATE TABLE {new} (LIKE {self.name} INCLUDING ALL)",
            f"INSERT INTO {new} SELECT * FROM {self.name}",
            f"BEGIN; {swap}; UPDATE {self.name} SET code = code; COMMIT",
        ]

    def _key(self) -> None:
        if self.partitioned or self.made_again:
            return
        self.key = "code" if self.key == "id" else "id"
        self._alter("REPLICA IDENTITY DEFAULT")
        self._alter(f"DROP CONSTRAINT {self.name}_pk, ADD CONSTRAINT {self.name}_pk PRIMARY KEY ({self.key})")
        if self.key == "code":
            self._alter("ALTER id SET NOT NULL")

    def _identity(self) -> None:
        uses_index = not self.partitioned and not self.made_again
        kind = self.rng.choice(["FULL", "DEFAULT", *(["USING INDEX"] if uses_index else [])])
        index = f" {self.name}_code_key" if kind == "USING INDEX" else ""
        self._alter(f"REPLICA IDENTITY {kind}{index}")
        if self.partitioned and not ("root identity" in self.kinds and self.rng.random() < 0.5):
            self.identity = kind
            parts = [part for part, *_ in self._places()] + ([] if self.deep else [f"{self.name}_p0"])
            self.statements += [f"ALTER TABLE {part} REPLICA IDENTITY {kind}" for part in parts]


def _quoted(name: str) -> str:
    return name if name.islower() else f'"{name}"'
