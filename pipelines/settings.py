"""Read the pipeline file: one YAML file with a pipeline's source, lake and layers.

Reading is strict, so that a misspelt key never silently means "default": an unknown key or a wrong type is an
error with file and line. ``${ENV}``, ``${ENV:-default}`` and ``${secret:scope/key}`` are expanded before
validation. Relative paths start from the pipeline file, never from the working directory, so that a job and a
terminal see the same lake.

This module imports no Spark, because the reader process also loads its settings here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PrivateAttr, SecretStr, field_validator

from deltasmelt.bronze.config.sections import (
    BronzeSettings,
    Duration,
    LakeSettings,
    Section,
    SnapshotSettings,
    SourceSettings,
    in_the_form,
    spelt_out,
)
from deltasmelt.bronze.config.validation import validate
from deltasmelt.bronze.config.yaml_file import YamlFile, parse_yaml, read_yaml
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Catalog, Location, in_store, misread
from deltasmelt.bronze.lake.stores import is_meant_for_store, refuse_wrong
from deltasmelt.gold.settings import GoldSettings
from deltasmelt.pipelines.databricks_secrets import secret
from deltasmelt.pipelines.secret_variables import remember
from deltasmelt.pipelines.selected import selected, there_are
from deltasmelt.silver.settings import SilverSettings

WILDCARDS: Final = frozenset("*?[")
"""Wildcards of file patterns; a text without wildcards is a name."""
_CONNECTION_FILES = ("sslrootcert", "sslcert", "sslkey", "passfile")
_SECRETS = (
    ("source", "dsn"),
    ("source", "password"),
    ("source", "sslpassword"),
    ("source", "hash_key"),
    ("alerts", "webhook"),
)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?:\}|:-)")


class QualitySettings(Section):
    """Settings of the data-quality checks, in addition to expectations derived from the source's catalog.

    Attributes:
        suites: file patterns, relative to the pipeline file.
        every: in a run that goes on, least time from the begin of a check to that of the next; without it,
            checks are made by hand.
        failing_rows: of each failed expectation, so many rows that break it are shown.
        masked: ``schema.table.column`` of the source, whose values no report and no result shows.
    """

    suites: list[str] = Field(default_factory=list)
    every: Duration | None = None
    failing_rows: Annotated[int, Field(ge=0, le=1000)] = 0
    masked: list[str] = Field(default_factory=list)


AlertKind: TypeAlias = Literal["error", "lag", "slot", "blind"]
ALERT_KINDS: Final[tuple[AlertKind, ...]] = get_args(AlertKind)


class AlertSettings(Section):
    """Settings of the alerts that a running command posts.

    Attributes:
        webhook: a URL that takes JSON by POST; it may hold a token, so it is shown nowhere.
        kinds: what is posted.
        lag: seconds from which a layer is too far behind, also for ``/readyz``; or source or lake are away
    """

    webhook: SecretStr | None = None
    kinds: list[AlertKind] = Field(default_factory=lambda: list(ALERT_KINDS))
    lag: Duration = 300.0

    @field_validator("webhook")
    @classmethod
    def _by_http(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is not None and not _is_web_address(webhook.get_secret_value()):
            raise ValueError("expected a URL that begins with https:// or http://")
        return webhook


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and url.isascii() and url.isprintable()
        )
    except ValueError:  # not an address in the brackets
        return False


class Pipeline(Section):
    """A pipeline file, read and validated by `load_pipeline`."""

    pipeline: Annotated[
        str, in_the_form("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "letters, digits and _ . - (at most 63)")
    ]
    source: SourceSettings
    lake: LakeSettings
    bronze: BronzeSettings = BronzeSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    silver: SilverSettings = SilverSettings()
    gold: GoldSettings = GoldSettings()
    quality: QualitySettings = QualitySettings()
    alerts: AlertSettings = AlertSettings()
    spark: dict[str, Annotated[str, BeforeValidator(spelt_out)]] = Field(default_factory=dict)

    _path: Path = PrivateAttr(default=Path("pipeline.yml"))
    _text: str = PrivateAttr(default="")
    _lake: tuple[LakeSettings, Lake] | None = PrivateAttr(default=None)

    @field_validator("spark")
    @classmethod
    def _spark_keys(cls, settings: dict[str, str]) -> dict[str, str]:
        for key in settings:
            if not key.startswith("spark."):
                raise ValueError(f"{key!r} is not a Spark setting (expected e.g. spark.driver.memory)")
        return settings

    @property
    def path(self) -> Path:
        """Absolute path of the pipeline file."""
        return self._path

    @property
    def text(self) -> str:
        """Text of the pipeline file as read, before variables are expanded."""
        return self._text

    @property
    def folder(self) -> Path:
        """Folder of the pipeline file, from which relative paths start."""
        return self._path.parent

    def lake_address(self) -> Lake:
        """Return the lake, the same object at each call: its place holds the options, or the session."""
        # A copy of the pipeline with another section `lake` has another lake.
        if self._lake is None or self._lake[0] is not self.lake:
            self._lake = self.lake, self._made_lake()
        return self._lake[1]

    def _made_lake(self) -> Lake:
        path, lease = self.lake.path, self.lake.lease
        if path is None:
            catalog = str(self.lake.catalog)
            has_lease = "lease" in self.lake.model_fields_set
            return Lake(catalog=catalog, known=Catalog(catalog, lease) if has_lease else Catalog(catalog))
        folder = Location(path).folder
        if folder is not None:
            return Lake(path=str((self.folder / folder.expanduser()).resolve()))
        scheme, _, address = path.rstrip("/").partition("://")
        options = {name: value.get_secret_value() for name, value in self.lake.options.items()}
        return Lake(path=in_store(f"{scheme.lower()}://{address}", options, lease=lease))

    def document_files(self) -> list[Path]:
        """Return the files that `gold.documents` selects, sorted, each once.

        Raises:
            ConfigurationError: ``file-missing``, ``pattern-unused``: a name or pattern selects no file.
        """
        return self._files(self.gold.documents, "gold.documents")

    def suite_files(self) -> list[Path]:
        """Return the files that `quality.suites` selects, sorted, each once.

        Raises:
            ConfigurationError: ``file-missing``, ``pattern-unused``: a name or pattern selects no file.
        """
        return self._files(self.quality.suites, "quality.suites")

    def _files(self, patterns: list[str], key: str) -> list[Path]:
        return sorted(selected(patterns, self._matching, lambda pattern: self._no_file(key, pattern)))

    def _no_file(self, key: str, pattern: str) -> ConfigurationError:
        """Return the error of a name or pattern that selects no file, with the names of existing files."""
        if not WILDCARDS & set(pattern):
            return ConfigurationError(
                f"{key} names {pattern}, which does not exist",
                code="file-missing",
                where=str(self.path),
                remedy=f"create {self.folder / Path(pattern).expanduser()}, or correct {key} "
                "(relative to the pipeline file)",
            )
        near = [path for depth in ("*", "*/*") for path in self.folder.glob(f"{depth}.y*ml")]
        names = sorted(str(path.relative_to(self.folder)) for path in near if path != self.path)
        return ConfigurationError(
            f"{key}: {pattern} selects no file",
            code="pattern-unused",
            where=str(self.path),
            remedy=f"correct the pattern, which is relative to {self.folder} ({there_are(names)}), or remove "
            "the pattern",
        )

    def _matching(self, pattern: str) -> list[Path]:
        path = self.folder / Path(pattern).expanduser()
        if not WILDCARDS & set(pattern):
            return [path] if path.is_file() else []
        base = Path(path.anchor) if Path(pattern).expanduser().is_absolute() else self.folder
        return [file for file in base.glob(str(path.relative_to(base))) if file.is_file()]


def load_pipeline(path: Path | str, text: str | None = None) -> Pipeline:
    """Read and validate a pipeline file.

    With `text`, from a further process of this command, the file is not read again.

    Raises:
        ConfigurationError: the file is missing or something in it is wrong, or a secret that it names cannot
            be read; file and line are named.
    """
    # Not resolved: a ConfigMap's link leads to a folder that is replaced when the ConfigMap changes.
    file = Path(path).expanduser().absolute()
    if text is None and not file.is_file():
        raise ConfigurationError(
            "the path is a folder, not a pipeline file"
            if file.is_dir()
            else "the pipeline file does not exist",
            code="file-missing",
            where=str(path),
            remedy="name an existing pipeline file; `smelt init --dsn …` writes a pipeline file",
        )
    if text is None:
        yaml = read_yaml(file, expand_env=True, secrets=secret)
    else:
        yaml = parse_yaml(text, file, expand_env=True, secrets=secret)
    for key in _SECRETS:
        for _, text_read in yaml.expanded.get(key, ()):
            remember(_VARIABLE.findall(text_read))
    pipeline = validate(Pipeline, yaml)
    pipeline._path = file  # noqa: SLF001 - our own model; the file is not one of its keys
    _refuse_misread(pipeline, yaml)
    _refuse_executors(pipeline, yaml)
    _refuse_retention(pipeline, yaml)
    _enter_store(pipeline, yaml)
    pipeline = _paced(pipeline)
    files = _connection_files(pipeline.source, file.parent)
    if files:
        pipeline = pipeline.model_copy(update={"source": pipeline.source.model_copy(update=files)})
    pipeline._path, pipeline._text = file, yaml.text  # noqa: SLF001 - as above
    return pipeline


def _paced(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the pace of its lake's place, unless the file sets a pace."""
    interval, bronze = pipeline.lake_address().place.flush_interval, pipeline.bronze
    if "flush_interval" in bronze.model_fields_set or interval is None:
        return pipeline
    paced = bronze.model_copy(update={"flush_interval": interval})
    return pipeline.model_copy(update={"bronze": paced})


