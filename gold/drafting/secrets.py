"""Find columns with secrets, by their names. Pure.

A name consists of words, in any spelling: ``api_key``, ``ApiKey``, ``apikey``. A number, a moment or a
boolean is never a secret, whatever its name: ``password_changed_at``, ``token_count``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.language import types

if TYPE_CHECKING:
    from deltasmelt.silver.schema.catalog import SilverColumn

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALONE: Final = frozenset(
    {
        "credential", "credentials", "passcode", "passphrase", "passwd", "password", "passwords", "pwd",
        "salt", "secret", "secrets", "token", "tokens",
    }
)  # fmt: skip
_KEYS_OF: Final = frozenset({"access", "api", "auth", "encryption", "private", "secret", "signing", "ssh"})
_OF_PASSWORDS: Final = frozenset({"pass", "pw", "login"})
_HASHED: Final = frozenset({"digest", "hash", "hashed"})
_WITHIN: Final = (
    "accesskey", "accesstoken", "apikey", "apisecret", "authtoken", "clientsecret", "passhash", "passphrase",
    "passwd", "password", "privatekey", "pwhash", "refreshtoken", "secretkey",
)  # fmt: skip
_HARMLESS: Final = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIMESTAMP",
        "TIMESTAMP_NTZ",
    }
)  # fmt: skip


def speaks_of_secret(name: str) -> bool:
    """Check whether the name suggests a password, a token, a key or a similar secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    together = "".join(words)
    if not _ALONE.isdisjoint(words) or any(part in together for part in _WITHIN):
        return True
    if not _OF_PASSWORDS.isdisjoint(words) and not _HASHED.isdisjoint(words):
        return True
    return any(first in _KEYS_OF and then in {"key", "keys"} for first, then in pairwise(words))


def is_secret(column: SilverColumn) -> bool:
    """Check whether a draft should hide a column."""
    return types.base(column.spark_type) not in _HARMLESS and speaks_of_secret(column.name)
