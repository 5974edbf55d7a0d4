"""Errors for failures of the lake's storage (a full disk, an unreachable store), each with a remedy.

While a pipeline runs, every such failure can heal: a temporarily absent bucket, keys during a change, a full
disk. The pipeline retries (`lake_failures`). When a command first opens the lake, a missing bucket or
rejected keys are a mistake of the user, and a retry would hide the mistake (`lake_opened`). Only the message
text distinguishes these cases: `deltalake` raises `OSError` for all.

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

# Texts of the stores' own answers: clients and scripts everywhere match these texts, so the texts are stable.
_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|ContainerBeingDeleted|specified bucket does not exist"
)
_OTHER_REGION: Final = re.compile(
    r"AuthorizationHeaderMalformed|PermanentRedirect|301 Moved Permanently|redirect without LOCATION"
)
# Addresses at which a cloud machine finds its role; a client without keys sends a request to these.
_NO_KEYS: Final = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google\.internal")
_REFUSED: Final = re.compile(
    r"403 Forbidden|401 Unauthorized|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|"
    r"InvalidToken|AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|AccountIsDisabled"
)
_BY_OPTIONS: Final = "set them in lake.options, in the environment, or by a role of the machine"


@contextmanager
def lake_failures(where: str, what: str = "the lake") -> Iterator[None]:
    """Convert each storage error of this block into TransientError ``lake-unwritable``.

    The message names `where` (the lake or table) and `what` cannot be written.
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
    """Convert each error of a command's first access to the lake; name the cause if the lake is in a store.

    Raises:
        DefiniteError: ``lake-bucket``, ``lake-credentials``.
        TransientError: ``lake-unreachable``; ``lake-unwritable`` for a local lake or a catalog.
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
    """Return the error for a store's failure during a command whose user waits for the result.

    `what` is the participle of the operation that failed on the lake.
    """
    said = words_of(error)
    if lacks_bucket(error):
        return DefiniteError(
            f"the bucket or container does not exist: {said}",
            code="lake-bucket",
            where=where,
            remedy="create the bucket, or correct lake.path; deltasmelt creates no bucket",
        )
    if _OTHER_REGION.search(said):
        return DefiniteError(
            f"the bucket is in another region than configured: {said}",
            code="lake-bucket",
            where=where,
            remedy="set the bucket's region as aws_region in lake.options, or as AWS_REGION",
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
            f"the store refuses access, so the lake cannot be {what}: {said}",
            code="lake-credentials",
            where=where,
            remedy="check the credentials and their permissions (list, read, put and delete below "
            f"lake.path); {_BY_OPTIONS}",
        )
    return TransientError(
        f"the lake cannot be {what}: {said}",
        code="lake-unreachable",
        where=where,
        remedy="check the endpoint, the network to the store, and the state of the store",
    )


def vanished(where: str) -> TransientError:
    """Return the error for a lake that vanished after an earlier read; a volume may return."""
    return TransientError(
        "the lake no longer exists at this location",
        code="lake-unreachable",
        where=where,
        remedy="mount the volume again, or move the lake back; if the removal was intended, start with a new "
        "lake",
    )


def lacks_bucket(error: BaseException) -> bool:
    """Check whether a store reports a missing bucket rather than a missing object."""
    return _NO_BUCKET.search(str(error)) is not None


def words_of(error: BaseException) -> str:
    """Return the message of a storage error on one line, without the keys of a pipeline file."""
    # A library adds frames and colours, and a store's answer adds mark-up.
    said = _FRAMES.split(str(error), maxsplit=1)[0]
    said = _COLOURS.sub("", _DEBUG.split(said, maxsplit=1)[0])
    said = _ANSWER.sub(_answer, said)
    said = " ".join(_ARROW.sub(": ", said).split())
    return without_keys("; ".join([said, *getattr(error, "__notes__", ())]))


def _answer(found: re.Match[str]) -> str:
    """Return code and message of a store's answer."""
    # The rest of the answer may quote the signed text and the key.
    fields = [re.search(_FIELD.format(name), found[0], re.DOTALL) for name in ("Code", "Message")]
    return ": ".join(field[1] for field in fields if field is not None)
