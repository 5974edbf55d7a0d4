"""Settings that decide the meaning of statements of silver and gold.

A row of silver is a function of the log, and a document is a function of silver's rows. Neither may depend on
the session. With ANSI mode off, a number outside its type is silently NULL. In a different time zone a text
becomes a different moment. A table begun by a notebook in Berlin and continued by a job in UTC would hold
both.

So silver and gold work in separate sessions (`silver.spark.access`), whatever the given session or the
pipeline file states. There, each setting that decides the meaning of values has Spark's default, or the value
that a pipeline needs (UTC, ANSI mode, exact sums). Legacy behaviour (``spark.sql.legacy.…``) is off. A value
that a server guards is part of a document's digest (`gold.builder.document`), so a new value rebuilds the
document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.silver.spark.tuning import LEAN_COMMITS, SIGNED, all_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_MICROSECONDS: Final = "TIMESTAMP_MICROS"
AS_MICROSECONDS: Final = {_TIMESTAMPS: _MICROSECONDS}
"""Type of timestamps in files, in place of INT96, which other readers convert to nanoseconds since 1970.

The year 9999 would become 1816.
"""

PINNED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.timeType.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Errors, and NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.variant.allowDuplicateKeys": "false",
    # The meaning of a statement's text.
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.variable.substitute": "false",
    # Numbers, texts, JSON.
    "spark.sql.charAsVarchar": "false",
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    # A result keeps its digits after the point, or fails: Spark's default would round, unlike PostgreSQL.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.jsonGenerator.writeNullIfWithDefaultValue": "true",
    "spark.sql.optimizer.enableJsonExpressionOptimization": "true",
    # Values in files.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    **AS_MICROSECONDS,
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Readable versions: all versions in cuts, however old their commits are.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""Settings that decide the meaning of a statement, with this project's values."""

_LEGACY: Final = "spark.sql.legacy."


def pin(session: SparkSession, present: Mapping[str, str] | None = None) -> None:
    """Give a session the settings that decide the meaning of statements.

    The caller restores the settings of a borrowed session. `present` are the session's present settings; a
    setting with the right value is not set again.
    """
    for name in legacy(session, present):
        _try(session.conf.unset, name)
    _set(session, PINNED, present)


def lean(session: SparkSession, present: Mapping[str, str] | None = None) -> None:
    """Make a session of this project sign its commits, and write only the needed parts of each commit."""
    _set(session, {**LEAN_COMMITS, **SIGNED}, present)


def unpinned(session: SparkSession) -> dict[str, str]:
    """Return the settings of a pinned session that have a different value because the server guards them."""
    found = legacy(session)
    for name, value in PINNED.items():
        # Spark reads equal values from either type of timestamps in files.
        if name == _TIMESTAMPS:
            continue
        actual = _effective(session, name)
        if actual is not None and actual.lower() != value.lower():
            found[name] = actual
    return found


def writes_microseconds(session: SparkSession) -> bool:
    """Check whether a session writes timestamps as microseconds; a server may guard the setting."""
    return _effective(session, _TIMESTAMPS) == _MICROSECONDS


def legacy(session: SparkSession, present: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return settings of a session that switch on legacy behaviour; settings in `PINNED` are left out."""
    found = all_settings(session) if present is None else present
    return {name: value for name, value in found.items() if name.startswith(_LEGACY) and name not in PINNED}


def _effective(session: SparkSession, name: str) -> str | None:
    """Return a setting's value, the server's own value included; None for an unknown setting."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    try:
        return session.conf.get(name)
    except PySparkException:
        return None


def _set(session: SparkSession, settings: Mapping[str, str], present: Mapping[str, str] | None) -> None:
    for name, value in settings.items():
        if present is None or present.get(name) != value:
            _try(session.conf.set, name, value)


def _try(change: Any, *arguments: str) -> None:
    """Change a setting, and ignore a guarded setting: `unpinned` reports the setting."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    try:
        change(*arguments)
    except PySparkException:
        return
