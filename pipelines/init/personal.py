"""Propose rules for columns whose names suggest secrets or personal data. Pure.

A name consists of words, in any spelling (`gold.drafting.secrets`). The proposal is ``exclude`` for a secret,
``hash`` for a value that names a person, because hashes still join, and ``mask`` for a value with a shape.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.secrets import (
    is_value_of_secret,
    speaks_of_secret,
    table_speaks_of_secrets,
)
from deltasmelt.gold.language import types

if TYPE_CHECKING:
    from deltasmelt.bronze.rules import Action

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_EXCLUDED: Final = frozenset(
    {"cvc", "cvv", "iban", "medical", "passport", "pin", "religion", "salary", "ssn", "ethnicity"}
)
_HASHED: Final = frozenset({"email", "mail", "firstname", "lastname", "surname", "username"})
_MASKED: Final = frozenset({"birthdate", "birthday", "dob", "fax", "mobile", "phone", "telephone"})
_PAIRS: Final[dict[tuple[str, str], Action]] = {
    ("credit", "card"): "exclude", ("card", "number"): "exclude", ("bank", "account"): "exclude",
    ("social", "security"): "exclude", ("tax", "id"): "exclude", ("national", "id"): "exclude",
    ("e", "mail"): "hash", ("first", "name"): "hash", ("last", "name"): "hash", ("full", "name"): "hash",
    ("family", "name"): "hash", ("user", "name"): "hash", ("birth", "date"): "mask",
    ("of", "birth"): "mask", ("ip", "address"): "hash", ("street", "address"): "mask",
}  # fmt: skip
_FACTS: Final = frozenset({"at", "count", "is", "has", "verified", "sent", "opt", "confirmed", "enabled"})
"""Words of a name that speaks about a personal value and does not contain one: ``email_verified``."""
_OF_MESSAGES: Final = frozenset({"subject", "template"})
"""Last words of a name for a part of messages: ``mail_subject``; ``subject_email`` is a person's address."""
_MAIL: Final = frozenset({"email", "mail"})


def proposed_action(name: str, *, key: bool, table: str = "", spark_type: str = "STRING") -> Action | None:
    """Return the proposed action for a column; None for a name that suggests nothing.

    `key` states whether the key or the replica identity needs the column: then only ``hash`` is possible.
    A column like ``key`` is a secret in a `table` like ``api_keys``. A flag or a moment is no secret, and the
    number in ``api_token_id`` only references a secret.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not _FACTS.isdisjoint(words):
        return None
    is_moment, is_flag = types.is_moment(spark_type), types.base(spark_type) == "BOOLEAN"
    refers = types.digits(spark_type) is not None and words[-1:] == ["id"]
    is_secret = speaks_of_secret(name) or (table_speaks_of_secrets(table) and is_value_of_secret(name))
    is_secret = is_secret and not (is_moment or is_flag or refers)
    action: Action | None = "exclude" if is_secret else _action(words)
    # Neither a flag nor a moment is the e-mail address in its name, but a moment may be a birth date.
    if (action == "hash" and (is_moment or is_flag)) or (action == "mask" and is_flag):
        return None
    return "hash" if action is not None and key else action


def _action(words: list[str]) -> Action | None:
    """Return the action for a name that is no secret's."""
    if not _EXCLUDED.isdisjoint(words):
        return "exclude"
    for pair in pairwise(words):
        if pair in _PAIRS:
            return _PAIRS[pair]
    of_message = not _OF_MESSAGES.isdisjoint(words[-1:]) and words[-2:-1] != ["of"]
    if not (_HASHED - _MAIL if of_message else _HASHED).isdisjoint(words):
        return "hash"
    return "mask" if not _MASKED.isdisjoint(words) else None
