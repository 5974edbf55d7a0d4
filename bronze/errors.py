"""Errors for people: each error states the event, the place and the remedy.

Hierarchy::

    SmeltError                 one clear message; the CLI prints it without a traceback and exits 1
     ├─ ConfigurationError     a file that a user edits is wrong (file and line are in `where`)
     ├─ TransientError         heals by itself: network, restart, lock; retried with backoff
     └─ DefiniteError          needs a person: a lost slot, a missing privilege, another pipeline's lake
         └─ TableError         stops one table alone; all other tables continue; recorded in control.errors

`code` is a stable slug. ``docs/errors/<code>.md`` explains the error at length; `smelt explain-error` prints
the page.

No message contains a password: messages name a server by `bronze.postgres.conninfo.address_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.identifiers import TableName


def causes(error: BaseException, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yield an error, then the causes, nearest first.

    Args:
        hidden: follow also ``raise … from None``, which hides the earlier error from people.
    """
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ and not hidden else cause.__context__)


class SmeltError(Exception):
    """An error with place (table, slot, LSN, file:line) and remedy."""

    def __init__(
        self, message: str, *, code: str, where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.where = None if where is None else str(where)  # plain text: a location carries keys
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.message}" if self.where else self.message]
        if self.remedy:
            parts.append(f"remedy: {self.remedy}")
        return "\n".join(parts)

    def in_a_line(self) -> str:
        """Return message and remedy as one line of progress."""
        return f"{self.message}; remedy: {self.remedy}" if self.remedy else self.message


class ConfigurationError(SmeltError):
    """An invalid pipeline, document or expectation file, or an invalid command line."""


class TransientError(SmeltError):
    """An error that is expected to heal by itself; the caller retries with backoff and jitter."""


class DefiniteError(SmeltError):
    """An error that does not heal by itself; a retry is useless until a person has followed `remedy`."""


def resnapshot_remedy(table: TableName | str, purpose: str = "resnapshot the table") -> str:
    """Return a remedy that ends in a new snapshot of one table.

    Args:
        table: the table's name, or a placeholder that the caller replaces.
        purpose: the purpose of the command; the text before the command.
    """
    return f"{purpose}: smelt snapshot FILE {table}"


class TableError(DefiniteError):
    """A definite error of a single table; all other tables continue."""

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
