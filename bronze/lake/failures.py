"""Failures of the lake's storage (a full disk, a store out of reach) as an error that is tried again."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from bronze.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterator


_FRAMES: Final = re.compile(r"\n\s+0: ")


@contextmanager
def lake_failures(where: str, what: str = "the lake") -> Iterator[None]:
    """What the storage raises in this block becomes ``lake-unwritable``.

    Args:
        where: the lake or table, for the message.
        what: what cannot be written, for the message.

    Raises:
        TransientError: ``lake-unwritable``.
    """
    try:
        yield
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise TransientError(
            f"{what} cannot be written: {_words(error)}",
            code="lake-unwritable",
            where=where,
            remedy="check free space, permissions and, for an object store, credentials and network",
        ) from error


def _words(error: Exception) -> str:
    """What is said, on one line, without the frames of a library's stack."""
    said = " ".join(_FRAMES.split(str(error), maxsplit=1)[0].split())
    return "; ".join([said, *getattr(error, "__notes__", ())])
