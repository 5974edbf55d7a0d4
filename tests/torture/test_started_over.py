"""A dropped publication: no later change can be decoded, so the reader starts over automatically.

After an interruption at any point the next start continues to start over.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.recovery import is_starting_over, start_over
from deltasmelt.bronze.stream.replication import ReplicationStream
from tests.bronze.replaying import execute, fetch, read_all, session
from tests.bronze.running import Running
from tests.patience import wait_for
from tests.torture.test_reader_killed import ending, start_reader
from tests.torture.test_slot import LOST, assert_whole, ends, stopped
from tests.torture.two_tables import SCHEMA

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres
LONG = pytest.mark.torture


def test_publication_dropped_while_streaming_is_remade_with_copies(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *SCHEMA)
    with Running(source, lake_path) as running:
        wait_for(lambda: {"items", "others"} <= {row["table_name"] for row in ends(lake_path)})
        execute(source, "DROP PUBLICATION smelt", *LOST)
        wait_for(lambda: running.error is not None or len(ends(lake_path)) >= 4, 40)
        execute(source, "INSERT INTO items VALUES (9, 'after')")
        assert running.error is None
    read_all(source, lake_path)
    assert_whole(source, lake_path)


@LONG
def test_publication_dropped_without_reader_is_remade_with_copies(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    execute(source, "DROP PUBLICATION smelt", *LOST)
    read_all(source, lake_path)
    assert_whole(source, lake_path)


def test_dropped_publication_without_privilege_is_error_with_sql(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    execute(source, "DROP PUBLICATION smelt", *LOST)
    error = stopped(source.model_copy(update={"manage": False}), lake_path)
    assert error.code == "publication-missing"
    assert 'CREATE PUBLICATION "smelt"' in str(error)


def test_transaction_blocking_new_slot_is_awaited(source: SourceSettings, lake_path: str) -> None:
    execute(source, *SCHEMA)
    hasty = source.with_timing(Timing(slot_transactions=0.3, first_contact=0.1, retry_longest=0.2))
    with session(source) as idle, Running(hasty, lake_path) as running:
        wait_for(lambda: {"items", "others"} <= {row["table_name"] for row in ends(lake_path)})
        idle.autocommit = False
        idle.execute("SELECT txid_current()")
        execute(source, "DROP PUBLICATION smelt", *LOST)
        wait_for(lambda: "could not be created" in running.reader.progress.read()["said"])
        assert is_starting_over(Lake(lake_path))
        time.sleep(1)
        assert running.error is None
        idle.rollback()
        wait_for(lambda: running.error is not None or len(ends(lake_path)) >= 4, 40)
        assert running.error is None
    read_all(source, lake_path)
    assert_whole(source, lake_path)
    assert not is_starting_over(Lake(lake_path))


@pytest.mark.parametrize(
    "point",
    [
        "slot-dropped",
        *(pytest.param(point, marks=LONG) for point in ("given-up", "slot-made", "started-over")),
    ],
)
def test_killed_start_over_is_repeated_at_next_start(
    source: SourceSettings, lake_path: str, point: str
) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    execute(source, "DROP PUBLICATION smelt", *LOST)
    assert ending(start_reader(source, lake_path, point=point)) == -signal.SIGKILL
    assert is_starting_over(Lake(lake_path)) == (point != "started-over")
    read_all(source, lake_path)
    assert_whole(source, lake_path)
    assert not is_starting_over(Lake(lake_path))


@pytest.mark.parametrize("waits", ["for a lock", "for the slot"])
def test_stopped_start_over_gives_up_immediately(source: SourceSettings, lake_path: str, waits: str) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    stop, failed = threading.Event(), threading.Event()
    patient = source.with_timing(Timing(slot_release=60.0, publication_lock=60.0))

    def run() -> None:
        with pytest.raises(TransientError):
            start_over(patient, Lake(lake_path), "shop", anew=True, stop=stop)
        failed.set()

    with session(source) as second, closing(ReplicationStream(source, application_name="other")) as reader:
        if waits == "for a lock":
            second.autocommit = False
            second.execute("LOCK TABLE pg_publication_rel IN ACCESS EXCLUSIVE MODE")
        else:
            reader.start(Lsn(0))
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert not failed.wait(1.5)
        stop.set()
        assert failed.wait(5)
        thread.join()
    assert fetch(source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot) == 1
