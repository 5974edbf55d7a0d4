"""YAML files: YAML 1.2, line numbers, variables, and helpful errors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.validation import validate
from deltasmelt.bronze.config.yaml_file import YamlFile, parse_yaml, read_yaml
from deltasmelt.bronze.errors import ConfigurationError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    port: Annotated[int, Field(le=65535)] = 1
    mode: Literal["initial", "never"] = "initial"
    names: list[str] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str
    inner: Inner = Inner()
    many: list[Inner] = []
    secret: SecretStr | None = None
    checked: str = ""

    @field_validator("checked")
    @classmethod
    def _no_x(cls, value: str) -> str:
        if value.startswith("x"):
            raise ValueError(f"starts with x: {value!r}")
        return value


def parse(text: str, *, expand_env: bool = False) -> YamlFile:
    return parse_yaml(text, Path("shop.yml"), expand_env=expand_env)


def complaint(text: str, *, expand_env: bool = False) -> str:
    with pytest.raises(ConfigurationError) as caught:
        validate(Outer, parse(text, expand_env=expand_env))
    return str(caught.value)


def test_yaml_1_2_words_and_dates_stay_text() -> None:
    """As in YAML 1.2, `on`, `no`, `yes` and dates are words."""
    file = parse("on: no\nyes: off\nwhen: 2024-01-01\nn: 1_000\nmany: [on, y, 0o17, 0x1F, 1e3, ~, true]")
    assert file.data == {"on": "no", "yes": "off", "when": "2024-01-01", "n": "1_000",
                         "many": ["on", "y", 15, 31, 1000.0, None, True]}  # fmt: skip


def test_every_node_knows_its_line() -> None:
    file = parse("a:\n  b:\n    - x\n    - {c: 1,\n       d: 2}\n")
    assert file.where(("a", "b", 1, "d")) == "shop.yml:5"
    assert file.line(("a", "b", 0)) == 3
    assert file.line(("a",), key=True) == 1
    assert file.line(("a", "b", 7, "nothing")) == 3  # the nearest thing around it


def test_a_key_that_stands_twice_names_both_lines() -> None:
    assert "shop.yml:2: key 'title' occurs twice (first at line 1)" in complaint("title: a\ntitle: b")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1, 2\nb: 3", 2),
        ("a:\n\tb: 1", 2),
        ("a: b: c", 1),
        ('a: "x', 1),
        ("a: 1\n---\nb: 2", 2),
        ("a: *none", 1),
    ],
)
def test_a_syntax_error_names_file_and_line(text: str, line: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"^shop\.yml:{line}: ") as caught:
        parse(text)
    assert caught.value.code == "yaml-syntax"


def test_open_bracket_and_bounds_are_in_plain_words() -> None:
    for text, opening in (("title: {a: x\nsecret: y\n", "{"), ("title: [a\nsecret: y\n", r"\[")):
        with pytest.raises(ConfigurationError, match=f"is a {opening} of this line or an earlier line not"):
            parse(text)
    assert "inner.port: must be at most 65535, found 70000" in complaint("title: t\ninner: {port: 70000}\n")


def test_a_tab_is_called_a_tab() -> None:
    with pytest.raises(ConfigurationError, match="a tab where YAML allows only spaces"):
        parse("a:\n\tb: 1")


def test_an_alias_that_contains_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="alias that contains itself"):
        parse("a: &x [*x]")


def test_variables_are_expanded_and_stay_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "00123")
    monkeypatch.setenv("EMPTY", "")
    file = parse(
        'p: ${PW}\nq: "a ${PW} b"\nr: ${NOT_SET:-x y}\ns: ${EMPTY:-d}\nt: $${PW} $5', expand_env=True
    )
    assert file.data == {"p": "00123", "q": "a 00123 b", "r": "x y", "s": "d", "t": "${PW} $5"}


def test_variables_stay_as_written_when_not_asked_for() -> None:
    assert parse("p: ${PW}").data == {"p": "${PW}"}


def test_unset_variable_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PW", raising=False)
    assert (
        complaint("title: a\nsecret: ${PW}", expand_env=True)
        == "shop.yml:2: environment variable PW is not set"
    )


def test_a_number_from_the_environment_fits_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "5432")
    assert validate(Outer, parse("title: a\ninner:\n  port: ${PORT}", expand_env=True)).inner.port == 5432


def test_unknown_key_names_nearest_known_key() -> None:
    """The nearest key is named at any depth of the file."""
    assert (
        complaint("title: a\nmany:\n  - mode: never\n  - prot: 5")
        == "shop.yml:4: unknown key 'prot'; did you mean 'port'?"
    )


def test_unmatched_key_lists_known_keys() -> None:
    """An unknown key without a near match lists all known keys."""
    assert "unknown key 'zzz' (known: port, mode, names)" in complaint("title: a\ninner:\n  zzz: 5")


def test_problems_are_reported_together_in_line_order() -> None:
    assert complaint("inner:\n  port: high\n  mode: nver\n  names: x\ntitel: a").splitlines() == [
        "shop.yml:1: 'title' is missing",
        "shop.yml:2: inner.port: expected a whole number, found text",
        "shop.yml:3: inner.mode: expected 'initial' or 'never', found 'nver'",
        "shop.yml:4: inner.names: expected a list, found text",
        "shop.yml:5: unknown key 'titel'; did you mean 'title'?",
    ]


def test_number_instead_of_text_requests_quotes() -> None:
    assert complaint("title: 5") == "shop.yml:1: title: expected text, found a number (put it in quotes)"


def given(name: str) -> str:
    if name != "a.b@c/d-e_f":
        raise LookupError("nobody has it")
    return "s3cret:value # and"


def test_secret_stays_literal_text_and_hidden() -> None:
    text = (
        "title: a\nsecret: ${secret:a.b@c/d-e_f}\nchecked: x ${secret:a.b@c/d-e_f}\nmany: ['$${secret:b/c}']"
    )
    file = parse_yaml(text, Path("shop.yml"), expand_env=True, secrets=given)
    assert file.data["secret"] == "s3cret:value # and"
    with pytest.raises(ConfigurationError) as caught:
        validate(Outer, file)
    assert "s3cret" not in str(caught.value)
    assert "starts with x: 'x ${secret:a.b@c/d-e_f}'" in str(caught.value)
    assert file.data["many"] == ["${secret:b/c}"]


def test_unavailable_secret_is_reported_last() -> None:
    """The message for an unavailable secret names line and reason, after all other problems."""
    text = "title: a\nsecret: ${secret:b/c}\nchecked: ${secret:b/d}\n"
    with pytest.raises(
        ConfigurationError, match=r"shop\.yml:2: the secret b/c cannot be read: nobody"
    ) as caught:
        parse_yaml(text, Path("shop.yml"), expand_env=True, secrets=given)
    assert caught.value.code == "secret-unreadable"
    with pytest.raises(ConfigurationError, match=r"shop\.yml:4: key 'title' occurs twice") as caught:
        parse_yaml(text + "title: b", Path("shop.yml"), expand_env=True, secrets=given)
    assert caught.value.code == "yaml-content"


@pytest.mark.parametrize(
    "malformed", ["secret:b", "secret:b/", "secret:/c", "secret:b/c/d", "secret:b/c:-d", "secret:b c/d"]
)
def test_what_only_looks_like_a_secret_is_malformed(malformed: str) -> None:
    with pytest.raises(ConfigurationError, match=r"malformed.*\$\{secret:scope/key\}"):
        parse_yaml(f"a: ${{{malformed}}}", Path("shop.yml"), expand_env=True, secrets=given)


def test_file_without_secrets_requests_none() -> None:
    assert parse("p: ${secret:b/c}").data == {"p": "${secret:b/c}"}
    with pytest.raises(ConfigurationError, match=r"expected \$\{NAME\} or \$\{NAME:-default\}\)"):
        parse("p: ${secret:b/c}", expand_env=True)


def test_empty_file_and_list_are_no_mapping() -> None:
    assert complaint("") == "shop.yml:1: the file: expected a mapping, found nothing"
    assert complaint("- a") == "shop.yml:1: the file: expected a mapping, found a list"


def test_environment_values_never_appear_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "x-very-secret")
    message = complaint("title: a\nchecked: ${PW}\ninner:\n  mode: ${PW}\n  port: ${PW}", expand_env=True)
    assert "very-secret" not in message
    assert "starts with x: '${PW}'" in message


def test_secret_of_wrong_type_stays_hidden() -> None:
    text = "slot: s\npublication: p\ndsn: [postgresql://u:hunter2@h/d]"
    with pytest.raises(ConfigurationError) as caught:
        validate(SourceSettings, parse(text))
    assert "hunter2" not in str(caught.value)
    assert "dsn: expected text, found a list" in str(caught.value)


def test_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yml: the file does not exist"):
        read_yaml(tmp_path / "none.yml")
    (tmp_path / "bad.yml").write_bytes(b"a: 1\nb: \xff")
    with pytest.raises(ConfigurationError, match=r"bad\.yml:2: not UTF-8 text"):
        read_yaml(tmp_path / "bad.yml")


def test_more_problems_than_a_person_reads_are_counted() -> None:
    message = complaint("title: a\n" + "\n".join(f"k{i}: 1" for i in range(13)))
    assert len(message.splitlines()) == 11
    assert message.endswith("… and 3 more")
