"""Findings of the probe of an object store, against a server with the S3 protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.checks.lake_store import probe_store
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import lake_failures, lake_opened
from deltasmelt.bronze.lake.leases import leased
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.bronze.store.ownership import require_own_lake
from tests.object_store import Faults

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.finding import Finding
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

NOWHERE: Final = "http://127.0.0.1:9"


def only_finding(found: list[Finding]) -> Finding:
    [finding] = found
    assert finding.level == "error"
    assert finding.remedy
    assert "\n" not in finding.message
    assert "\x1b" not in finding.message
    return finding


def test_sound_store_passes_probe_and_stays_empty(place: str, store: ObjectStore) -> None:
    store.forget()
    assert probe_store(place) == []
    assert not objects.any_below(place)
    refused = [request for request in store.requests("PUT") if request.status == 412]
    assert len(refused) == 2, "a second create, and a put over other content"


def test_a_bucket_that_is_not_there(store: ObjectStore) -> None:
    root = in_store("s3://nobodys/lake", store.options())
    finding = only_finding(probe_store(root))
    assert (finding.code, finding.subject) == ("lake-bucket", "s3://nobodys/lake")
    assert "NoSuchBucket: The specified bucket does not exist" in finding.message
    with pytest.raises(DefiniteError) as raised:
        require_own_lake(Lake(root), "shop")
    assert raised.value.code == "lake-bucket"


def test_running_pipeline_retries_missing_bucket(store: ObjectStore) -> None:
    root = in_store("s3://nobodys/lake", store.options())
    with pytest.raises(TransientError) as reading, lake_failures(root):
        objects.read(root, "x")
    with pytest.raises(TransientError) as putting, lake_failures(root):
        objects.put(root, "x", b"1", over=None)
    assert reading.value.code == putting.value.code == "lake-unwritable"
    with (
        pytest.raises(TransientError) as taking,
        leased(root, "silver", command="smelt silver", wait=False),
    ):
        pass
    assert taking.value.code == "lake-unreachable"


@pytest.mark.parametrize(
    ("methods", "doing"), [("GET", "listed"), ("PUT", "written"), ("DELETE|POST", "cleaned")]
)
def test_a_store_that_refuses(place: str, store: ObjectStore, methods: str, doing: str) -> None:
    store.set_faults(Faults(denied=methods))
    finding = only_finding(probe_store(place))
    assert finding.code == "lake-credentials"
    assert f"cannot be {doing}: " in finding.message
    assert "AccessDenied" in finding.message
    if methods == "GET":
        with pytest.raises(DefiniteError) as raised:
            require_own_lake(Lake(place), "shop")
        assert raised.value.code == "lake-credentials"


def test_credentials_that_are_not_found() -> None:
    message = (
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2.1s, after 3 "
        "retries, max_retries: 3, retry_timeout: 10s  - HTTP error: error sending request\n\nDebug source:\nG"
    )
    with pytest.raises(DefiniteError) as raised, lake_opened("s3://lake/x"):
        raise OSError(message)
    assert raised.value.code == "lake-credentials"
    assert "no credentials for the store were found" in raised.value.message
    assert "Debug source" not in raised.value.message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("<Error><Code>ContainerNotFound</Code><Message>x</Message></Error>", "lake-bucket"),
        ("Received redirect without LOCATION", "lake-bucket"),
        ("401 Unauthorized", "lake-credentials"),
        ("400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", "lake-credentials"),
        ("503 Slow Down", "lake-unreachable"),
        ("operation timed out", "lake-unreachable"),
    ],
)
def test_what_stores_say(message: str, code: str) -> None:
    with pytest.raises(SmeltError) as raised, lake_opened("abfss://lake@account.dfs.core.windows.net/x"):
        raise OSError(message)
    assert raised.value.code == code
    assert isinstance(raised.value, TransientError) == (code == "lake-unreachable")


def test_coloured_and_xml_store_errors_become_single_line() -> None:
    message = (
        "Kernel error -> Generic S3 error\n   \x1b[31m↳\x1b[0m Error performing list request\n"
        "  \x1b[31m↳\x1b[0m <?xml version='1.0'?>\n<Error><Code>SignatureDoesNotMatch</Code>"
        "<Message>The signature differs</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>\n"
    )
    with pytest.raises(TransientError) as raised, lake_failures("s3://lake/x"):
        raise OSError(message)
    assert raised.value.message == (
        "the lake cannot be written: Kernel error -> Generic S3 error: Error performing list request: "
        "SignatureDoesNotMatch: The signature differs"
    )


def test_unreadable_local_lake_is_retried() -> None:
    with pytest.raises(TransientError) as raised, lake_opened("/lake"):
        raise OSError("403 Forbidden")
    assert raised.value.code == "lake-unwritable"


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (Faults(ignored="NONE_MATCH"), "the write allowed only a new object"),
        (Faults(ignored="IF_MATCH"), "the write required other content"),
        (Faults(unserved="NONE_MATCH"), "the store refuses conditional writes"),
        (Faults(unserved="IF_MATCH"), "the store refuses conditional writes"),
    ],
)
def test_a_store_without_conditional_puts(place: str, store: ObjectStore, faults: Faults, why: str) -> None:
    store.set_faults(faults)
    finding = only_finding(probe_store(place))
    assert finding.code == "lake-conditional-put"
    assert why in finding.message
    store.set_faults()
    assert not objects.any_below(place)


def test_a_store_that_does_not_answer(store: ObjectStore) -> None:
    root = in_store("s3://lake/away", {**store.options(), "aws_endpoint_url": NOWHERE})
    finding = only_finding(probe_store(root))
    assert finding.code == "lake-unreachable"
    assert NOWHERE in finding.message
    with pytest.raises(TransientError) as raised:
        require_own_lake(Lake(root), "shop")
    assert raised.value.code == "lake-unreachable"


def test_lost_answer_is_no_fault_of_store(place: str, store: ObjectStore) -> None:
    store.set_faults(Faults(lose="_probe"))
    assert probe_store(place) == []
