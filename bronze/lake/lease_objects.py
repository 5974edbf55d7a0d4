"""What a lease's object says, and the times that follow from it (`bronze.lake.leases`).

What several processes may write, each on condition: `objects` of a store, rows of a catalog's table.

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
    """An object or row as it was read, or put.

    Attributes:
        body: its bytes.
        tag: names this very content; a put may ask that it is still there.
        version: the same for Google Cloud Storage, which compares generations instead.
    """

    body: bytes
    tag: str
    version: str | None = None


class CompareAndSwap(Protocol):
    """Where such things are kept: `bronze.lake.objects`, or `bronze.lake.catalog.lease_rows`."""

    def read(self, root: str, name: str, /) -> Found | None:
        """What is there under a name."""

    def put(self, root: str, name: str, body: bytes, /, *, over: Found | None) -> Found | None:
        """Put it where `over` still is there, or nothing; None where another writer was first."""


_LOOKS: Final = 1.0
HOLDER: Final = uuid.uuid4().hex
"""Names this process among all of all machines; after a fork it still names one holder."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a lease, in seconds; all follow from how long it holds.

    Attributes:
        seconds: how long it holds after it was put; the object says it, so that watchers wait as long.
    """

    seconds: float = LEASE_SECONDS

    @property
    def renewed_after(self) -> float:
        """Between two puts of a holder."""
        return self.seconds / 4

    @property
    def margin(self) -> float:
        """So long before its end the holder no longer begins a commit."""
        return self.seconds / 4

    @property
    def grace(self) -> float:
        """So much longer than it holds a watcher sees nothing happen before it takes over."""
        return self.seconds / 4

    @property
    def looks(self) -> float:
        """Between two looks of a watcher."""
        return min(_LOOKS, self.seconds / 20)


def body_of(command: str, pace: Pace, *, free: bool = False) -> bytes:
    """What an object says; two never say the same, so that their tags differ."""
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
    """What is said; nothing where it is not ours."""
    try:
        fields = json.loads(found.body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def is_free(found: Found | None) -> bool:
    """Whether it was given back."""
    return found is not None and said(found).get("holder", "") is None


def held_by(found: Found | None) -> str:
    """Who holds it, in words."""
    fields = {} if found is None else said(found)
    if not {"command", "pid", "host", "put"} <= fields.keys():
        return "by a process that says nothing of itself"
    return "by `{command}`, process {pid} on {host}, last seen {put}".format(**fields)


def patience_of(found: Found) -> float:
    """How long nothing must have happened before the lease of another one may be taken, in seconds."""
    seconds = said(found).get("seconds")
    theirs = Pace(float(seconds) if isinstance(seconds, int | float) else LEASE_SECONDS)
    return theirs.seconds + theirs.grace
