"""Convert texts from a database's own encoding to UTF-8, by the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

_QUERY_BYTES: Final = 8 << 20


_CONVERT: Final = (
    "SELECT convert(u.text, %s, 'UTF8') FROM unnest(%b::bytea[]) WITH ORDINALITY AS u (text, number) "
    "ORDER BY u.number"
)


def server_encoding(connection: psycopg.Connection[Any]) -> str:
    """Return the encoding of the connected database, e.g. ``UTF8``."""
    return connection.info.parameter_status("server_encoding") or "UTF8"


def to_utf8(connection: psycopg.Connection[Any], encoding: str, texts: Sequence[bytes]) -> list[bytes | None]:
    """Convert texts to UTF-8 by the server's own conversion; None for each refused text.

    The server converts all texts at once; after a refusal, by halves. `connection` is idle or inside a
    transaction.
    """
    from psycopg import errors  # noqa: PLC0415 - silver and gold import this for a constant of its callers

    if not texts:
        return []
    if len(texts) > 1 and sum(map(len, texts)) > _QUERY_BYTES:
        return _by_halves(connection, encoding, texts)
    try:
        with connection.transaction():  # a savepoint: a refusal leaves the caller's transaction usable
            rows = connection.execute(_CONVERT, [encoding, list(texts)]).fetchall()
    except (errors.CharacterNotInRepertoire, errors.UntranslatableCharacter):
        return [None] if len(texts) == 1 else _by_halves(connection, encoding, texts)
    return [row[0] for row in rows]


def _by_halves(
    connection: psycopg.Connection[Any], encoding: str, texts: Sequence[bytes]
) -> list[bytes | None]:
    half = len(texts) // 2
    return [*to_utf8(connection, encoding, texts[:half]), *to_utf8(connection, encoding, texts[half:])]
