"""Find the documents that a set of changed rows can have changed. Pure: a tree in, SQL out.

The argument. Let the document of a root differ between two cuts. Then somewhere in the tree the rows differ
in a column that the document reads. Choose a difference without a difference above it, towards the root. The
differing row is in the tree of at least one cut. So the row's image in this cut matches its parent, and all
rows above are equal in both cuts. Gold therefore only has to read both images of every changed row, at every
place of its table, and to walk up over *current* rows alone. If a row in between changed too, this row is a
changed row, and the walk starts from its images as well.

The result may name an unchanged root, or a root that no longer exists. The rebuild of such a root then gives
the present document, or deletes nothing. The result never lacks an affected root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.compile.clauses import CommonTable
from deltasmelt.gold.language.types import is_integer
from deltasmelt.gold.tree.derived import with_derived
from deltasmelt.gold.tree.nodes import Aggregate
from deltasmelt.silver.sql import as_json, comment, indented, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.tree.nodes import Node, Recursion, Scope, Tree

SIDE: Final = "_deltasmelt_side"
"""Column of a view of images: ``old`` or ``new``."""

PLACES: Final = "places"
"""Column of affected roots: the places from which the walk reached a root."""

CAME: Final = "came"
"""Column of affected roots, if the root's table changed: whether the root was absent before.

A root was added, or passes the `where` only now. Only such a root is a new document.
"""


@dataclass(frozen=True, slots=True)
class Affected:
    """A query for the roots that changes may have affected.

    Attributes:
        steps: queries to compute first, under these names.
        query: returns the keys of the roots, ``k0, k1 …``, each once, and `PLACES`: an array of the numbers
            of the places from which the walk reached the root; also `CAME` if `finds_new`.
        places: for each number: path of the place in the document (empty for the root) and its table.
    """

    steps: tuple[CommonTable, ...]
    query: str
    places: tuple[tuple[str, TableName], ...]
    finds_new: bool


def affected_roots(
    tree: Tree,
    changed: Iterable[TableName],
    images: Callable[[TableName], str],
    current: TableSql,
    *,
    broadcast: bool = False,
    filtered: bool = True,
) -> Affected | None:
    """Return a query for all roots that changed rows may affect; None if the document has no such table.

    Args:
        tree: the resolved document to walk.
        changed: tables that have changed rows.
        images: returns the view of a table's images: its key, the columns that the tree reads, and `SIDE`.
        current: returns the SQL relation of a silver table at the new cut.
        broadcast: the images easily fit one task. Spark cannot know the size, and would shuffle whole tables.
        filtered: drop the images and rows that a `where` excludes.
    """
    tables = set(changed)
    walk = _Walk(tree, with_derived(tree, current), broadcast=broadcast, filtered=filtered)
    branches: list[str] = []
    places: list[tuple[str, TableName]] = []
    if tree.root.table.table in tables:
        filters = [tree.root.where] if filtered else []
        keys = _changed_values(tree.root, filters, images(tree.root.table.table), tree.key, side=True)
        branches.append(f"{comment(str(tree.root.table.table))}\n{keys}")
        places.append(("", tree.root.table.table))
    for node in tree.nodes():
        for place, scope in reversed(list(enumerate(node.scopes))):
            table = scope.table.table
            if table not in tables:
                continue
            at_end = place == len(node.links)
            filters = [] if not filtered else _filters(node) if at_end else [scope.where]
            values = _changed_values(scope, filters, images(table), finding(node, place))
            branches.append(comment(f"{node.scope.label}: {table}") + "\n" + walk.up(node, place, values))
            places.append((node.scope.label, table))
    if not branches:
        return None
    typed = [
        f"try_cast(v{i} AS {tree.root.table.column(column).spark_type}) AS k{i}"
        for i, column in enumerate(tree.key)
    ]
    finds_new = places[0][0] == ""
    side = ["side", *("NULL AS side" for _ in branches[1:])] if finds_new else []
    union = "\nUNION ALL\n".join(
        f"SELECT {', '.join([*typed, f'{number} AS place', *side[number:][:1]])} FROM (\n"
        f"{indented(branch, '  ')}\n)"
        for number, branch in enumerate(branches)
    )
    # A root with an old image in the document is not new; `max` prefers ``old``.
    came = f", coalesce(max(side) = 'new', false) AS {CAME}" if finds_new else ""
    keys = ", ".join(f"k{i}" for i in range(len(tree.key)))
    has_key = " AND ".join(f"k{i} IS NOT NULL" for i in range(len(tree.key)))
    query = (
        f"SELECT {keys}, collect_set(place) AS {PLACES}{came} FROM (\n{indented(union, '  ')}\n)\n"
        f"WHERE {has_key}\nGROUP BY {keys}"
    )
    return Affected(tuple(walk.steps), query, tuple(places), finds_new)


class _Walk:
    """A walk from values of join columns to keys of roots. Values are columns ``v0, v1 …`` of a subquery."""

    def __init__(self, tree: Tree, current: TableSql, *, broadcast: bool, filtered: bool) -> None:
        self._hint = "/*+ BROADCAST(c) */ " if broadcast else ""
        self._tree = tree
        self._current = current
        self._filtered = filtered
        self._above = {id(child.scope): child for child in tree.nodes()}
        self.steps: list[CommonTable] = []

    def up(self, node: Node, place: int, values: str) -> str:
        """Walk up from the values that find the rows of a node, or of a link before the node (`place`)."""
        if node.recursion is not None:
            return self.up_from_parents(node, self._levels(node, node.recursion, values))
        if place == 0:
            return self.up_from_parents(node, values)
        on, before = node.on_at(place), node.links[place - 1]
        matched, columns = [theirs for _, theirs in on], [this for this, _ in before.on]
        return self.up(node, place - 1, self._match(before.scope, matched, columns, values))

    def up_from_parents(self, node: Node, values: str) -> str:
        """Walk up from `values` of the parent's columns that find the node's rows."""
        tree, parent, matched = self._tree, node.parent, node.parent_columns
        if parent is tree.root:
            if sorted(matched) == sorted(tree.key) and _of_one_type(node):
                # The values are already keys of roots; the build shows whether the root exists.
                selected = ", ".join(f"v{matched.index(name)} AS v{i}" for i, name in enumerate(tree.key))
                is_key = list(matched) == list(tree.key)
                return values if is_key else f"SELECT {selected} FROM (\n{indented(values, '  ')}\n)"
            return self._match(parent, matched, tree.key, values)
        above = self._above[id(parent)]
        columns = finding(above, len(above.links))
        return self.up(above, len(above.links), self._match(parent, matched, columns, values))

    def _levels(self, node: Node, recursion: Recursion, values: str) -> str:
        """Walk from rows at any level of a recursion to the values that find rows of the first level."""
        columns = finding(node, 0)
        matched = [theirs for _, theirs in recursion.on]
        # Each level reads these rows again, so they are a separate step.
        name = f"walked{len(self.steps)}"
        label = f"{node.scope.label}: rows of {node.scope.table.table} to walk up from"
        self.steps.append(CommonTable(name, label, f"SELECT DISTINCT * FROM (\n{indented(values, '  ')}\n)"))
        values = f"SELECT * FROM {name}"
        below = [f"v{columns.index(this)}" for this, _ in recursion.on]
        walked = values
        # Cycles need no care: the tree without its cycles is a part of the walked tree.
        for _ in range(recursion.depth - 1):
            selected = ", ".join(f"{name} AS v{i}" for i, name in enumerate(below))
            inner = f"SELECT {selected} FROM (\n{indented(walked, '  ')}\n)"
            walked = f"{values}\nUNION ALL\n{self._match(node.scope, matched, columns, inner)}"
        first = ", ".join(f"v{columns.index(this)} AS v{i}" for i, (this, _) in enumerate(node.on))
        return f"SELECT DISTINCT {first} FROM (\n{indented(walked, '  ')}\n)"

    def _match(self, scope: Scope, matched: Sequence[str], columns: Sequence[str], values: str) -> str:
        """Return columns `columns` of a scope's current rows whose columns `matched` have a given value."""
        selected = ", ".join(f"{quote('t', name)} AS v{i}" for i, name in enumerate(columns))
        condition = " AND ".join(f"{quote('t', name)} = c.v{i}" for i, name in enumerate(matched))
        lines = [
            f"SELECT {self._hint}{selected}",
            f"FROM {self._current(scope.table.table)} AS t",
            f"LEFT SEMI JOIN (\n{indented(values, '  ')}\n) AS c ON {condition}",
        ]
        if scope.where is not None and self._filtered:
            lines.append(f"WHERE {scope.where.sql('t')}")
        return "\n".join(lines)