def _connection_files(source: SourceSettings, folder: Path) -> dict[str, str]:
    """Return the files in the keys of `source` as absolute paths; libpq would use the working directory."""
    files = {key: getattr(source, key) for key in _CONNECTION_FILES}
    return {
        key: str(folder / Path(name).expanduser())
        for key, name in files.items()
        if name and name != "system"  # the system's own authorities, not a file
    }


def _refuse_misread(pipeline: Pipeline, yaml: YamlFile) -> None:
    """Refuse a lake whose location a library would read as a different location."""
    path = pipeline.lake_address().root
    if (part := misread(path)) is not None:
        raise ConfigurationError(
            f"the lake's location contains {part!r}, which deltalake reads differently: "
            f"{_without_query(path)!r}",
            code="lake-path",
            where=yaml.where(("lake", "path")),
            remedy="choose another name: without [ ] ^ | \\, control characters, and % before two digits or "
            "letters up to f; in a URL without any % ? #",
        )


def _refuse_executors(pipeline: Pipeline, yaml: YamlFile) -> None:
    """Refuse snapshots by executors into a catalog: only the catalog knows the location of its files."""
    # The reader stages rows for a catalog's tables in a private folder, which no executor can see.
    if pipeline.snapshot.engine == "spark" and not pipeline.lake_address().place.shows_files:
        raise ConfigurationError(
            "with snapshot.engine: spark, executors write the lake's files, but this lake is in a catalog, "
            "and only the catalog knows the location of its files",
            code="executors-unfit",
            where=yaml.where(("snapshot", "engine")),
            remedy="leave snapshot.engine at local, or set lake.path",
        )


