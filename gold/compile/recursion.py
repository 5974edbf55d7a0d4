"""Join a table to itself, level by level, as steps of a document's query. Pure.

*Down.* The first step builds each row's own fields once. Then one relation grows. Each row of the relation is
a path down from the parent: the row of every level (``r1, r2 …``) and the keys of all rows (``p1, p2 …``). A
row whose key is already on the path would close a cycle. The step marks the row (``a2, a3 …``); a marked row
goes no further and is no element.

*Up.* From the last level to the first, paths equal up to the level above form a group. The rows of the level
become the elements of the row above. The keys identify a path, not the last row. So for a row on several
paths the elements below contain, on each path, all rows except the rows above.

The query reads no step except the rows twice, so the query grows by one join and one group per level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.compile.clauses import (
    CommonTable,
    collected,
    either,
    filtered,
    numbered,
    ordered,
    row_number,
    select,
    struct,
    subquery,
)
from deltasmelt.gold.tree.nodes import Many, One
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltasmelt.gold.tree.nodes import Pairs, Recursion


class RecursionSteps:
    """The steps of a node with a recursion.

    Args:
        rows: the relation of the node's table.
        parent: the relation of the parent's rows.
        fields: names and expressions of the row's own fields, over ``t``.
        joins: of the children, to ``t``.
        below: flags that children can raise, each with its condition.
    """

    def __init__(
        self,
        node: One | Many,
        recursion: Recursion,
        *,
        rows: str,
        parent: str,
        fields: Sequence[tuple[str, str]],
        joins: Sequence[str],
        below: Mapping[str, str],
    ) -> None:
        self._node = node
        self._recursion = recursion
        self._rows = rows
        self._parent = parent
        self._fields = fields
        self._joins = joins
        self._below = below
        self._map_by = node.map_by if isinstance(node, Many) else None
        names = [
            *node.scope.table.key,
            *(column for pairs in (node.on, recursion.on) for column, _ in pairs),
            *(column for _, column in recursion.on),
            *(column.column for column in node.order),
            *([] if self._map_by is None else [self._map_by]),
        ]
        self._column = {name: f"c{i}" for i, name in enumerate(dict.fromkeys(names))}
        self._own = {"cut": "bool_or(again)"}
        if node.may_match_several:
            self._own["several"] = "count_if(there) > 1"
        self._flags = list(dict.fromkeys([*self._own, *below]))

    def steps(self) -> list[CommonTable]:
        """Return the steps from the rows to the parent's join: ``k0, k1 …``, ``item`` and the flags."""
        where = self._node.scope.where
        columns = [f"{quote('t', name)} AS {column}" for name, column in self._column.items()]
        item = struct(self._fields) if self._fields else "true"
        output = [
            *columns,
            f"{item} AS item",
            *(f"{condition} AS {flag}" for flag, condition in self._below.items()),
        ]
        conditions = [] if where is None else [where.sql("t")]
        steps = [
            self._step("rows", "its rows", select(output, f"{self._rows} AS t", self._joins, conditions))
        ]
        steps.append(self._step("1", "level 1", self._first()))
        depth = self._recursion.depth
        steps += [self._step(str(k), f"down to level {k}", self._down(k)) for k in range(2, depth + 1)]
        steps += [self._step(f"up{k}", f"up from level {k}", self._up(k)) for k in range(depth, 1, -1)]
        label = f"{self._node.scope.label}: {self._node.scope.table.table}, {depth} levels"
        return [*steps, CommonTable(self._node.name, label, self._up(1))]

    def _step(self, suffix: str, comment: str, sql: str) -> CommonTable:
        return CommonTable(self._name(suffix), f"{self._node.scope.label}: {comment}", sql)

    def _name(self, suffix: str) -> str:
        return f"{self._node.name}_{suffix}"

    def _key(self, alias: str) -> str:
        names = self._node.scope.table.key
        return struct((f"k{i}", f"{alias}.{self._column[name]}") for i, name in enumerate(names))

    def _matches(self, pairs: Pairs, column_of: Callable[[str], str]) -> str:
        return " AND ".join(f"s.{self._column[this]} = {column_of(theirs)}" for this, theirs in pairs)

    def _first(self) -> str:
        """Return level 1: the rows that the parent's columns find."""
        node, rows = self._node, self._name("rows")
        if not node.from_own_table:
            keys = [f"s.{self._column[this]}" for this, _ in node.on]
            columns = [*numbered(keys), "struct(s.*) AS r1", "false AS a1", f"array({self._key('s')}) AS p1"]
            return select(columns, f"{rows} AS s", (), [f"{key} IS NOT NULL" for key in keys])
        # The parent is a row of the recursive table, so its key begins the path.
        names = node.scope.table.key
        keys = [quote("p", name) for name in names]
        above = struct((f"k{i}", key) for i, key in enumerate(keys))
        columns = [
            *numbered(keys),
            "struct(s.*) AS r1",
            f"{above} = {self._key('s')} AS a1",
            f"array({above}, {self._key('s')}) AS p1",
        ]
        matches = self._matches(node.on, lambda theirs: quote("p", theirs))
        return select(columns, f"{self._parent} AS p", [f"JOIN {rows} AS s ON {matches}"])

    def _down(self, level: int) -> str:
        """Return the next level."""
        level_above = level - 1
        exists = f"s.{self._column[self._node.scope.table.key[0]]} IS NOT NULL"
        key, way = self._key("s"), f"c.p{level_above}"
        columns = [
            "c.*",
            f"CASE WHEN {exists} THEN struct(s.*) END AS r{level}",
            f"{exists} AND array_contains({way}, {key}) AS a{level}",
            # A path that ends keeps its keys, and so remains a separate group.
            f"CASE WHEN {exists} THEN concat({way}, array({key})) ELSE {way} END AS p{level}",
        ]
        matches = self._matches(self._recursion.on, lambda theirs: f"c.r{level_above}.{self._column[theirs]}")
        join = f"LEFT JOIN {self._name('rows')} AS s ON {matches} AND NOT c.a{level_above}"
        return select(columns, f"{self._name(str(level_above))} AS c", [join])

    def _up(self, level: int) -> str:
        """Return the rows of a level as elements of the row above; paths now equal become a single row."""
        node, last = self._node, level == self._recursion.depth
        source = self._name(str(level) if last else f"up{level + 1}")
        groups = self._keys() if level == 1 else [f"p{level - 1}"]
        carried = [] if level == 1 else [*self._keys()]
        for above in range(1, level):
            carried += [f"r{above}", f"a{above}", f"p{above}"]
        fields = [(name, f"x.r{level}.item.{quote(name)}") for name, _ in self._fields]
        # The deepest rows have no field for rows below.
        if not last:
            fields.append((self._recursion.name, "x.item"))
        exists = f"x.r{level} IS NOT NULL AND NOT x.a{level}"
        partition = [f"x.{group}" for group in groups]
        order = [f"{exists} DESC"] + [
            ordered(column, f"x.r{level}.{self._column[column.column]}") for column in node.order
        ]
        columns = [
            *(f"x.{name}" for name in dict.fromkeys([*groups, *carried])),
            f"{exists} AS there",
            f"x.a{level} AS again",
            f"{row_number(partition, order)} AS n",
            f"{struct(fields) if fields else 'true'} AS item",
            *(f"{below} AS {flag}" for flag, below in self._below_level(level, last=last).items()),
        ]
        conditions = ["there"]
        if isinstance(node, Many) and node.limit is not None:
            conditions.append(f"n <= {node.limit}")
        if self._map_by is not None:
            name = f"x.r{level}.{self._column[self._map_by]}"
            columns += [f"{name} AS name", f"{row_number([*partition, name], order)} AS same"]
            conditions += ["name IS NOT NULL", "same = 1"]
        if isinstance(node, One):
            conditions.append("n = 1")
        item = (
            f"any_value(item){filtered(conditions)}" if isinstance(node, One) else collected(node, conditions)
        )
        carried_values = [f"any_value({name}) AS {name}" for name in carried if name not in groups]
        output = [*groups, *carried_values, f"{item} AS item", *self._flagged(level, conditions, last=last)]
        return select(output, subquery(select(columns, f"{source} AS x"))) + f"\nGROUP BY {', '.join(groups)}"

    def _below_level(self, level: int, *, last: bool) -> dict[str, str]:
        """Return the conditions of all flags that rows below a row of a level can raise."""
        own_flags = {flag: f"x.r{level}.{flag}" for flag in self._below}
        further = {} if last else {flag: f"x.{flag}" for flag in self._flags}
        return {
            flag: either(own_flags.get(flag, ""), further.get(flag, ""))
            for flag in self._flags
            if flag in own_flags or flag in further
        }

    def _flagged(self, level: int, only: Sequence[str], *, last: bool) -> list[str]:
        """Return the flags of a group: its own flags, and the flags of rows below its elements."""
        below = self._below_level(level, last=last)
        return [
            either(
                self._own.get(flag, ""),
                f"coalesce(bool_or({flag}){filtered(only)}, false)" if flag in below else "",
            )
            + f" AS {flag}"
            for flag in self._flags
        ]

    def _keys(self) -> list[str]:
        count = len(self._node.scope.table.key) if self._node.from_own_table else len(self._node.on)
        return [f"k{i}" for i in range(count)]
