"""Comments that a table and its columns have at the source (COMMENT ON), as values. Pure.

They belong to no position in the log: PostgreSQL writes them to its catalog, and the stream says nothing of
them. So they are kept apart from shapes (`bronze.store.comments`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST: Final = 4000
"""Characters of a comment that are kept: each version of a table's log repeats all of them."""


@dataclass(frozen=True, slots=True)
class Comments:
    """What a look at the catalog saw.

    Attributes:
        relation_id: pg_class.oid.
        table: the table's own comment; None where it has none.
        columns: by attnum, of the columns that are read; those without a comment are left out.
        former: comments that the table had before, as far as bronze has seen them.
    """

    relation_id: int
    table: str | None = None
    columns: Mapping[int, str] = field(default_factory=dict)
    former: frozenset[str] = field(default=frozenset(), compare=False)

    def __bool__(self) -> bool:
        """Whether there is any comment."""
        return self.table is not None or bool(self.columns)

    def to_json(self) -> str:
        """Compact JSON, without what was before; equal values give equal text."""
        columns = {str(attnum): text for attnum, text in sorted(self.columns.items())}
        plain = {"relation_id": self.relation_id, "table": self.table, "columns": columns}
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        plain: dict[str, Any] = json.loads(text)
        columns = {int(attnum): comment for attnum, comment in plain["columns"].items()}
        return cls(plain["relation_id"], plain["table"], columns)


def bounded(text: str) -> str:
    """A comment of at most `LONGEST` characters; where some are left out, it ends with an ellipsis."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
