"""Drafted documents stay small and clean: drafts count many rows, and omit secrets."""

from __future__ import annotations

import pytest

from deltasmelt.gold.drafting.propose import propose
from deltasmelt.gold.drafting.secrets import speaks_of_secret, table_speaks_of_secrets
from tests.gold.drafting.test_propose import described, points, texts


def test_many_children_are_counted_with_array_as_comment() -> None:
    devices = described("devices", "id int4, a text, b text, c text, d text", rows=2000)
    readings = described(
        "readings", "id int8, device_id int4, value float8", ("id",), points("device_id", "devices"),
        rows=9_000_000,
    )  # fmt: skip
    drafted = texts(devices, readings)["device"]
    assert (
        drafted.partition("  - d\n")[2]
        == """\
  # about 4,500 rows each, so the rows are counted; `limit` or `cap` would limit the length of an array:
  # - readings:
  #     many: public.readings
  #     on: {device_id: id}
  #     fields: [id, value]
  - reading_count: {count: public.readings, on: {device_id: id}}
"""
    )


def test_many_children_without_fields_are_counted_without_array() -> None:
    devices = described("devices", "id int4, a text, b text, c text, d text", rows=2000)
    pings = described(
        "pings", "device_id int4, body bytea", ("body",), points("device_id", "devices"), rows=9_000_000
    )
    drafted = texts(devices, pings)["device"]
    assert (
        drafted.partition("  - d\n")[2]
        == """\
  # about 4,500 rows each, so the rows are counted
  - ping_count: {count: public.pings, on: {device_id: id}}
"""
    )


def test_rows_are_counted_per_document_and_not_parent() -> None:
    """Each parent has few rows, but a document has many parents."""
    stores = described("stores", "id int4, a text, b text, c text, d text", rows=2)
    customers = described(
        "customers", "id int4, store_id int4", ("id",), points("store_id", "stores", owning=True), rows=600
    )
    rentals = described(
        "rentals", "id int4, customer_id int4", ("id",), points("customer_id", "customers"), rows=60_000
    )
    drafted = texts(stores, customers, rentals)
    assert "  - customers:\n      many: public.customers\n" in drafted["store"]
    assert "# about 30,000 rows in a document, so the rows are counted;" in drafted["store"]
    assert "  - rentals:\n      many: public.rentals\n" in drafted["customer"]


def test_rows_behind_a_link_are_counted_by_it() -> None:
    wide = "id int4, p text, q text, r text, s text"
    link = described("a_box", "a_id int4, b_id int4, note text", ("a_id", "b_id"), points("a_id", "a"),
                     points("b_id", "box"), rows=9_000)  # fmt: skip
    drafted = texts(described("a", wide, rows=3), described("box", wide, rows=5_000), link)["a"]
    assert (
        """\
  - box_count:
      count: public.box
      through: {table: public.a_box, on: {a_id: id}, to: {b_id: id}}
"""
        in drafted
    )
    assert "# - boxes:\n  #     many: public.box\n  #     through: " in drafted


SECRETS = [
    "password", "Passwd", "user_pwd", "PasswordHash", "pw_hash", "api_key", "apiKey", "APIKEY", "authtoken",
    "token", "refresh_token", "ResetTokens", "client_secret", "private_key", "SSHKey", "salt", "passphrase",
    "encryption_key", "smtp_credentials", "userpassword", "backup_code", "otp", "session_key",
]  # fmt: skip
NO_SECRETS = [
    "key", "id", "secretary", "tokenized", "hash", "content_hash", "salted", "primary_key", "passport",
    "boarding_pass", "keyboard", "api_version", "public_key_id", "monkey", "compass", "author",
    "postal_code", "session_id",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_names_that_speak_of_secrets(name: str) -> None:
    assert speaks_of_secret(name)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_names_that_do_not(name: str) -> None:
    assert not speaks_of_secret(name)


def test_tables_of_secrets_are_in_no_document() -> None:
    users = described("users", "id int4, name text, email text, city text, team text")
    secrets = [
        described(name, f"id int4, user_id int4, {value} text", ("id",), points("user_id", "users"))
        for name, value in (("api_keys", "key"), ("backup_codes", "code"), ("login_sessions", "data"))
    ]
    uses = described("uses", "id int4, api_key_id int4", ("id",), points("api_key_id", "api_keys"))
    drafted = texts(
        users, *secrets, uses, described("posts", "id int4, u int4", ("id",), points("u", "users"))
    )
    assert drafted.keys() == {"user"}
    for name in ("api_keys", "backup_codes", "login_sessions"):
        assert f"# - {name} (public.{name})    # secrets by the table's name, left out" in drafted["user"]
        assert f"many: public.{name}" not in drafted["user"]
    left = {str(table.table): table.reason for table in propose([users, *secrets, uses]).left_out}
    assert left["public.api_keys"] == "secrets by its name"
    assert not table_speaks_of_secrets("token_prices")
    assert not table_speaks_of_secrets("sessions")


def test_secrets_are_omitted_with_comment_at_any_depth() -> None:
    users = described(
        "users", "id int4, name text, password text!, password_changed_at timestamptz, token_count int4"
    )
    posts = described("posts", "id int4, user_id int4, a text, b text", ("id",), points("user_id", "users"))
    likes = described("likes", "id int4, post_id int4, api_key text", ("id",), points("post_id", "posts"))
    drafted = texts(users, posts, likes)
    for text in drafted.values():
        assert "# - password    # a secret by its name, left out\n" in text
        assert "- password_changed_at" in text
        assert "- token_count" in text
    assert "- password\n" not in drafted["user"].replace("# - password", "")
    assert "# - api_key    # a secret by its name, left out\n" in drafted["post"]


def test_table_with_all_columns_omitted_is_named() -> None:
    users = described("users", "id int4, name text")
    logins = described(
        "user_logins",
        "user_id int4, password_hash text",
        ("user_id", "password_hash"),
        points("user_id", "users"),
    )
    text = texts(users, logins)["user"]
    assert "(public.user_logins)    # its only columns are: password_hash, left out" in text


def test_secret_of_otherwise_empty_link_is_named() -> None:
    wide = "id int4, p text, q text, r text, s text"
    link = described("a_b", "a_id int4, b_id int4, invite_token text", ("a_id", "b_id"), points("a_id", "a"),
                     points("b_id", "b"))  # fmt: skip
    text = texts(described("a", wide), described("b", wide), link)["a"]
    assert "# invite_token    # a secret by its name, left out" in text