def _refuse_retention(pipeline: Pipeline, yaml: YamlFile) -> None:
    """Refuse a retention of bronze in a catalog, and renewed snapshots without a retention."""
    if pipeline.bronze.retention is None:
        if pipeline.bronze.renew is not None:
            raise ConfigurationError(
                "bronze.renew replaces snapshots that are older than bronze.retention, which is not set",
                code="retention-unfit",
                where=yaml.where(("bronze", "renew")),
                remedy="set bronze.retention, or remove bronze.renew",
            )
    elif pipeline.bronze.renew is not None and pipeline.snapshot.mode == "never":
        raise ConfigurationError(
            "bronze.renew copies tables again, but with snapshot.mode: never tables start without a copy",
            code="retention-unfit",
            where=yaml.where(("bronze", "renew")),
            remedy="remove bronze.renew, or set snapshot.mode to initial",
        )
    # The reader removes whole files, and only the catalog knows the files of its tables.
    elif not pipeline.lake_address().place.shows_files:
        raise ConfigurationError(
            "bronze.retention removes whole files, but this lake is in a catalog, and only the catalog knows "
            "its files",
            code="retention-unfit",
            where=yaml.where(("bronze", "retention")),
            remedy="remove bronze.retention, or set lake.path",
        )


def _enter_store(pipeline: Pipeline, yaml: YamlFile) -> None:
    """Refuse a lake in an unknown store, and options that do not fit the lake."""
    lake = pipeline.lake_address()
    options = {name: value.get_secret_value() for name, value in pipeline.lake.options.items()}
    try:
        if is_meant_for_store(str(pipeline.lake.path)):
            raise ValueError(f"{pipeline.lake.path} is a URL without a bucket after ://")  # noqa: TRY301 - as below
        refuse_wrong(lake.root, options)
        if "AWS_SESSION_TOKEN" in os.environ and _has_key_without_token(options):
            raise ValueError(  # noqa: TRY301 - as below
                "AWS_SESSION_TOKEN of the environment belongs to another key than the option "
                "aws_access_key_id; unset it, or set aws_session_token"
            )
    except ValueError as error:
        key = ("lake", "options") if pipeline.lake.options and "option" in str(error) else ("lake", "path")
        raise ConfigurationError(
            str(error),
            code="lake-store",
            where=yaml.where(key),
            remedy="correct lake.path or lake.options",
        ) from None


def _has_key_without_token(options: dict[str, str]) -> bool:
    """Check whether `deltalake` would add the environment's token to a key of a different owner."""
    return "aws_access_key_id" in options and "aws_session_token" not in options


def _without_query(location: str) -> str:
    """Return a location without its possible secrets: a token after a ``?``, or user and password."""
    if Location(location).folder is not None:
        return location
    text = re.split("[?#]", location, maxsplit=1)[0]
    return re.sub(r"(?<=://)[^/@]*:[^/@]*@", "***@", text)
