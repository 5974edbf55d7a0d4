"""Any mistake in a connection string: no part of a password appears in errors, places or logs."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.errors import ConfigurationError, SmeltError
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conninfo import address_of, conninfo, user_and_database, without_passwords
from deltasmelt.pipelines.runtime.reader_process import error_fields
from deltasmelt.pipelines.terminal import failures

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD, TAIL = "hEaDw0rd", "tAiLw0rd"
NOISE: Final = st.text(st.sampled_from("@/:?#%&='\"\\[], \t\nZ19\u00e9\0"), max_size=6)
PASSWORDS: Final = st.tuples(NOISE, NOISE, NOISE).map(lambda each: f"{each[0]}{HEAD}{each[1]}{TAIL}{each[2]}")

URIS: Final = (
    "postgresql://smelt:{}@127.0.0.1:1/shop",
    "postgres://smelt:{}@127.0.0.1:1/shop?sslmode=disable",
    "postgresql://smelt:{}@127.0.0.1:1,127.0.0.1:1",
    "postgresql://smelt:{}@/shop?host=127.0.0.1&port=1",
    "postgresql://:{}@127.0.0.1:1/shop",
    "postgresql://smelt:{}@@127.0.0.1:1/shop",
    "postgresql://smelt@127.0.0.1:1/shop?password={}",
    "postgresql://smelt:{}@127.0.0.1:1/shop?nonsense=1",
    "postgresql://smelt:{}@[127.0.0.1:1/shop",
    "postgresql:/smelt:{}@127.0.0.1:1/shop",
    "jdbc:postgresql://smelt:{}@127.0.0.1:1/shop",
    "postgresql+psycopg2://smelt:{}@127.0.0.1:1/shop",
    "mysql://smelt:{}@127.0.0.1:1/shop",
    " postgresql://smelt:{}@127.0.0.1:1/shop",
)
KEYWORDS: Final = (
    "host=127.0.0.1 port=1 user=smelt dbname=shop password={}",
    "password={} host=127.0.0.1 port=1 user=smelt",
    "password='{} host=127.0.0.1 port=1 user=smelt",
    "password='{}' host=127.0.0.1 port=1 user=smelt",
    'password="{}" host=127.0.0.1 port=1 user=smelt',
    "host=127.0.0.1 port=1 user=smelt {}",
    "host=127.0.0.1 port=1 user=smelt passwort={}",
)
WRONG_KEYS: Final = ("host", "hostaddr", "database", "user")


@pytest.fixture(autouse=True, scope="module")
def _plain_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PGHOST", "PGHOSTADDR", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE", "PGPASSWORD"):
            patch.delenv(name, raising=False)
        yield


def source(**values: object) -> SourceSettings:
    return SourceSettings.model_validate({"slot": "smelt", "publication": "smelt", **values})


def all_that_is_said(settings: SourceSettings) -> str:
    """Return all texts: places, the connection error, the parent process's error, the log's traceback."""
    texts = [address_of(settings), *user_and_database(settings)]
    with pytest.raises(SmeltError) as caught:
        connect(settings)
    error = caught.value
    record = logging.LogRecord("deltasmelt", logging.ERROR, "", 0, "stopped: %s", (error,), None)
    record.exc_info = (type(error), error, error.__traceback__)
    texts += [str(error), failures.error_text(error), str(error_fields(error))]
    texts += [logging.Formatter().format(record), "".join(traceback.format_exception(error))]
    return "\n".join(texts)


def assert_silent(settings: SourceSettings) -> None:
    texts = all_that_is_said(settings)
    for part in (HEAD, TAIL):
        assert part.lower() not in texts.lower()


@settings(max_examples=300)
@given(password=PASSWORDS, form=st.sampled_from(URIS + KEYWORDS), encoded=st.booleans())
@example(password=f"{HEAD}/{TAIL}", form=URIS[0], encoded=False)
@example(password=f"{HEAD}@55/{TAIL}", form=URIS[0], encoded=False)
@example(password=f"12/{HEAD}{TAIL}", form=URIS[0], encoded=False)
@example(password=f'{HEAD}"x {TAIL}', form=KEYWORDS[0], encoded=False)
@example(password=f"1/{HEAD}?application_name={TAIL}", form=URIS[0], encoded=False)
@example(password=f"1/{HEAD}?port={TAIL}", form=URIS[0], encoded=False)
@example(password=f"%zz{HEAD}{TAIL}", form=URIS[0], encoded=False)
@example(password=f"{HEAD}{TAIL}%91", form=URIS[0], encoded=False)
def test_connection_string_never_reveals_password(password: str, form: str, *, encoded: bool) -> None:
    assert_silent(source(dsn=form.format(quote(password, safe="") if encoded else password)))


@settings(max_examples=100)
@given(password=PASSWORDS, key=st.sampled_from(WRONG_KEYS))
@example(password=f"{HEAD}/{TAIL}", key="database")
def test_connection_string_in_wrong_key_reveals_no_password(password: str, key: str) -> None:
    ours = {"host": "127.0.0.1", "port": 1, "user": "smelt", "database": "shop"}
    assert_silent(source(**{**ours, key: f"postgresql://smelt:{password}@127.0.0.1:1/shop"}))


@settings(max_examples=100)
@given(password=PASSWORDS)
def test_password_reaches_libpq_exactly_or_is_rejected(password: str) -> None:
    """The settings hold the password under a separate key, outside the connection string."""
    ours = source(host="127.0.0.1", port=1, user="smelt", database="shop", password=password)
    assert_silent(ours)
    if "\0" not in password:
        assert conninfo_to_dict(conninfo(ours))["password"] == password
    encoded = source(dsn=f"postgresql://smelt:{quote(password, safe='')}@127.0.0.1:1/shop")
    if "\0" not in password:
        assert conninfo_to_dict(conninfo(encoded))["password"] == password


@pytest.mark.parametrize("password", [f"{HEAD}\0{TAIL}", f"{HEAD}\udcff{TAIL}"])
def test_what_no_packet_can_carry_is_refused(password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        conninfo(source(host="db", password=password))
    assert (caught.value.code, caught.value.where) == ("dsn-invalid", "source.password")


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        ("postgresql://me%40corp:pw@db.example/shop%40home", "db.example:5432/shop@home as me@corp"),
        ("postgresql://me:a:b?c#d@[::1]:6000/shop", "[::1]:6000/shop as me"),
        ("postgresql://me@h1:1,h2:2/shop", "h1,h2:1,2/shop as me"),
        ("postgresql:///shop?host=/run/pg&user=me", "/run/pg:5432/shop as me"),
        ("host=h1,h2 port=,5433 user=me@corp dbname=shop@home", "h1,h2:,5433/shop@home as me@corp"),
    ],
)
def test_correct_connection_string_is_accepted_unchanged(dsn: str, place: str) -> None:
    assert address_of(source(dsn=dsn)) == place


@pytest.mark.parametrize(
    "text",
    [
        f"could not reach postgresql://me:{HEAD}@{TAIL}@db/shop",
        f"could not reach postgresql://:{HEAD}/{TAIL}@db/shop",
        f"bad: host=db password='{HEAD}\\' {TAIL}' user=me",
        f"bad: host=db password={HEAD}\\ {TAIL} user=me",
        f"bad: host=db sslpassword = {HEAD}{TAIL}",
    ],
)
def test_the_texts_of_foreign_errors_lose_whole_passwords(text: str) -> None:
    redacted = failures.without_secrets(text)
    assert HEAD not in redacted
    assert TAIL not in redacted
    assert "***" in redacted


def test_library_error_repeating_password_is_truncated() -> None:
    ours = source(host="db", user="me", password=f"{HEAD} {TAIL}")
    assert without_passwords(f'server said "{HEAD} {TAIL}"', ours) == 'server said "****"'
    assert isinstance(psycopg.OperationalError(), psycopg.Error)
