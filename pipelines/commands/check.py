"""Printing of `smelt check`: each finding with its remedy; the exit code shows whether a run may start."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.terminal.failures import Failure
from deltasmelt.pipelines.terminal.output import ERROR, QUIET, WARNING

if TYPE_CHECKING:
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_STYLES: Final = {"error": ERROR, "warning": WARNING, "info": QUIET}


def show_check(pipeline: Pipeline, output: Output, *, offline: bool = False) -> None:
    """Check a pipeline and print the findings.

    Raises:
        Failure: a finding would stop the pipeline.
    """
    with output.waiting("checking files and lake" if offline else "checking source, files and lake"):
        findings = run_check(pipeline, offline=offline)
    counts = Counter(finding.level for finding in findings)
    if output.json:
        output.value([dataclasses.asdict(finding) for finding in findings])
    else:
        for finding in findings:
            output.line(
                f"{finding.level}: {finding.subject}: {finding.message} [{finding.code}]",
                style=_STYLES[finding.level],
            )
            if finding.remedy:
                for line in finding.remedy.splitlines():
                    output.line(f"  {line}")
        subject = (
            f"{pipeline.path.name}" if offline else f"{pipeline.path.name} and {address_of(pipeline.source)}"
        )
        verdict = ", ".join(counted(counts[level], level) for level in ("error", "warning") if counts[level])
        output.line(f"{subject}: {verdict or 'no problems found'}")
    if counts["error"]:
        raise Failure(f"{counted(counts['error'], 'error')} would stop the pipeline or one of its tables")
