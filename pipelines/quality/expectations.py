"""The values of a quality run: expectations, their results, and the whole run.

Three outcomes stay apart, because they address different people. A *failed* expectation concerns the data. An
expectation that *could not be checked* (a misspelt column, an unknown expectation, an unsuitable type)
concerns the suite. A part *left out* (a source without an answer, a stopped table) concerns the pipeline, and
is reported without blame for data or suite. Great Expectations itself counts the second kind as failed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn

Severity: TypeAlias = Literal["error", "warning", "info"]
"""Severity of a breach: only an ``error`` fails the run."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""Severities, gravest first."""

LOG_SUITE: Final = "log"
"""Suite with the promises of `bronze.changes` (`pipelines.quality.change_log`)."""

VOLUME_SUITE: Final = "volume"
"""Suite with the expectations from the recent past (`pipelines.quality.anomalies`)."""

CATALOG_SUITE: Final = "catalog"
"""Suite with the expectations from the source's catalog."""

DOCUMENT_SUITE: Final = "document"
"""Suite with the expectations from the document definitions."""

DERIVED_SUITES: Final = frozenset({LOG_SUITE, VOLUME_SUITE, CATALOG_SUITE, DOCUMENT_SUITE})

FOREIGN_KEY: Final = "expect_foreign_key_to_hold"
"""deltasmelt's own expectation beside Great Expectations' names: see `pipelines.quality.references`."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A required property of one table.

    Attributes:
        kind: name in Great Expectations' snake case, or `FOREIGN_KEY`.
        kwargs: arguments of the expectation, including ``column``.
        note: the author's reason; shown in the report.
        where: ``file:line``, or the origin in the source's catalog.
    """

    layer: Layer
    table: str
    suite: str
    kind: str
    kwargs: dict[str, Any]
    severity: Severity = "error"
    note: str | None = None
    where: str | None = None

    @property
    def qualified(self) -> str:
        """Qualified name such as ``silver.orders``."""
        return f"{self.layer}.{self.table}"

    @property
    def derived(self) -> bool:
        """True for an expectation without an author."""
        return self.suite in DERIVED_SUITES

    @property
    def column(self) -> str | None:
        """The column, or columns, of the expectation; None for an expectation of the table."""
        return ", ".join(self.columns) or None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the expectation."""
        if "column" in self.kwargs:
            return (str(self.kwargs["column"]),)
        for name in ("column_list", "columns", "column_set"):
            if isinstance(self.kwargs.get(name), list):
                return tuple(map(str, self.kwargs[name]))
        return tuple(str(self.kwargs[name]) for name in ("column_A", "column_B") if name in self.kwargs)

    def kwargs_json(self) -> str:
        """Return the arguments as JSON."""
        return json.dumps(self.kwargs, default=str, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one expectation.

    Attributes:
        success: None for an expectation that could not be checked; `error` has the reason.
        unexpected_count: number of failing rows; None for an expectation of the table as a whole.
        unexpected_percent: share of the covered rows (a NULL is no breach of most expectations).
        observed: the observed value of the table or of a column as a whole; of many values the first.
        values: some failing values (or rows, as dicts), unchanged. They leave the run only as `samples`, made
            by `pipelines.quality.examples`.
        samples: distinct failing values as masked texts.
        failing_rows: failing rows as masked texts, the key first, if requested by the pipeline.
        counted: the things counted in `unexpected_count`.
        error_of_data: True if `error` was raised over the data, and may quote values.
    """

    expectation: Expectation
    success: bool | None
    element_count: int | None = None
    unexpected_count: int | None = None
    unexpected_percent: float | None = None
    observed: Any = None
    samples: tuple[str, ...] = ()
    error: str | None = None
    values: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    failing_rows: tuple[dict[str, str | None], ...] = ()
    counted: str = "rows"
    error_of_data: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An unchecked part, without blame for data or suite; `stopped` if an error stopped it."""

    subject: str
    why: str
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table of the cut."""

    layer: Layer
    name: str
    version: int
    rows: int | None = None

    @property
    def qualified(self) -> str:
        """Qualified name such as ``silver.orders``."""
        return f"{self.layer}.{self.name}"


