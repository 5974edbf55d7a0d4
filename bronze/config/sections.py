"""The sections `source`, `lake`, `bronze`, `snapshot` of a pipeline file; unknown keys are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deltasmelt.bronze.config.timing import LEASE_SECONDS, Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.rules import Rules

SHORTEST_KEY: Final = 16
"""Least length in bytes of the key of hashes."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|KiB|MB|MiB|GB|GiB)", re.IGNORECASE)
_BYTES = {"b": 1, "kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20, "gb": 10**9, "gib": 2**30}


FROM_A_FILE: Final = "from a file"
"""Context of a validation of values that a person wrote; values of a program are seconds and bytes."""


def parse_duration(value: object) -> object:
    """Return the seconds of ``500ms``, ``30s``, ``5m``, ``2h``, ``7d``; a number means seconds.

    Raises:
        ValueError: the text has another form.
    """
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"not a duration: {value!r} (expected e.g. 500ms, 30s, 5m)")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(value: object) -> object:
    """Return the bytes of ``64MB``, ``1GiB``; a number means bytes.

    Raises:
        ValueError: the text has another form.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"not a size: {value!r} (expected e.g. 64MB, 256MiB)")
    return int(float(match[1]) * _BYTES[match[2].lower()])


def _with_unit(*units: str) -> BeforeValidator:
    """Return a validator that refuses a number of a file without a unit, except 0."""

    def check(value: object, info: ValidationInfo) -> object:
        if info.context == FROM_A_FILE and type(value) in {int, float} and value:
            examples = " or ".join(f"{value}{unit}" for unit in units)
            raise ValueError(f"{value} has no unit (write e.g. {examples})")
        return value

    return BeforeValidator(check)


_Seconds = Annotated[float, BeforeValidator(parse_duration), _with_unit("s", "m", "d")]
Duration = Annotated[_Seconds, Field(gt=0)]
Pause = Annotated[_Seconds, Field(ge=0)]
"""A duration that may be 0."""


def in_the_form(pattern: str, words: str) -> AfterValidator:
    """Return a validator of texts that match a whole pattern; its message contains `words` instead."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


