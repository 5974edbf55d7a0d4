"""Test the replication connection and its thread: batches, latency, feedback, TLS, bounded queue."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.bronze.stream.receiver import Batch, Receiver
from deltasmelt.bronze.stream.replication import ReplicationStream
from tests.bronze.certificates import Authority
from tests.bronze.replaying import current_lsn, execute, fetch, session, source_of
from tests.bronze.tls_front import TlsFront
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database)
    prepare(source)
    return source


def prepare(source: SourceSettings) -> None:
    execute(
        source,
        "CREATE TABLE t (id serial PRIMARY KEY, note text)",
        "CREATE PUBLICATION smelt FOR ALL TABLES",
        f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
    )


@contextmanager
def receiving(
    source: SourceSettings, capacity: int = 10_000_000, feedback_seconds: float = 0.2
) -> Iterator[Receiver]:
    connection = ReplicationStream(source, application_name="test")
    try:
        connection.start(ZERO)
    except BaseException:
        connection.close()
        raise
    receiver = Receiver(
        connection, capacity=capacity, durable=ZERO, feedback_seconds=feedback_seconds, silence_seconds=30.0
    )
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def messages_of(batch: Batch) -> list[bytes]:
    return [message for block in batch.blocks for message in block.messages()]


def receive_until(receiver: Receiver, lsn: Lsn, seconds: float = 30.0) -> list[bytes]:
    """Return pgoutput messages up to a position."""
    received: list[bytes] = []
    deadline = time.monotonic() + seconds
    while receiver.received < lsn or receiver.take(most=1, timeout=0) is not None:
        assert time.monotonic() < deadline, f"only {len(received)} messages"
        batch = receiver.take(most=1_000_000, timeout=0.1)
        if batch is not None:
            assert batch.size == sum(map(len, messages_of(batch)))
            received += [message[25:] for message in messages_of(batch)]
    return received


def server_end(source: SourceSettings) -> Lsn:
    with session(source) as connection:
        return current_lsn(connection)


def test_every_message_arrives_once_and_in_order(source: SourceSettings) -> None:
    execute(source, "INSERT INTO t (note) SELECT repeat('x', i % 500) FROM generate_series(1, 30000) i")
    with receiving(source) as receiver:
        received: list[bytes] = []
        while len(received) < 30000:
            batch = receiver.take(most=500_000, timeout=5)
            assert batch is not None
            received += [message for message in messages_of(batch) if message[25:26] == b"I"]
        identities = [int(message[25 + 8 + 5 :].split(b"t", 1)[0].split(b"n", 1)[0]) for message in received]
    assert identities == list(range(1, 30001))


def test_few_bytes_never_wait_long_for_full_batch(source: SourceSettings) -> None:
    with receiving(source) as receiver, session(source) as connection:
        while receiver.take(most=1, timeout=0.5) is not None:
            pass
        delays = []
        for _ in range(20):
            connection.execute("INSERT INTO t (note) VALUES ('x')")
            committed = time.monotonic()
            while True:
                batch = receiver.take(most=1_000_000, timeout=5)
                assert batch is not None
                if any(message[25:26] == b"C" for message in messages_of(batch)):
                    break
            delays.append(time.monotonic() - committed)
            time.sleep(0.03)
    # Were few bytes held back until more came, each would wait; a busy machine makes only some of them late.
    assert sorted(delays)[len(delays) // 4] < 0.1


def test_nothing_is_confirmed_but_what_the_writer_said(source: SourceSettings) -> None:
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    before = fetch(source, query, source.slot)
    execute(source, "INSERT INTO t (note) VALUES ('x')")
    end = server_end(source)
    with receiving(source) as receiver:
        deadline = time.monotonic() + 10
        while receiver.received < end:
            assert time.monotonic() < deadline
            receiver.take(most=1_000_000, timeout=0.1)
        time.sleep(0.6)
        assert fetch(source, query, source.slot) == before
        receiver.confirm(end, at_once=True)
        wait_for(lambda: fetch(source, query, source.slot) == str(end))


def test_a_full_queue_stops_reading_but_not_feedback(own_server: EmbeddedServer) -> None:
    source = source_of(own_server.dsn(), slot="smelt_full")
    prepare(source)
    execute(source, "ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
    execute(source, "INSERT INTO t (note) SELECT repeat('x', 1000) FROM generate_series(1, 20000) i")
    with receiving(source, capacity=2_000_000) as receiver:
        time.sleep(4)
        assert receiver._size < 5_000_000
        received = 0
        while received < 20000:
            batch = receiver.take(most=1_000_000, timeout=5)
            assert batch is not None
            received += sum(message[25:26] == b"I" for message in messages_of(batch))


def test_requested_keepalive_states_position_read_by_server(
    source: SourceSettings,
) -> None:
    with receiving(source) as receiver:
        while receiver.take(most=1_000_000, timeout=0.5) is not None:
            pass
        execute(source, "CREATE TABLE unrelated (id int)")
        end = server_end(source)
        deadline = time.monotonic() + 10
        reached = ZERO
        while reached < end:
            assert time.monotonic() < deadline
            receiver.request_reply()
            batch = receiver.take(most=1_000_000, timeout=0.2)
            if batch is not None and batch.keepalive is not None:
                reached = batch.keepalive.wal_end


def test_received_messages_survive_broken_connection(source: SourceSettings) -> None:
    execute(source, "INSERT INTO t (note) SELECT 'x' FROM generate_series(1, 1000)")
    end = server_end(source)
    with receiving(source) as receiver:
        wait_for(lambda: receiver.received >= end, 10)
        execute(source, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        time.sleep(0.5)
        messages = 0
        error: SmeltError | None = None
        while error is None:
            try:
                batch = receiver.take(most=1000, timeout=5)
            except SmeltError as raised:
                error = raised
            else:
                messages += 0 if batch is None else len(messages_of(batch))
        assert messages >= 1002
        assert isinstance(error, TransientError)
        assert error.code == "connection-lost"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ("SELECT pg_drop_replication_slot('smelt_' || current_database())", "slot-missing"),
        ("DROP PUBLICATION smelt", "publication-missing"),
    ],
)  # fmt: skip
def test_unstartable_stream_is_definite_error(source: SourceSettings, spoil: str, code: str) -> None:
    execute(source, spoil, "INSERT INTO t (note) VALUES ('x')")
    with pytest.raises(DefiniteError) as caught, receiving(source) as receiver:
        receive_until(receiver, Lsn(server_end(source) + 1))
    assert caught.value.code == code


def test_waiting_for_running_transactions_can_be_cancelled(source: SourceSettings) -> None:
    with session(source) as blocking:
        blocking.execute("BEGIN")
        blocking.execute("INSERT INTO t (note) VALUES ('open')")
        connection = ReplicationConnection(source, application_name="test")
        cancelled = threading.Event()
        threading.Timer(0.5, cancelled.set).start()
        started = time.monotonic()
        assert connection.export_snapshot(f"tmp_{source.slot}", cancelled.is_set) is None
        assert time.monotonic() - started < 5
        connection.close()


def test_stream_passes_tls_with_small_and_large_messages(own_server: EmbeddedServer, tmp_path: Path) -> None:
    plain = source_of(own_server.dsn(), slot="smelt_tls")
    prepare(plain)
    certificate = Authority(tmp_path).issue("localhost", hosts=["localhost"])
    with TlsFront(certificate, own_server.port) as front:
        source = plain.model_copy(update={"port": str(front.port), "sslmode": "require"})
        with receiving(source) as receiver:
            assert receiver._connection._pgconn.ssl_in_use
            sizes = [1, 100, 8_000, 16_384, 16_385, 40_000, 300_000, 5_000_000]
            for size in sizes:
                execute(plain, f"INSERT INTO t (note) SELECT repeat('x', {size}) FROM generate_series(1, 3)")
                started = time.monotonic()
                received = 0
                while received < 3:
                    batch = receiver.take(most=1_000_000, timeout=10)
                    assert batch is not None
                    received += sum(
                        message[25:26] == b"I" and len(message) > size for message in messages_of(batch)
                    )
                assert time.monotonic() - started < 5


def test_unreachable_server_message_omits_password() -> None:
    source = source_of("postgresql://someone:s3cr3t@127.0.0.1:1/nowhere")
    with pytest.raises(SmeltError) as caught:
        ReplicationStream(source, application_name="test")
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.code == "server-unreachable"
