"""Keep the cases found by enumerating faults (`tests/bronze/reader/test_enumerated_faults.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.store.position import Position, read_position
from deltasmelt.bronze.store.sink import DeltaSink
from tests.bronze.replaying import source_of
from tests.bronze.written_log import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable


class Once:
    """A guard that replaces the n-th effect of a kind by another action, once."""

    def __init__(self, door: Effect, number: int, instead: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._door = door
        self._left = number
        self._instead = instead

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        self._left -= door is self._door
        if self._left == 0 and door is self._door:
            return self._instead(where, effect)
        return effect()


@pytest.mark.postgres
def test_backend_ending_during_settings_is_lost_connection(database: str) -> None:
    source = source_of(database)

    def end_first(where: str, effect: Callable[[], Any]) -> Any:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [int(where)])
        return effect()

    for statement in (1, 2):
        with guarded(Once(Effect.STATEMENT, statement, end_first)), pytest.raises(TransientError) as caught:
            connect(source)
        assert caught.value.code == "connection-lost"


@pytest.mark.postgres
def test_command_on_lost_connection_is_lost_connection(database: str) -> None:
    source = source_of(database)
    with connect(source) as connection:
        connection.pgconn.exec_(b"SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(TransientError) as caught, translated(source):
            connection.pgconn.exec_(b"SELECT 1")
    assert caught.value.code == "connection-lost"


def test_store_hiding_own_commit_is_read_again(lake_path: str) -> None:
    sink = DeltaSink(Lake(lake_path), "shop", IDENTITY)
    sink.commit(Position(Lsn(9), Lsn(10), 0, None))
    first = Position(Lsn(19), Lsn(20), 0, None)
    unseen = Once(Effect.REFRESH, 1, lambda _where, _effect: None)
    with guarded(unseen), pytest.raises(TransientError) as caught:
        sink.commit(first)  # nothing is confirmed of it: it may not outlive a power cut yet
    assert caught.value.code == "lake-unwritable"
    sink.discard()
    before = sink.position
    assert before is not None
    assert before.confirm == 20
    sink.commit(Position(Lsn(29), Lsn(30), 0, None))
    assert (position := read_position(Lake(lake_path))) is not None
    assert position.confirm == 30
