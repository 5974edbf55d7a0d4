"""Leases on an S3 server: acquired, held, lost, and acquired after a killed process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.lease_objects import Pace
from deltasmelt.bronze.lake.leases import leased, object_of, still_holding, still_writing, watch, writing_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location, in_store
from tests.docs.blocks import ROOT
from tests.object_store import Faults
from tests.patience import wait_for

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

PACE: Final = Pace(2.0)
HOLDER: Final = """
import sys, time
from deltasmelt.bronze.lake.leases import leased
from deltasmelt.bronze.lake.place import in_store
from tests.object_store import options_of
root, url, name = sys.argv[1:]
with leased(in_store(root, options_of(url), lease=2.0), name, command="smelt silver", wait=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def root(store: ObjectStore, place: str) -> Location:
    return in_store(place, store.options(), lease=PACE.seconds)


def hold(root: str, store: ObjectStore, name: str = "silver") -> subprocess.Popen[bytes]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, root, store.url, name],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_living_holder_is_named_and_killed_holder_awaited(root: str, store: ObjectStore) -> None:
    """A living holder is refused by name; the lease of a killed holder is waited for."""
    with hold(root, store) as holder:
        with (
            pytest.raises(DefiniteError) as raised,
            leased(root, "silver", command="smelt run", wait=False),
        ):
            pass
        assert raised.value.code == "already-running"
        assert f"`smelt silver`, process {holder.pid}" in str(raised.value)
        with leased(root, "gold", command="smelt run", wait=False):
            pass  # another layer may be written beside it
        holder.kill()
        holder.wait()
        start, messages = time.monotonic(), list[str]()
        with leased(root, "silver", command="smelt run", wait=False, say=messages.append) as lease:
            waited = time.monotonic() - start
            lease.check()
    assert waited > PACE.seconds, "its last put may be as young as that"
    assert len(messages) == 1
    assert f"process {holder.pid}" in messages[0]


def test_released_lease_is_free_at_once(root: str) -> None:
    for _ in range(3):
        start = time.monotonic()
        with leased(root, "silver", command="smelt run", wait=False) as lease:
            assert time.monotonic() - start < 1
            lease.check()


def test_lease_is_held_until_block_ends(root: str) -> None:
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        for _ in range(8):
            time.sleep(0.5)
            lease.check()


def test_threads_and_processes_wait_for_each_other(root: str, store: ObjectStore) -> None:
    with hold(root, store) as holder:
        order: list[str] = []

        def write(name: str) -> None:
            with leased(root, "silver", command=name, wait=True):
                order.append(f"{name} begins")
                time.sleep(0.2)
                order.append(f"{name} ends")

        threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        time.sleep(1)
        assert order == []
        assert holder.stdin is not None
        holder.stdin.close()
        for thread in threads:
            thread.join(20)
    assert sorted(order[:2]) in (["one begins", "one ends"], ["two begins", "two ends"])
    assert len(order) == 4


def test_holder_without_store_begins_no_late_commit(root: str, store: ObjectStore) -> None:
    """A holder without access to the store begins no commit after its lease time."""
    lake, name = Lake(path=root), writing_of("silver")
    still_writing(lake, "silver")  # who holds none, as a caller of the parts may, is not asked for one
    with leased(root, name, command="smelt run", wait=False):
        store.set_faults(Faults(unavailable=30.0))
        still_writing(lake, "silver")
        time.sleep(PACE.seconds)
        with pytest.raises(TransientError) as raised:
            still_writing(lake, "silver")
        assert raised.value.code == "lease-lost"
        still_writing(lake, "gold")
        still_holding(lake, [name])  # nobody has taken it over
        store.set_faults()
        wait_for(lambda: objects.read(root, object_of(name)) is not None)
        time.sleep(2 * PACE.renewed_after)
        still_writing(lake, "silver")


def test_lease_acquired_by_second_holder_stays_lost(root: str) -> None:
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        before = objects.read(root, object_of("silver"))
        assert before is not None
        foreign_content = (
            b'{"holder": "another", "command": "x", "pid": 1, "host": "h", "put": "now", "once": "1"}'
        )
        while objects.put(root, object_of("silver"), foreign_content, over=before) is None:
            before = objects.read(root, object_of("silver"))
        time.sleep(3 * PACE.renewed_after)
        with pytest.raises(TransientError, match="taken over by `x`, process 1 on h"):
            lease.check()
        with pytest.raises(DefiniteError, match="no longer belongs to this process"):
            still_holding(Lake(path=root), ["bronze", "silver"])
    stored = objects.read(root, object_of("silver"))
    assert stored is not None
    assert stored.body == foreign_content, "what is another's is not given back"


def test_an_answer_that_is_lost_loses_no_lease(root: str, store: ObjectStore) -> None:
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        for _ in range(4):
            store.set_faults(Faults(lose="silver"))
            time.sleep(0.8)
            lease.check()


def test_a_store_that_is_not_there_is_said(root: str) -> None:
    nowhere = in_store("s3://nowhere/lake", {"aws_endpoint_url": "http://127.0.0.1:9"})
    with (
        pytest.raises(TransientError) as raised,
        leased(nowhere, "silver", command="smelt run", wait=False),
    ):
        pass
    assert raised.value.code == "lake-unreachable"
    assert "\n" not in raised.value.message
    assert root


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_lost_answer_during_acquisition_is_harmless(
    root: str, store: ObjectStore, *, wait: bool, first: bool
) -> None:
    if not first:
        with leased(root, "silver", command="smelt run", wait=False):
            pass
    store.set_faults(Faults(lose="silver"))
    start = time.monotonic()
    with leased(root, "silver", command="smelt run", wait=wait) as lease:
        lease.check()
    assert time.monotonic() - start < PACE.seconds / 2


def test_lease_renewed_without_answer_is_released(root: str, store: ObjectStore) -> None:
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        before = lease.put
        lease.renew()
        lease.put = before  # as after a renewal that came about, and whose answer was lost
    start = time.monotonic()
    with leased(root, "silver", command="smelt run", wait=False):
        assert time.monotonic() - start < PACE.seconds / 2
    assert store


def test_leases_of_killed_process_are_awaited_once_together(root: str, store: ObjectStore) -> None:
    """The stages of a killed process share a single wait."""
    names = ["silver", "gold", writing_of("silver")]
    for name in names:
        with hold(root, store, name) as holder:
            holder.kill()
    start = time.monotonic()
    watch(root, names)
    for name in names:
        with leased(root, name, command="smelt run", wait=False):
            pass
    assert time.monotonic() - start < 1.7 * (PACE.seconds + PACE.grace)


def test_killed_successor_lease_does_not_count_as_alive(root: str, store: ObjectStore) -> None:
    """The lease of a killed process is taken over, also after an own earlier lease."""
    with leased(root, "silver", command="smelt run", wait=False):
        pass
    with hold(root, store) as holder:
        holder.kill()
    with leased(root, "silver", command="smelt run", wait=False) as lease:
        lease.check()
