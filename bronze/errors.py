"""Errors that a person reads: what happened, where, and what to do.

Hierarchy::

    SmeltError                 one clear message; the CLI prints it without a traceback and exits 1
     ├─ ConfigurationError     a file that a user edits is wrong (file and line are in `where`)
     ├─ TransientError         heals by itself: network, restart, lock; retried with backoff
     └─ DefiniteError          needs a person: a lost slot, a missing privilege, another pipeline's lake
         └─ TableError         stops one table alone; the others go on; recorded in control.errors

`code` is a stable slug. ``docs/errors/<code>.md`` explains the error at length; `smelt explain-error` prints
that page.

A message never contains a password: messages name a server by `bronze.postgres.conninfo.address_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.identifiers import TableName


def causes(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """An error and those that it came from, nearest first.

    Args:
        error: the first one.
        hidden: also through ``raise … from None``, which says that the reader need not know what was before.
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ and not hidden else one.__context__)


class SmeltError(Exception):
    """What happened, where (table, slot, LSN, file:line) and the remedy."""

    def __init__(
        self, message: str, *, code: str, where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "\n".join(parts)

    def in_a_line(self) -> str:
        """What happened and the remedy, for a line of progress."""
        return f"{self.message}; remedy: {self.remedy}" if self.remedy else self.message


class ConfigurationError(SmeltError):
    """A pipeline, document or expectation file, or a command line, that cannot be right."""


class TransientError(SmeltError):
    """Expected to heal by itself; the caller retries with backoff and jitter."""


class DefiniteError(SmeltError):
    """Will not heal by itself; retrying is no use until a person has done what `remedy` says."""


def resnapshot_remedy(table: TableName | str, purpose: str = "resnapshot the table") -> str:
    """The remedy that ends in a new snapshot of one table.

    Args:
        table: its name, or a placeholder that the caller fills in.
        purpose: what the command is for; stands before it.
    """
    return f"{purpose}: smelt snapshot FILE {table}"


class TableError(DefiniteError):
    """A definite error of one table: that table stops, the others go on."""

    def __init__(
        self,
        table: TableName,
        message: str,
        *,
        code: str,
        where: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, code=code, where=where or str(table), remedy=remedy)
        self.table = table