def _port_text(value: object) -> object:
    """Return a port as text: YAML reads a single port as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Port = Annotated[
    str,
    BeforeValidator(_port_text),
    in_the_form(r"[0-9]{1,5}(,[0-9]{1,5})*", "a port, or a port for each host: 5432,5433"),
]
"""A port, or a port for each of several hosts: ``5432,5433``."""

ByteSize = Annotated[int, BeforeValidator(parse_size), _with_unit("MB", "GB"), Field(gt=0)]


class Section(BaseModel):
    """Base of every section: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSettings(Section):
    """The server and the tables to replicate.

    Either `dsn` (a libpq URI or keyword string) or libpq's own keywords. libpq takes missing values from the
    environment, the service file and the password file. `host` may name several servers, separated by commas.

    `columns` has by table the columns to exclude, hash or mask; `where` has by table the condition on rows.
    """

    dsn: SecretStr | None = None
    host: str | None = None
    hostaddr: str | None = None
    port: Port | None = None
    database: str | None = None
    user: str | None = None
    password: SecretStr | None = None
    service: str | None = None
    passfile: str | None = None
    target_session_attrs: (
        Literal["any", "read-write", "read-only", "primary", "standby", "prefer-standby"] | None
    ) = None
    channel_binding: Literal["disable", "prefer", "require"] | None = None
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = None
    sslrootcert: str | None = None
    sslcert: str | None = None
    sslkey: str | None = None
    sslpassword: SecretStr | None = None
    slot: Annotated[str, in_the_form("[a-z0-9_]{1,63}", "lower-case letters, digits and _, at most 63")]
    publication: Annotated[str, Field(min_length=1, max_length=63)]
    manage: bool = True
    failover: bool = False
    tables: Annotated[list[str], Field(min_length=1)] = ["public.*"]
    exclude: list[str] = []
    keys: dict[str, Annotated[list[str], Field(min_length=1)]] = {}
    columns: dict[str, dict[str, Literal["exclude", "hash", "mask"]]] = {}
    where: dict[str, str] = {}
    hash_key: SecretStr | None = None
    _timing: Timing = PrivateAttr(default_factory=Timing)

    @property
    def timing(self) -> Timing:
        """The waits for this server; no key of the file, but copied with all other values."""
        return self._timing

    def with_timing(self, timing: Timing) -> Self:
        """Return a copy of the source with other waits."""
        copy = self.model_copy()
        copy._timing = timing  # noqa: SLF001 - our own; the copy is not shared yet
        return copy

    @property
    def rules(self) -> Rules:
        """The rules for columns and rows."""
        return Rules.of(
            self.columns, self.where, "" if self.hash_key is None else self.hash_key.get_secret_value()
        )

    @field_validator("columns", "where")
    @classmethod
    def _rules_name_a_table(cls, rules: dict[str, Any]) -> dict[str, Any]:
        spelt: dict[TableName, str] = {}
        for text in rules:
            first = spelt.setdefault(TableName.parse(text), text)
            if first != text:
                raise ValueError(f"{first} and {text} name the same table: write all its rules in one entry")
        return rules

    @model_validator(mode="after")
    def _hashes_have_a_key(self) -> Self:
        if any("hash" in rules.values() for rules in self.columns.values()):
            if self.hash_key is None:
                raise ValueError("a rule of columns is hash: add hash_key: ${SMELT_HASH_KEY}")
            if len(self.hash_key.get_secret_value().encode()) < SHORTEST_KEY:
                raise ValueError(f"hash_key is shorter than {SHORTEST_KEY} bytes: its hashes can be guessed")
        return self

    @field_validator("tables", "exclude")
    @classmethod
    def _patterns_name_a_schema(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            if "." not in pattern:
                raise ValueError(
                    f"pattern {pattern!r} names no schema (expected schema.table, e.g. public.*)"
                )
        return patterns


def spelt_out(value: object) -> object:
    """Return YAML's numbers and booleans in the spelling for Spark and the stores' libraries."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class LakeSettings(Section):
    """The place of the Delta tables: a path or object-store URL, or the catalog that names the tables.

    Attributes:
        options: options of the object store, by the names in `bronze.lake.stores`, or Hadoop's own for Spark.
        lease: seconds after its last renewal for which a process owns a layer of a lake in an object store or
            a catalog; without a value 120 in a catalog.
        retention: seconds that a cut stays readable after the next cut replaced it.
    """

    path: Annotated[str, Field(min_length=1)] | None = None
    catalog: str | None = None
    options: dict[str, Annotated[SecretStr, BeforeValidator(spelt_out)]] = Field(default_factory=dict)
    lease: Annotated[Duration, Field(ge=2)] = LEASE_SECONDS
    retention: Duration = 7 * 86400.0

    @model_validator(mode="after")
    def _has_a_place(self) -> LakeSettings:
        if self.path is None and self.catalog is None:
            raise ValueError("path is missing")
        return self


class BronzeSettings(Section):
    """The frequency of the reader's commits, and how long bronze keeps changes.

    Attributes:
        flush_interval: seconds between commits while changes arrive; in an object store another default
            (`pipelines.settings`).
        flush_bytes: bytes of WAL messages that cause a commit, or a part of one transaction, before the
            interval.
        heartbeat: seconds after which an idle reader moves the slot forward.
        retention: seconds for which bronze keeps changes that nothing needs any longer; None: for ever.
        renew: bytes of snapshots that the reader may take a day in place of old snapshots.
    """

    flush_interval: Duration = 0.5
    flush_bytes: ByteSize = 64_000_000
    heartbeat: Duration = 30.0
    retention: Annotated[Duration, Field(ge=86400)] | None = None
    renew: ByteSize | None = None


class SnapshotSettings(Section):
    """The first copy of each table.

    Attributes:
        engine: the kind of sessions that copy large tables: the reader's own, or tasks of a Spark session.
    """

    mode: Literal["initial", "never"] = "initial"
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    chunk_rows: Annotated[int, Field(ge=1000)] = 250_000
    engine: Literal["local", "spark"] = "local"
