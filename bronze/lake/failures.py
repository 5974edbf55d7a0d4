"""Failures of the lake's storage (a full disk, a store out of reach) as errors that say what to do.

While a pipeline runs, each of them is one that heals: a bucket that is away for a while, keys that are being
changed, a full disk. It is tried again (`lake_failures`). When a command looks at the lake for the first
time, a bucket that is not there and keys that are refused are a mistake of somebody, and trying again would
hide it (`lake_opened`).

Which of them it is, only the text tells: `deltalake` raises `OSError` for all. The texts are those of the
stores' own answers, which clients and scripts everywhere match, so they stay what they are.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html;
https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes;
https://cloud.google.com/storage/docs/xml-api/reference-status.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from obstore.exceptions import BaseError

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.place import is_named, scheme_of, without_keys

if TYPE_CHECKING:
    from collections.abc import Iterator


_FRAMES: Final = re.compile(r"\n\s+0: ")
_DEBUG: Final = re.compile(r"\n\nDebug source:")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ARROW: Final = re.compile(r"\s*↳\s*")
_ANSWER: Final = re.compile(r"(?:<\?xml[^>]*>\s*)?<Error>.*?</Error>", re.DOTALL)
_FIELD: Final = "<{0}>(.*?)</{0}>"

_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|ContainerBeingDeleted|specified bucket does not exist"
)
_OTHER_REGION: Final = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|301 Moved Permanently|redirect without LOCATION"
)
_NO_KEYS: Final = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
"""Where a machine in a cloud finds its role; who is sent there was given no keys."""
_REFUSED: Final = re.compile(
    r"403 Forbidden|401 Unauthorized|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|"
    r"InvalidToken|AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|AccountIsDisabled"
)
_BY_OPTIONS: Final = "give them in lake.options, in the environment, or by a role of the machine"


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
    except (OSError, DeltaError, BaseError, pa.ArrowException) as error:
        raise TransientError(
            f"{what} cannot be written: {words_of(error)}",
            code="lake-unwritable",
            where=where,
            remedy="check free space, permissions and, for an object store, credentials and network",
        ) from error


@contextmanager
def lake_opened(where: str) -> Iterator[None]:
    """A command's first look at the lake: in a store, what keeps it from being opened is named.

    Args:
        where: the lake or table, for the message.

    Raises:
        DefiniteError: ``lake-bucket``, ``lake-credentials``.
        TransientError: ``lake-unreachable``; ``lake-unwritable`` of a local lake.
    """
    if scheme_of(where) is None or is_named(where):
        with lake_failures(where):
            yield
        return
    try:
        yield
    except (OSError, DeltaError, BaseError, pa.ArrowException) as error:
        raise store_error(error, where) from error


def store_error(error: Exception, where: str, what: str = "opened") -> SmeltError:
    """What a store's failure is, where somebody asked for the lake and waits for the answer.

    Args:
        error: as the store's client raised it.
        where: the lake or table.
        what: could not be done to it: a participle.
    """
    said = words_of(error)
    if lacks_bucket(error):
        return DefiniteError(
            f"there is no such bucket or container: {said}",
            code="lake-bucket",
            where=where,
            remedy="make the bucket, or correct lake.path; deltasmelt makes none",
        )
    if _OTHER_REGION.search(said):
        return DefiniteError(
            f"the bucket lies in another region than is said: {said}",
            code="lake-bucket",
            where=where,
            remedy="give the bucket's region as aws_region in lake.options, or as AWS_REGION",
        )
    if _NO_KEYS.search(said):
        return DefiniteError(
            f"no credentials for the store were found: {said}",
            code="lake-credentials",
            where=where,
            remedy=_BY_OPTIONS,
        )
    if _REFUSED.search(said):
        return DefiniteError(
            f"the store refuses: the lake cannot be {what}: {said}",
            code="lake-credentials",
            where=where,
            remedy="check the credentials and what they allow (list, read, put and delete below lake.path); "
            f"{_BY_OPTIONS}",
        )
    return TransientError(
        f"the lake cannot be {what}: {said}",
        code="lake-unreachable",
        where=where,
        remedy="check the endpoint, the network to it, and the store's own state",
    )


def vanished(where: str) -> TransientError:
    """Return the error of a lake that this process has read and that is gone; a volume may come back."""
    return TransientError(
        "the lake was there, and is gone",
        code="lake-unreachable",
        where=where,
        remedy="mount the volume again, or move the lake back; after an intended removal start anew",
    )


def lacks_bucket(error: BaseException) -> bool:
    """Whether a store says that not the object, but its bucket is not there."""
    return _NO_BUCKET.search(str(error)) is not None


def words_of(error: BaseException) -> str:
    """What an error of the storage says, on one line.

    Without the frames and colours of a library, without the mark-up of a store's answer, and without what a
    pipeline file gives as keys.
    """
    said = _FRAMES.split(str(error), maxsplit=1)[0]
    said = _COLOURS.sub("", _DEBUG.split(said, maxsplit=1)[0])
    said = _ANSWER.sub(_answer, said)
    said = " ".join(_ARROW.sub(": ", said).split())
    return without_keys("; ".join([said, *getattr(error, "__notes__", ())]))


def _answer(found: re.Match[str]) -> str:
    """Code and message of a store's answer; the rest may quote what was signed, and with which key."""
    fields = [re.search(_FIELD.format(name), found[0], re.DOTALL) for name in ("Code", "Message")]
    return ": ".join(field[1] for field in fields if field is not None)
