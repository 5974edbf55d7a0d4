"""Trial of an object store for a lake: list, put, read and delete a small object.

A store that ignores the condition of a put is the worst kind, because nothing fails: two writers of one Delta
table overwrite each other's commits silently. Leases and Delta's commits depend on two refusals. The probe
therefore also sends two puts that the store must refuse: a new object over an existing object, and a put over
content that does not exist (``If-Match`` with a wrong tag).

The object lies below ``_probe`` of the lake, in a folder with a unique name. The probe removes the object at
the end.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError, NotSupportedError

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import store_error, words_of
from deltasmelt.bronze.lake.place import Location, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "_probe"
_WRONG_TAG: Final = '"00000000000000000000000000000000"'
_WRONG_GENERATION: Final = "1"
_NOT_SERVED: Final = re.compile("501 Not Implemented|NotImplemented")


def probe_store(root: str) -> list[Finding]:
    """Return the reasons why no process can write a lake at this place of an object store; empty if none.

    `root` is the location of the lake. The probe leaves no object behind. A catalog alone knows its store.
    """
    if place_of(root).scheme is None:
        return []
    findings: list[Finding] = []
    place = f"{FOLDER}/{uuid.uuid4().hex}"
    name = f"{place}/object"
    doing = "listed"
    try:
        objects.any_below(root)
        doing = "written"
        findings += _conditions(root, name)
        doing = "read"
        objects.read(root, name)
        doing = "cleaned"
        objects.delete_below(root, place)
    except (OSError, BaseError) as error:
        findings.append(Finding.of(store_error(error, root, doing)))
        if doing in {"written", "read"}:
            objects.discard(Location(root) / place)
    return findings


def _conditions(root: str, name: str) -> Iterator[Finding]:
    """Put the object, then send puts that the store must refuse; yield a finding for each missing refusal.

    An unsupported condition is a finding, too; other errors are raised.
    """
    body = uuid.uuid4().hex.encode()
    try:
        put = objects.put(root, name, body, over=None)
        if put is None:  # the first answer was lost, and the put was repeated
            put = objects.read(root, name)
        if put is None or objects.put(root, name, b"as a new one", over=None) is not None:
            yield _unsafe(
                root, ("the store replaced an existing object although the write allowed only a new object")
            )
            return
        stale = replace(put, tag=_WRONG_TAG, version=put.version and _WRONG_GENERATION)
        if objects.put(root, name, b"over other content", over=stale) is not None:
            yield _unsafe(root, "the store replaced an object although the write required other content")
    except (OSError, BaseError) as error:
        if not isinstance(error, NotSupportedError) and not _NOT_SERVED.search(str(error)):
            raise
        yield _unsafe(root, f"the store refuses conditional writes: {words_of(error)}")


def _unsafe(root: str, why: str) -> Finding:
    return Finding(
        level="error",
        code="lake-conditional-put",
        subject=root,
        message=f"this store does not support conditional writes: {why}",
        remedy="use a store with conditional writes (If-None-Match and If-Match), or a newer release of this "
        "store; otherwise two processes could overwrite each other's commits",
    )
