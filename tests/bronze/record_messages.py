"""Record messages of real servers: ``python -m tests.bronze.record_messages`` writes ``recorded/pg*.bin``.

A file is the zlib compression of all XLogData messages, each after its length (4 bytes, big-endian). The
recording omits keepalives. ``recorded/schema.sql`` and ``recorded/history.sql`` hold the statements.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.pipelines.demo.embedded_copy import ServerVersion

FOLDER: Final = Path(__file__).parent / "recorded"
PUBLICATION_OPTIONS: Final = "proto_version '1', publication_names 'p', messages 'true'"

SMALL: Final = [
    *(
        f"INSERT INTO by_default VALUES ({i}, 'v'); INSERT INTO excluded VALUES ({i}, 'v')"
        for i in range(200, 260)
    ),
    *(f"UPDATE by_default SET v = 'w' WHERE id = {i}" for i in range(200, 300)),
]
"""Transactions of one or two changes."""
END: Final = "SELECT pg_logical_emit_message(true, 'end', 'of the recording')"


def schema() -> str:
    """Return the SQL of the tables and the publication ``p``."""
    return (FOLDER / "schema.sql").read_text()


def history() -> list[str]:
    """Return the recorded transactions, each as SQL."""
    return [*(FOLDER / "history.sql").read_text().split("-- next transaction\n"), *SMALL]


def record(dsn: str, transactions: Sequence[str], *, slot: str = "recorder") -> list[bytes]:
    """Run the transactions and return the messages of a new slot of the publication ``p``; keep the slot."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        for statements in [*transactions, END]:
            with connection.transaction():
                connection.execute(statements.encode())
    return read_slot(dsn, slot)


def read_slot(dsn: str, slot: str) -> list[bytes]:
    """Return the slot's XLogData messages, up to the Commit after a message with prefix ``end``."""
    link = pq.PGconn.connect(psycopg.conninfo.make_conninfo(dsn, replication="database").encode())
    assert link.status == pq.ConnStatus.OK, link.error_message
    started = link.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({PUBLICATION_OPTIONS})".encode())
    assert started.status == pq.ExecStatus.COPY_BOTH, link.error_message
    messages: list[bytes] = []
    ending = False
    while not (ending and messages[-1][25:26] == b"C"):
        size, view = link.get_copy_data(0)
        assert size > 0, link.error_message
        data = bytes(view)
        if data[:1] == b"w":
            messages.append(data)
            ending = ending or (data[25:26] == b"M" and data[35:39] == b"end\0")
    link.finish()
    return messages


def save(path: Path, messages: Sequence[bytes]) -> None:
    """Write a recording."""
    path.write_bytes(
        zlib.compress(b"".join(len(message).to_bytes(4, "big") + message for message in messages), 9)
    )


def load(path: Path) -> list[bytes]:
    """Read a recording."""
    data = zlib.decompress(path.read_bytes())
    messages, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        messages.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return messages


def main() -> None:
    """Record from both servers."""
    versions: tuple[ServerVersion, ...] = (16, 18)
    for version in versions:
        with EmbeddedServer(version=version) as server:
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(schema().encode())
                if version == 18:
                    connection.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
            messages = record(server.dsn(), history())
            path = FOLDER / f"pg{version}.bin"
            save(path, messages)
            print(f"{path}: {len(messages)} messages, {path.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
