"""Test which columns get a proposed rule, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.yaml_file import read_yaml
from deltasmelt.pipelines.init.command import run_init
from deltasmelt.pipelines.init.personal import proposed_action
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from tests.bronze.replaying import execute

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("action", "names"),
    [
        ("exclude", "password_hash api_key ApiKey reset_token ssn iban credit_card_number cvv client_secret"),
        ("hash", "email eMail contact_email user_name firstName last_name ip_address"),
        ("mask", "phone mobile_phone date_of_birth birthday birth_date dob"),
        (None, "id name total status email_verified password_changed_at token_count has_phone shipping"),
    ],
)
def test_names_get_the_action_of_their_words(action: str | None, names: str) -> None:
    assert {name: proposed_action(name, key=False) for name in names.split()} == dict.fromkeys(
        names.split(), action
    )
    assert proposed_action("iban", key=True) == "hash"


def test_numbers_flags_and_moments_get_no_rule() -> None:
    for name, spark_type in (
        ("needs_password_change", "BOOLEAN"),
        ("api_token_id", "BIGINT"),
        ("password_change", "TIMESTAMP"),
    ):
        assert proposed_action(name, key=False, spark_type=spark_type) is None
    assert proposed_action("email_known_to_work", key=False, spark_type="BOOLEAN") is None
    assert proposed_action("last_email", key=False, spark_type="TIMESTAMP") is None


@pytest.mark.parametrize(
    ("action", "spark_type", "names"),
    [
        ("mask", "TIMESTAMP", "birth_date date_of_birth dob birthday dateOfBirth"),
        ("exclude", "BOOLEAN", "medical religion"),
        ("exclude", "INT", "otp otp_code verification_code reset_code pin"),
        ("mask", "BIGINT", "phone"),
    ],
)
def test_types_keep_rules_of_personal_values(action: str, spark_type: str, names: str) -> None:
    for name in names.split():
        assert proposed_action(name, key=False, spark_type=spark_type) == action, name
    assert proposed_action("code", key=False, spark_type="INT", table="backup_codes") == "exclude"


def test_texts_of_messages_get_no_rule() -> None:
    for name in ("mail_subject", "email_body_template", "mail_template"):
        assert proposed_action(name, key=False) is None
    persons = ("subject_email", "email_of_subject", "subject_phone", "dob_subject", "national_id_subject")
    actions = ["hash", "hash", "mask", "mask", "exclude"]
    assert [proposed_action(name, key=False) for name in persons] == actions
    assert proposed_action("subject_token", key=False) == "exclude"


def test_values_in_tables_of_secrets_are_excluded() -> None:
    for table, column in (("api_keys", "key"), ("backup_codes", "code"), ("login_sessions", "data")):
        assert proposed_action(column, key=False, table=table) == "exclude"
        assert proposed_action(column, key=False, table="countries") is None
    assert proposed_action("name", key=False, table="api_keys") is None
    assert proposed_action("key", key=True, table="api_keys") == "hash"


@pytest.mark.postgres
def test_proposals_are_comments_that_become_rules(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        database,
        'CREATE TABLE users (email text PRIMARY KEY, "Password" text, phone text, "odd: token" text)',
        "CREATE TABLE things (id int PRIMARY KEY, name text)",
    )
    file = tmp_path / "pipeline.yml"
    run_init(Output(), dsn=database, out=file, schemas=())
    assert load_pipeline(file).source.columns == {}
    monkeypatch.setenv("SMELT_HASH_KEY", "k" * 32)
    kept = [
        line.replace("  # ", "  ", 1) if line.startswith(("  # hash_key", "  # columns", "  #   ")) else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(kept))
    source = load_pipeline(file).source
    assert source.columns == {
        "public.users": {
            "email": "hash",
            "Password": "exclude",
            "phone": "mask",
            "odd: token": "exclude",
        }
    }
    assert read_yaml(file).data["source"]["columns"] == source.columns
