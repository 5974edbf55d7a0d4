"""Substitutes for `deltalake`'s value classes, with equal names and fields, if `deltalake` is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class DeltaError(Exception):
    """A table cannot be read or written."""


class TableNotFoundError(DeltaError):
    """The table does not exist."""


class CommitFailedError(DeltaError):
    """A commit was rejected."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A mark: the version that an application id has from a commit on."""

    app_id: str
    version: int
    # time of the change, in milliseconds since 1970
    last_updated: int | None = None


@dataclass(frozen=True, slots=True)
class AddAction:
    """A file that a commit adds; see `deltalake.transaction.AddAction`."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    modification_time: int
    data_change: bool
    stats: str


@dataclass(frozen=True, slots=True)
class RemoveAction:
    """A file that a commit removes; see `deltalake.transaction.RemoveAction`."""

    path: str
    data_change: bool
    deletion_timestamp: int | None = None
    size: int | None = None
