"""`control.erasures`: what `smelt forget` has erased, by whom, and which erasures are unfinished.

An erasure has a row for each of its states and subjects, all with its id. Without the rows of its end the
erasure is unfinished, and the next call for the same subjects finishes it. The table names a subject by a
keyed digest alone: the key of the digest is no part of the lake, so nobody can find the subject by a search
over all possible keys.
"""

from __future__ import annotations

import hmac
import json
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa

from deltasmelt.bronze.figures import moment_text
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_table import ControlTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.lake.location import Lake

ERASURES: Final = "erasures"
State: TypeAlias = Literal["started", "rewritten", "searched", "finished", "abandoned"]
"""States of an erasure: `rewritten` precedes the commit to bronze, `searched` follows the search."""
_ENDS: Final = frozenset({"finished", "abandoned"})
ERASURES_SCHEMA: Final = pa.schema(
    [
        pa.field("erasure_id", pa.string()),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
        # `started`, `rewritten`, `searched`, and `finished` or `abandoned`
        pa.field("state", pa.string()),
        # the source's table, `schema.table`
        pa.field("table_name", pa.string()),
        # HMAC-SHA-256 of table and key
        pa.field("key_digest", pa.string()),
        # silver's newest cut at the erasure
        pa.field("commit_lsn", pa.int64()),
        # account and machine
        pa.field("done_by", pa.string()),
        # counts of rows, files, cuts and searched values up to this state, as JSON; NULL at the start
        pa.field("counts", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Begun:
    """An erasure, by the columns of the table that its states share."""

    erasure_id: str
    table_name: str
    digests: frozenset[str]
    commit_lsn: int
    done_by: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An erasure without an end."""

    erasure_id: str
    table: str
    digests: frozenset[str]
    since: datetime
    # Number of the records whose values the last call searched for, all up to the LSN `until`; None before
    # the first commit to bronze, and after the search.
    records: int | None = None
    until: int = 0
    # whether bronze was rewritten
    rewritten: bool = False

    @property
    def error(self) -> OpenError:
        """The error that stays open until the erasure ends."""
        return OpenError(
            "pipeline",
            self.table,
            "erasure-unfinished",
            f"an erasure in {self.table} began at {moment_text(self.since)} and has not ended "
            f"({len(self.digests)} keys, the first with the digest {min(self.digests)[:12]}…)",
            f"stop all stages, then again with the same keys: smelt forget FILE {self.table} --key KEY; if "
            f"that is impossible: smelt forget FILE {self.table} --abandon",
            opened_at=self.since,
        )


def digest_of(table: str, key: Sequence[str], secret: bytes) -> str:
    """Return the keyed digest that stands for a subject."""
    return hmac.digest(secret, json.dumps([table, *key]).encode(), "sha256").hex()


class Erasures:
    """The erasures of one lake."""

    def __init__(self, lake: Lake) -> None:
        # Elsewhere nothing is erased, and a question would cost a request.
        self._local = lake.folder is not None
        self._uri = lake.uri("control", ERASURES)
        self._table = ControlTable(self._uri, ERASURES_SCHEMA, "Erasures of `smelt forget`")

    def record(self, erasure: Begun, state: State, counts: Mapping[str, Any] | None = None) -> None:
        """Record a state of an erasure; durable on return."""
        common = {
            "erasure_id": erasure.erasure_id,
            "recorded_at": datetime.now(UTC),
            "state": state,
            "table_name": erasure.table_name,
            "commit_lsn": erasure.commit_lsn,
            "done_by": erasure.done_by,
            "counts": None if counts is None else json.dumps(counts),
        }
        self._table.append([{**common, "key_digest": digest} for digest in sorted(erasure.digests)])

    def unfinished(self) -> list[Unfinished]:
        """Return the erasures without an end, oldest first; create nothing."""
        if not self._local or delta.open_table(self._uri) is None:
            return []
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in sorted(self._table.rows().to_pylist(), key=lambda row: row["recorded_at"]):
            groups[row["erasure_id"]].append(row)
        return [
            _unfinished(name, rows)
            for name, rows in groups.items()
            # Whatever the clock shows: no state follows an end.
            if not _ENDS & {row["state"] for row in rows}
        ]


def _unfinished(name: str, rows: Sequence[Mapping[str, Any]]) -> Unfinished:
    erasure = Unfinished(
        name,
        rows[0]["table_name"],
        frozenset(row["key_digest"] for row in rows),
        rows[0]["recorded_at"],
        rewritten=any(row["state"] == "rewritten" for row in rows),
    )
    last = next((row for row in reversed(rows) if row["state"] != "started"), None)
    if last is None or last["state"] == "searched":
        return erasure
    return replace(erasure, records=json.loads(last["counts"])["bronze_rows"], until=last["commit_lsn"])
