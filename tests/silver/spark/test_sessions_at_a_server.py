"""Test sessions at a Spark Connect server, without Spark: number of requests, servers without clones."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.proto import base_pb2 as protocol
from pyspark.sql.connect.proto.base_pb2_grpc import (
    SparkConnectServiceServicer,
    add_SparkConnectServiceServicer_to_server,
)
from pyspark.sql.connect.session import SparkSession

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import is_lost
from deltasmelt.pipelines.spark.session import stop_session
from deltasmelt.silver.spark.connect import Connect, pause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Server(SparkConnectServiceServicer):
    """Returns the timeout of idle sessions, and ends sessions; both after `answering`.

    Attributes:
        reads: number of answered requests for the timeout.
        ended: for each ended session, True if the client still waited for the answer.
    """

    def __init__(self) -> None:
        self.answering = threading.Event()
        self.reads = 0
        self.ended: list[bool] = []

    def Config(self, request: Any, _: Any) -> Any:  # noqa: N802 - the name in the protocol
        self.answering.wait()
        self.reads += 1
        pairs = [
            protocol.KeyValue(key=pair.key, value="2s") for pair in request.operation.get_with_default.pairs
        ]
        return protocol.ConfigResponse(session_id=request.session_id, server_side_session_id="1", pairs=pairs)

    def ReleaseSession(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in the protocol
        self.answering.wait()
        self.ended.append(context.is_active())
        return protocol.ReleaseSessionResponse(session_id=request.session_id, server_side_session_id="1")


@contextmanager
def session_at(server: Server) -> Iterator[Any]:
    listening = grpc.server(ThreadPoolExecutor(4))
    add_SparkConnectServiceServicer_to_server(server, listening)  # type: ignore[no-untyped-call]
    port = listening.add_insecure_port("127.0.0.1:0")
    listening.start()
    session: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    try:
        yield session
    finally:
        server.answering.set()
        Connect(session).close()
        listening.stop(0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        ("8s", 2),
        ("8000", 2),
        ("8000ms", 2),
        ("4m", 60),
        ("4min", 60),
        (" 60M ", 300),
        ("1d", 300),
        ("0s", 0.5),
    ]
    + [(odd, 300) for odd in ("", "-1", "-1ms", "soon", "1 fortnight")],
)
def test_idle_session_is_pinged_within_server_timeout(timeout: str, seconds: float) -> None:
    """The pause between two calls is a quarter of the server's idle timeout."""
    assert pause_of(timeout) == seconds


def test_missing_clones_and_closed_client_are_recognized() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    session: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
    try:
        with pytest.raises(Exception, match="UNIMPLEMENTED") as unknown:
            session.conf.get("spark.master")
        assert not is_lost(unknown.value)
        with pytest.raises(DefiniteError) as refused:
            Connect(session).clone()
        assert refused.value.code == "spark-connect-version"
        session.client.close()
        with pytest.raises(Exception, match="NO_ACTIVE_SESSION") as closed:
            session.conf.get("spark.master")
        assert is_lost(closed.value)
        assert is_lost(DefiniteError("of it", code="sql")) is False
    finally:
        server.stop(0)


def test_collected_session_blocks_no_starting_thread() -> None:
    session: Any = SparkSession.builder.remote("sc://127.0.0.1:1").create()
    Connect(session).close()
    assert session.client.is_closed
    pool = ExecutePlanResponseReattachableIterator._get_or_create_release_thread_pool()

    def collect() -> None:
        with pool._shutdown_lock:  # as `submit` does
            session.__del__()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_silent_server_delays_no_session_at_another_server() -> None:
    silent, answering = Server(), Server()
    answering.answering.set()
    with session_at(silent) as first, session_at(answering) as second:
        assert Connect(first).keep()
        assert Connect(second).keep()
        assert not Connect(second).keep()
        wait_until(lambda: answering.reads > 1)
        assert silent.reads == 0


def test_slow_server_still_ends_session_after_stop() -> None:
    """The next session is new at once."""
    slow = Server()
    with session_at(slow) as session:
        SparkSession._set_default_and_active_session(session)
        stop_session(session, patience=0.2)
        assert SparkSession.getActiveSession() is None
        slow.answering.set()
        wait_until(lambda: session.client.is_closed)
        assert slow.ended == [True]
