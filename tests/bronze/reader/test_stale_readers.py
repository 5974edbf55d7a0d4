"""A slot stays with another reader while the other reader answers, independent of clocks."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup.create_slot import CHECKING, STARTING_OVER, ensure_slot
from deltasmelt.bronze.stream.receiver import Receiver
from deltasmelt.bronze.stream.replication import ReplicationStream
from tests.bronze.replaying import execute, fetch, source_of

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

HOLDER = "SELECT count(*) FROM pg_replication_slots WHERE active"


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database)
    execute(
        source,
        "CREATE PUBLICATION smelt FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
    )
    return source


def skewed(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Give the reader's machine a clock that differs from the server's."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            assert tz is UTC
            return datetime.now(UTC) + by

    monkeypatch.setattr("deltasmelt.bronze.stream.replication.datetime", Clock)


@pytest.mark.parametrize("hours", [-1, 1])
def test_silent_reader_is_ended_and_living_reader_spared(
    source: SourceSettings, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    skewed(monkeypatch, timedelta(hours=hours))
    patient = source.with_timing(Timing(reader_silence=2.0, slot_release=4.0))
    hasty = source.with_timing(Timing(reader_silence=2.0, slot_release=0.5))
    connection = ReplicationStream(source, application_name="deltasmelt shop other:1")
    connection.start(ZERO)
    receiver = Receiver(
        connection, capacity=1 << 20, durable=ZERO, feedback_seconds=0.3, silence_seconds=30.0
    )
    receiver.start()
    with connect(source) as looking:
        with pytest.raises(DefiniteError) as caught:
            ensure_slot(looking, patient, ours="deltasmelt shop ")
        assert caught.value.code == "slot-in-use"
        assert fetch(source, HOLDER.replace("active", f"slot_name = '{source.slot}' AND active")) == 1
        monkeypatch.setattr(receiver, "_receive", lambda: None)
        monkeypatch.setattr(connection, "feedback", lambda **_: None)  # its machine is gone
        slot = ensure_slot(looking, hasty, ours="deltasmelt shop ")
        assert slot.active_pid is None
    receiver.stop()


@pytest.mark.parametrize("name", [CHECKING, STARTING_OVER])
def test_a_comparison_of_logs_is_waited_for(source: SourceSettings, name: str) -> None:
    hasty = source.with_timing(Timing(slot_release=0.2, slot_transactions=20.0))
    connection = ReplicationStream(source, application_name=name)
    connection.start(ZERO)
    over = threading.Timer(1.5, connection.close)
    over.start()
    with connect(source) as looking:
        assert ensure_slot(looking, hasty, ours="deltasmelt shop ").active_pid is None
    over.join()
