"""Find columns and tables with secrets, by their names. Pure.

A name consists of words, in any spelling: ``api_key``, ``ApiKey``, ``apikey``. A number, a moment or a
boolean is never a secret, whatever its name: ``password_changed_at``, ``token_count``. A table has secrets if
its name ends with a secret: ``backup_codes``, but not ``token_prices``.
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
        "jwt", "otp", "salt", "secret", "secrets", "token", "tokens", "totp",
    }
)  # fmt: skip
_PAIRS: Final[dict[str, frozenset[str]]] = {
    "key": frozenset(
        {"access", "api", "auth", "encryption", "license", "private", "secret", "session", "signing", "ssh"}
    ),
    "code": frozenset(
        {"access", "auth", "backup", "invite", "login", "mfa", "otp", "recovery", "reset", "verification"}
    ),
    "session": frozenset({"auth", "login", "user", "web"}),
}
"""For the second word of a secret, in the singular, its possible first words."""
_OF_PASSWORDS: Final = frozenset({"pass", "pw", "login"})
_HASHED: Final = frozenset({"digest", "hash", "hashed"})
_VALUES: Final = frozenset({"body", "code", "data", "digest", "hash", "key", "payload", "value"})
_WITHIN: Final = (
    "accesskey", "accesstoken", "apikey", "apisecret", "authtoken", "clientsecret", "passhash", "passphrase",
    "passwd", "password", "privatekey", "pwhash", "refreshtoken", "secretkey",
)  # fmt: skip


def speaks_of_secret(name: str) -> bool:
    """Check whether the name suggests a password, a token, a key or a similar secret."""
    return _speak(_words(name))


def table_speaks_of_secrets(name: str) -> bool:
    """Check whether the rows of a table are secrets: the last words of the table's name suggest a secret."""
    words = _words(name)
    return _speak(words[-1:]) or _is_pair(*words[-2:])


def is_value_of_secret(name: str) -> bool:
    """Check whether a column of a table of secrets may contain the secret itself, and not facts about it."""
    return not _VALUES.isdisjoint(_words(name)[-1:])


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _speak(words: list[str]) -> bool:
    together = "".join(words)
    if not _ALONE.isdisjoint(words) or any(part in together for part in _WITHIN):
        return True
    if not _OF_PASSWORDS.isdisjoint(words) and not _HASHED.isdisjoint(words):
        return True
    return any(_is_pair(first, then) for first, then in pairwise(words))


def _is_pair(*words: str) -> bool:
    """Check whether two words together name a secret; any other number of words does not."""
    return len(words) == 2 and words[0] in _PAIRS.get(words[1].removesuffix("s"), ())


def is_secret(column: SilverColumn) -> bool:
    """Check whether a draft should hide a column."""
    ddl = column.spark_type
    is_harmless = types.base(ddl) == "BOOLEAN" or types.is_numeric(ddl) or types.is_moment(ddl)
    return not is_harmless and speaks_of_secret(column.name)
