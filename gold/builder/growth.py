"""Estimate how much the changed rows of a table make documents grow. Pure: names in, SQL out.

An update has an old and a new image. If both images are at one place, the document's number of rows is
unchanged, and only its texts may be longer. A place is made of the columns that assign a row to documents:
the key, the columns of joins, and the columns of conditions. A new image at a place without an old image is
one more row at this place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.gold.builder.widths import is_fixed
from deltasmelt.gold.incremental.affected import SIDE
from deltasmelt.gold.language import types
from deltasmelt.silver.sql import as_json, indented, quote

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Scope, Tree


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth from a table's changed rows.

    `rows` is the number of rows that came to a place, `bytes` the added bytes of texts in rows that stay at
    their place.
    """

    rows: int
    bytes: int


def growth_query(tree: Tree, table: TableName, images: str, columns: Collection[str]) -> str:
    """Return a query for one row: `Growth`'s values. `images` is a relation with `columns` and `SIDE`."""
    found = tree.tables()[table]
    placing = [name for name in sorted(_placing(tree, table)) if name in columns]
    rest = {quote(name): types.base(found.column(name).spark_type) for name in {*columns} - {*placing}}
    texts = [
        name if kind in {"STRING", "BINARY"} else as_json([name])
        for name, kind in sorted(rest.items())
        if not is_fixed(kind)
    ]
    length = " + ".join(f"coalesce(octet_length({text}), 0)" for text in texts) or "0"
    grouping = [quote(name) for name in found.key]
    by = [quote(name) for name in placing if name not in found.key]
    grouping += [as_json(by)] if by else []
    sign = f"CASE WHEN {SIDE} = 'new' THEN 1 ELSE -1 END"
    inner = [f"sum({sign}) AS came", f"sum({sign} * ({length})) AS longer"]
    outer = [
        # Rows that left a document elsewhere reduce no document here, so the estimate subtracts nothing.
        "coalesce(sum(greatest(came, 0)), 0)",
        "coalesce(sum(CASE WHEN came = 0 THEN greatest(longer, 0) END), 0)",
    ]
    places = f"SELECT {', '.join(inner)}\nFROM {images}\nGROUP BY {', '.join(grouping)}"
    return f"SELECT {', '.join(outer)}\nFROM (\n{indented(places, '  ')}\n)"


def _placing(tree: Tree, table: TableName) -> set[str]:
    """Return the columns of a table by which the document assigns a row to its place."""
    found: set[str] = set(tree.tables()[table].key)

    def add(scope: Scope, names: Collection[str]) -> None:
        if scope.table.table == table:
            found.update(names)

    for scope in tree.scopes():
        add(scope, () if scope.where is None else scope.where.columns)
    for node in tree.nodes():
        before = node.parent
        for place, scope in enumerate(node.scopes):
            add(scope, [this for this, _ in node.on_at(place)])
            add(before, [theirs for _, theirs in node.on_at(place)])
            before = scope
        for pair in () if node.recursion is None else node.recursion.on:
            add(node.scope, pair)
    return found
