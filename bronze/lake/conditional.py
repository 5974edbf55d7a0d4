"""What several processes may write, each on condition: `objects` of a store, rows of a catalog's table.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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


class Conditional(Protocol):
    """Where such things are kept: `bronze.lake.objects`, or `bronze.lake.named.cells`."""

    def read(self, root: str, name: str, /) -> Found | None:
        """What is there under a name."""

    def put(self, root: str, name: str, body: bytes, /, *, over: Found | None) -> Found | None:
        """Put it where `over` still is there, or nothing; None where another writer was first."""
