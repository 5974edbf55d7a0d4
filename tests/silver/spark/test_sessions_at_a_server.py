"""Test sessions at a Spark Connect server, without Spark: number of requests, servers without clones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.session import SparkSession

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import is_lost
from deltasmelt.silver.spark.connect import Connect, pause_of


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
