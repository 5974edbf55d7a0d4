"""Read old and new images of rows from silver's change feed. Pure: names in, SQL out.

The feed contains every step between two cuts. Gold compares two cuts, so the steps between do not matter. The
first image of a key is the old image, if of a row that left (``update_preimage``, ``delete``). The last image
is the new image, if of a row that arrived. A row that arrived and left within the steps has neither. A
version that deletes and inserts a key (an overwritten table) gives both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.gold.incremental.affected import SIDE
from deltasmelt.silver.schema.live_rows import IS_LIVE
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

_WENT: Final = "_change_type IN ('update_preimage', 'delete')"
_CAME: Final = "_change_type IN ('update_postimage', 'insert')"


class ChangeFeedUnreadableError(Exception):
    """The changes between two cuts cannot be read; the message gives the reason. Gold then builds in full."""


def recreated(silver_name: str) -> str:
    """Return why gold cannot compare versions of a table whose version number decreased."""
    return f"silver.{silver_name} was recreated since the last build"


def images_query(
    feed: str, key: Sequence[str], columns: Sequence[str], *, steps: int, soft: bool = False
) -> str:
    """Return a query for images of changed rows: `columns`, and `gold.incremental.affected.SIDE`.

    `columns` include the key; `steps` is the number of versions that the feed covers.
    """
    selected = ", ".join(quote(name) for name in columns)
    side = f"CASE WHEN {_WENT} THEN 'old' ELSE 'new' END AS {SIDE}"
    if steps == 1:
        return f"SELECT {selected}, {side}\nFROM {feed}" + (f"\nWHERE {IS_LIVE}" if soft else "")
    # A row marked as deleted no longer counts: the row's update has only an old image.
    live = f"{IS_LIVE} AND " if soft else ""
    partition = ", ".join(quote(name) for name in key)
    return (
        f"SELECT {selected}, {side}\nFROM (\n"
        f"  SELECT *, min(_commit_version) OVER (PARTITION BY {partition}) AS _first,\n"
        f"    max(_commit_version) OVER (PARTITION BY {partition}) AS _last\n"
        f"  FROM {feed}\n)\n"
        f"WHERE {live}(({_WENT} AND _commit_version = _first)\n  OR ({_CAME} AND _commit_version = _last))"
    )
