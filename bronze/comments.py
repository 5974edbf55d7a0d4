"""Comments of a table and its columns at the source (COMMENT ON), as values. Pure.

A comment has no position in the log: PostgreSQL writes comments to its catalog, and the stream never carries
them. Bronze therefore stores comments apart from shapes (`bronze.store.comments`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST: Final = 4000
"""Greatest length of a stored comment in characters: each version of a table's log repeats all comments."""


@dataclass(frozen=True, slots=True)
class Comments:
    """The comments of one table at the time of one catalog poll."""

    # pg_class.oid of the table
    relation_id: int
    # the table's own comment; None without a comment
    table: str | None = None
    # comments by attnum, of replicated columns only; a column without a comment has no entry
    columns: Mapping[int, str] = field(default_factory=dict)
    # earlier comments of the table, as far as bronze has seen them
    former: frozenset[str] = field(default=frozenset(), compare=False)

    def __bool__(self) -> bool:
        """Check whether the table or any column has a comment."""
        return self.table is not None or bool(self.columns)

    def to_json(self) -> str:
        """Return compact JSON without `former`; equal values give equal text."""
        columns = {str(attnum): text for attnum, text in sorted(self.columns.items())}
        plain = {"relation_id": self.relation_id, "table": self.table, "columns": columns}
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the value from `to_json`'s text."""
        plain: dict[str, Any] = json.loads(text)
        columns = {int(attnum): comment for attnum, comment in plain["columns"].items()}
        return cls(plain["relation_id"], plain["table"], columns)


def bounded(text: str) -> str:
    """Return a comment of at most `LONGEST` characters; a shortened comment ends with an ellipsis."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
