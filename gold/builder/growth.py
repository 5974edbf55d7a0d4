"""How much the changed rows of a table make documents grow. Pure: names in, SQL out.

An update has an old and a new image. Where both stand at the same place, the document has as many rows as
before, and is longer by its texts alone. A place is what decides to which documents a row belongs: its key,
the columns that joins use, and those of conditions. A new image at a place without an old one is a row more
there. What left a document elsewhere makes none smaller here, so it is not taken off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.gold.builder.widths import is_fixed
from deltasmelt.gold.incremental.affected import SIDE
from deltasmelt.gold.language import types
from deltasmelt.silver.sql import as_json, indented, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Scope, Tree


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed rows of a table add.

    Attributes:
        rows: that came to some place.
        bytes: of texts of rows that stay where they are.
    """

    rows: int
    bytes: int


def growth_query(
    tree: Tree, table: TableName, images: str, columns: Collection[str], counts: Sequence[str]
) -> str:
    """Return a query for one row: the number of images, `Growth`'s values, then sums of `counts`.

    Args:
        tree: the document.
        table: whose rows changed.
        images: their images; `columns`, and `SIDE`.
        columns: that the images have.
        counts: aggregates over the images, each with a name.
    """
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
    inner = ["count(*) AS n", f"sum({sign}) AS came", f"sum({sign} * ({length})) AS longer", *counts]
    named = [count.rpartition(" AS ")[2] for count in counts]
    outer = [
        "coalesce(sum(n), 0)",
        "coalesce(sum(greatest(came, 0)), 0)",
        "coalesce(sum(CASE WHEN came = 0 THEN greatest(longer, 0) END), 0)",
        *(f"coalesce(sum({name}), 0)" for name in named),
    ]
    places = f"SELECT {', '.join(inner)}\nFROM {images}\nGROUP BY {', '.join(grouping)}"
    return f"SELECT {', '.join(outer)}\nFROM (\n{indented(places, '  ')}\n)"


def _placing(tree: Tree, table: TableName) -> set[str]:
    """The columns of a table by which the document decides where a row belongs."""
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
