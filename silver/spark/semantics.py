"""The settings under which statements of silver and gold mean what they mean.

A row of silver is a function of the log, and a document is one of silver's rows. Neither may depend on the
session in which it is made. With ANSI mode off, a number that does not fit is silently NULL. In another time
zone a text becomes another moment. A table that a notebook in Berlin began and a job in UTC continues would
hold both.

So silver and gold work in their own sessions (`silver.spark.access`). There, every setting that gives values
another meaning has Spark's default, and what a pipeline needs (UTC, ANSI mode, exact sums), whatever the
given session or the pipeline file says. Legacy behaviour (``spark.sql.legacy.…``) is off. Where something may
not be set (a server that guards its settings), its value becomes a part of a document's digest
(`gold.builder.document`), so that other values build it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.silver.spark.tuning import LEAN_COMMITS, SIGNED, all_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_MICROSECONDS: Final = "TIMESTAMP_MICROS"
"""Of INT96, Spark's default, other readers make nanoseconds since 1970: the year 9999 becomes 1816."""

PINNED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.timeType.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # What fails, and what is NULL.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.variant.allowDuplicateKeys": "false",
    # What a statement says.
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
    # What files hold.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    _TIMESTAMPS: _MICROSECONDS,
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Which versions may be read: those that cuts name, however old their commit is.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""Settings that decide what a statement means, with the value that they have here."""

_LEGACY: Final = "spark.sql.legacy."


def pin(session: SparkSession, known: Mapping[str, str] | None = None) -> None:
    """Give a session of ours the settings that decide what its statements mean.

    Args:
        session: ours.
        known: settings that it has; where they are given, one that is right is not set again.
    """
    for name in legacy(session, known):
        _try(session.conf.unset, name)
    _set(session, PINNED, known)


def lean(session: SparkSession, known: Mapping[str, str] | None = None) -> None:
    """Have a session of this project sign its commits, and write no more of each than is read.

    Args:
        session: the session; a setting that may not be set stays as it is.
        known: as of `pin`.
    """
    _set(session, {**LEAN_COMMITS, **SIGNED}, known)


def unpinned(session: SparkSession) -> dict[str, str]:
    """Return the settings of a pinned session that have another value, as they may not be set.

    The type of timestamps in files is not among the settings: Spark reads the same values from either type.
    """
    found = legacy(session)
    for name, value in PINNED.items():
        if name == _TIMESTAMPS:
            continue
        actual = _effective(session, name)
        if actual is not None and actual.lower() != value.lower():
            found[name] = actual
    return found


def writes_microseconds(session: SparkSession) -> bool:
    """Check whether a session writes timestamps as microseconds; a server may guard the setting."""
    return _effective(session, _TIMESTAMPS) == _MICROSECONDS


def legacy(session: SparkSession, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of a session that switch on legacy behaviour; `PINNED` has some of these.

    Args:
        session: whose.
        known: settings that it has, where these are known already.
    """
    found = all_settings(session) if known is None else known
    return {name: value for name, value in found.items() if name.startswith(_LEGACY) and name not in PINNED}


def _effective(session: SparkSession, name: str) -> str | None:
    """A setting's value, also where it is the server's own; None where the server does not know it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    try:
        return session.conf.get(name)
    except PySparkException:
        return None


def _set(session: SparkSession, wanted: Mapping[str, str], known: Mapping[str, str] | None) -> None:
    for name, value in wanted.items():
        if known is None or known.get(name) != value:
            _try(session.conf.set, name, value)


def _try(change: Any, *arguments: str) -> None:
    """What may not be set is named by `unpinned`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    try:
        change(*arguments)
    except PySparkException:
        return
