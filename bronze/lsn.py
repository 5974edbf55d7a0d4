"""Log sequence numbers: positions in PostgreSQL's write-ahead log.

An LSN is a 64-bit byte position; PostgreSQL prints an LSN as two hexadecimal halves, ``16/B374D848``. Tables
store an LSN as BIGINT, for comparison and subtraction; people read PostgreSQL's spelling. Source: PostgreSQL
docs, "pg_lsn Type".
"""

from __future__ import annotations

from typing import Final, Self


class Lsn(int):
    """A position in the write-ahead log, in bytes from the log's start; prints as in PostgreSQL."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's spelling ``X/Y`` (hexadecimal), or a decimal number as in the Delta tables.

        Raises:
            ValueError: the text has neither spelling.
        """
        high, slash, low = text.strip().partition("/")
        try:
            return cls((int(high, 16) << 32) | int(low, 16)) if slash else cls(int(high))
        except ValueError:
            raise ValueError(f"not an LSN: {text!r} (expected e.g. 0/16B3748 or 23803720)") from None

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


ZERO: Final = Lsn(0)
"""The invalid LSN, before every change (InvalidXLogRecPtr)."""

LAST: Final = Lsn(2**63 - 1)
"""The greatest LSN that a BIGINT holds, after every change."""