def _of_one_type(node: Node) -> bool:
    """Check whether the values that find a node's rows convert to the parent's types without loss."""
    mine, theirs = node.scopes[0].table, node.parent.table
    types = [(mine.column(a).spark_type, theirs.column(b).spark_type) for a, b in node.on_at(0)]
    # Several whole numbers may equal a floating-point number, and a cast gives only one.
    return all(first == second or (is_integer(first) and is_integer(second)) for first, second in types)


def finding(node: Node, place: int) -> list[str]:
    """Return the columns by which rows of a node's scope are found from the previous scope or level."""
    names = [this for this, _ in node.on_at(place)]
    if node.recursion is None:
        return names
    return list(dict.fromkeys(names + [this for this, _ in node.recursion.on]))


def _filters(node: Node) -> list[Expression | None]:
    if isinstance(node, Aggregate):
        return [measure.where for measure in node.measures]
    return [node.scope.where]


def _changed_values(
    scope: Scope,
    filters: Sequence[Expression | None],
    images: str,
    columns: Sequence[str],
    *,
    side: bool = False,
) -> str:
    """Return values of the columns `columns` in images that differ at the scope's place; `side` if asked."""
    key = [quote("t", name) for name in scope.table.key]
    others = sorted(scope.reads - set(scope.table.key))
    # A row whose old and new image are in a single group did not change for this place.
    grouping = list(key)
    if others:
        grouping.append(as_json(quote("t", name) for name in others))
    selected = ", ".join(f"any_value({quote('t', name)}) AS v{i}" for i, name in enumerate(columns))
    selected += f", min(t.{SIDE}) AS side" if side else ""
    lines = [f"SELECT {selected}", f"FROM {images} AS t"]
    # An image that fails the place's `where` was not in the document. If at least one aggregate reads all
    # rows, the query can drop no image.
    texts = [f"({condition.sql('t')})" for condition in filters if condition is not None]
    if texts and len(texts) == len(filters):
        lines.append(f"WHERE {' OR '.join(dict.fromkeys(texts))}")
    lines += [f"GROUP BY {', '.join(grouping)}", f"HAVING min(t.{SIDE}) = max(t.{SIDE})"]
    return "\n".join(lines)
