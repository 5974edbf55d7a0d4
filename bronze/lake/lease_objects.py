"""Content of a lease object, the times that follow from it, and the interface of conditional writes.

Each lease (`bronze.lake.leases`) is stored in an object of a store or in a row of a catalog's table. Several
processes may write the object or row, each conditionally.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from deltasmelt.bronze.config.timing import LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Found:
    """An object or row, as read or written."""

    body: bytes
    # identifies exactly this content; a write may require that the tag is unchanged
    tag: str
    # tag for Google Cloud Storage, which compares generations instead
    version: str | None = None


class CompareAndSwap(Protocol):
    """Storage with conditional writes: `bronze.lake.objects` or `bronze.lake.catalog.lease_rows`."""

    def read(self, root: str, name: str, /) -> Found | None:
        """Return the content under a name."""

    def put(self, root: str, name: str, body: bytes, /, *, over: Found | None) -> Found | None:
        """Write if `over` is still the content; return None if another writer was faster."""


# The name of a catalog's table of leases within `control`.
LEASES: Final = "leases"
_LOOKS: Final = 1.0
# Identifies this process among all processes of all machines; a forked child has the same value.
HOLDER: Final = uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a lease in seconds; all follow from the lease's duration."""

    # validity after a write; the object states the duration, so watchers wait equally long
    seconds: float = LEASE_SECONDS

    @property
    def renewed_after(self) -> float:
        """Time between two writes of a holder."""
        return self.seconds / 4

    @property
    def margin(self) -> float:
        """Time before the end of the lease during which the holder starts no commit."""
        return self.seconds / 4

    @property
    def grace(self) -> float:
        """Additional time for which a watcher must see no change before a takeover."""
        return self.seconds / 4

    @property
    def looks(self) -> float:
        """Time between two polls of a watcher."""
        return min(_LOOKS, self.seconds / 20)


def body_of(command: str, pace: Pace, *, free: bool = False) -> bytes:
    """Return the content of a lease object; no two bodies are equal, so their tags differ."""
    said = {
        "holder": None if free else HOLDER,
        "command": command,
        "seconds": pace.seconds,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "put": datetime.now(UTC).isoformat(timespec="seconds"),
        "once": uuid.uuid4().hex,
    }
    return json.dumps(said).encode()


def said(found: Found) -> dict[str, Any]:
    """Return the fields of a lease object; empty if the object has a foreign format."""
    try:
        fields = json.loads(found.body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def is_free(found: Found | None) -> bool:
    """Check whether the holder gave the lease back."""
    return found is not None and said(found).get("holder", "") is None


def held_by(found: Found | None) -> str:
    """Return a description of the holder for messages."""
    fields = {} if found is None else said(found)
    if not {"command", "pid", "host", "put"} <= fields.keys():
        return "by an unknown process"
    return "by `{command}`, process {pid} on {host}, last seen {put}".format(**fields)


def patience_of(found: Found) -> float:
    """Return how many seconds the object must be unchanged before another process may take the lease."""
    seconds = said(found).get("seconds")
    theirs = Pace(float(seconds) if isinstance(seconds, int | float) else LEASE_SECONDS)
    return theirs.seconds + theirs.grace