@dataclass(frozen=True, slots=True)
class QualityResult:
    """One quality run.

    Attributes:
        commit_lsn: LSN of the checked cut; `commit_ts` is its commit time.
        tables: every table of the cut, checked or not.
        rows: the result of each expectation of a suite.
        file_errors: unreadable suite files, as ``file:line: message``.
        report: path of the HTML report, if requested.
    """

    pipeline: str
    run_id: str
    run_at: datetime
    seconds: float
    commit_lsn: Lsn
    commit_ts: datetime | None
    tables: tuple[CutTable, ...]
    rows: tuple[Result, ...]
    file_errors: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    report: Path | None = None
    details: dict[str, object] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """True if the run has an expectation, checked each, and broke none of severity ``error``."""
        return bool(self.rows) and not self.errors and not self.broken

    @property
    def stopped(self) -> tuple[str, ...]:
        """Tables and documents left out because errors have stopped them."""
        return tuple(dict.fromkeys(item.subject for item in self.left_out if item.stopped))

    @property
    def passed(self) -> tuple[Result, ...]:
        """Fulfilled expectations."""
        return tuple(row for row in self.rows if row.success)

    @property
    def failed(self) -> tuple[Result, ...]:
        """Broken expectations, the gravest first."""
        failed = [row for row in self.rows if row.success is False]

        def gravity(row: Result) -> tuple[int, int]:
            return SEVERITIES.index(row.expectation.severity), -(row.unexpected_count or 0)

        return tuple(sorted(failed, key=gravity))

    @property
    def broken(self) -> tuple[Result, ...]:
        """Broken expectations of severity ``error``."""
        return tuple(row for row in self.failed if row.expectation.severity == "error")

    @property
    def milder(self) -> dict[str, int]:
        """Number of broken warnings and infos, if any."""
        counts = Counter(row.expectation.severity for row in self.failed)
        return {name: counts[name] for name in SEVERITIES[1:] if counts[name]}

    @property
    def unchecked(self) -> tuple[Result, ...]:
        """Expectations that could not be checked."""
        return tuple(row for row in self.rows if row.success is None)

    @property
    def errors(self) -> tuple[str, ...]:
        """All faults of the suites themselves, a line for each."""
        return (*self.file_errors, *(f"{row.expectation.where}: {row.error}" for row in self.unchecked))

    def summary(self) -> str:
        """Return the verdict in one line."""
        if not self.rows and not self.errors:
            return "no expectation was checked, because none exists"
        if self.success and not self.failed:
            return f"all {len(self.rows)} expectations hold"
        parts = [f"{len(self.broken)} of {len(self.rows)} expectations failed"] if self.broken else []
        parts += [f"{count} {name}{'' if count == 1 else 's'}" for name, count in self.milder.items()]
        if self.errors:
            parts.append(f"{len(self.errors)} could not be checked")
        if self.success:
            return f"no error among {len(self.rows)} expectations, " + ", ".join(parts)
        return ", ".join(parts)

    def to_dict(self) -> dict[str, object]:
        """Return plain values for ``--output json``."""
        return {
            "pipeline": self.pipeline,
            "run_id": self.run_id,
            "run_at": self.run_at.isoformat(),
            "seconds": round(self.seconds, 3),
            "commit_lsn": str(self.commit_lsn),
            "commit_ts": self.commit_ts.isoformat() if self.commit_ts else None,
            "success": self.success,
            "expectations": len(self.rows),
            "passed": len(self.passed),
            "broken": len(self.broken),
            "failed": [_plain(row) for row in self.failed],
            "errors": list(self.errors),
            "left_out": [f"{item.subject}: {item.why}" for item in self.left_out],
            "report": None if self.report is None else str(self.report),
        }


def finite(value: Any) -> Any:
    """Return a value with None in the place of NaN and infinities, which JSON lacks, at any depth."""
    if isinstance(value, float | Decimal):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(row: Result) -> dict[str, object]:
    expectation, observed = row.expectation, finite(row.observed)
    return {
        "table": expectation.qualified,
        "suite": expectation.suite,
        "expectation": expectation.kind,
        "column": expectation.column,
        "kwargs": json.loads(expectation.kwargs_json()),
        "severity": expectation.severity,
        "unexpected_count": row.unexpected_count,
        "unexpected_percent": finite(row.unexpected_percent),
        "observed": observed if isinstance(observed, int | float | str | bool | None) else str(observed),
        "samples": list(row.samples),
        "failing_rows": list(row.failing_rows),
        "where": expectation.where,
    }
