"""Progress lines of a run for the terminal, from the reader's events and the cuts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.figures import bytes_text, clock_text, counted, estimate_text, listed, seconds_text
from deltasmelt.bronze.progress import SnapshotView, is_under_way, snapshot_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.pipelines.runtime.maintenance import MaintenanceResult
    from deltasmelt.pipelines.terminal.output import Output

_REPORT_SECONDS: Final = 5.0


class ProgressReporter:
    """Reports on standard error: a line for each cut, the reader's snapshot now and then, and its end.

    Args:
        move: changes the moving line of a terminal, which then shows a snapshot in place of lines.
    """

    def __init__(self, output: Output, move: Callable[[str], None] | None = None) -> None:
        self._output = output
        self._move = move
        self._last = 0.0
        self._printed = ""
        self._snapshots: dict[str, Any] = {}
        self._waits = False
        self._folding = ""
        self._folding_since = 0.0

    def cut(self, cut: Cut, runs: list[Run]) -> None:
        """Report a new cut of a layer."""
        changes = sum(run.changes for run in runs)
        if not changes and not any(run.mode == "full" for run in runs):
            return
        moved = sum(1 for run in runs if run.changes)
        noun = "table" if cut.layer == "silver" else "document"
        self._output.report(
            f"{clock_text()} {cut.layer:6} as of {cut.commit_lsn}: "
            f"{counted(changes, 'change')} in {counted(moved, noun)}, {seconds_text(seconds_of(runs))}"
        )
        for run in runs:
            if run.mode == "full" and run.reason:
                self._output.report(f"         {run.name}: full build ({run.reason})")

    def folding(self, done: int, total: int) -> None:
        """Report how many tables a long cycle of silver has folded; `total` is 0 between two cycles."""
        now, text = time.monotonic(), f"silver {done} of {counted(total, 'table')}" if total else ""
        if self._move is not None:
            if text != self._folding:
                self._move(text or "running")
        elif not self._folding:
            self._folding_since = now
        elif text and text != self._folding and now - self._folding_since >= _REPORT_SECONDS:
            self._folding_since = now
            self._output.report(f"{clock_text()} {text}")
        self._folding = text

    def reader(self, event: dict[str, Any]) -> None:
        """Report news of the reader at most every few seconds, and the end of a snapshot at once."""
        if not event["copied"]:
            self._snapshots = {}  # another reader: the snapshots of a reader that died are not complete
        self._end_of_snapshots(event["snapshots"])
        self._end_of_wait(event)
        text = reader_text(event)
        if self._move is not None:
            if not self._folding:
                self._move(f"bronze {text}" if text else "running")
            if self._snapshots and not event["copies_wait"]:
                return
        if time.monotonic() - self._last < _REPORT_SECONDS:
            return
        if text and text != self._printed:
            self._last, self._printed = time.monotonic(), text
            self._waits = self._waits or event["phase"] == "waiting"
            self._output.report(f"{clock_text()} bronze {text}")

    def _end_of_wait(self, event: dict[str, Any]) -> None:
        """Report that the reader streams again after a wait that was reported."""
        if event["phase"] == "streaming" and self._waits:
            self._waits, self._printed = False, ""
            self._output.report(f"{clock_text()} bronze continues: the stream is open again")

    def _end_of_snapshots(self, snapshots: dict[str, Any]) -> None:
        """Report the end of all running snapshots, also if another report has overtaken their last report."""
        if any(map(is_under_way, snapshots.values())):
            self._snapshots = snapshots
            return
        ended, self._snapshots = snapshots or self._snapshots, {}
        complete = [state for state in ended.values() if not state["failed"]]
        if complete:
            rows, size = (sum(state[name] for state in complete) for name in ("rows", "bytes"))
            self._output.report(
                f"{clock_text()} bronze snapshot complete: {counted(len(complete), 'table')}, "
                f"{counted(rows, 'row')}, {bytes_text(size)}"
            )


def seconds_of(runs: Sequence[Run]) -> float:
    """Return the seconds from the first begin of parallel runs to the last end."""
    if not runs:
        return 0.0
    begin = min(run.started_at for run in runs)
    return max((run.started_at - begin).total_seconds() + run.seconds for run in runs)


def reader_text(event: dict[str, Any]) -> str:
    """Return the reader's progress in a few words."""
    if event["phase"] == "waiting":
        return f"waits: {event['said']}"
    if event["phase"] == "starting" and event["said"]:
        return str(event["said"])
    view = snapshot_view(event["snapshots"], time.time())
    changes = f"{counted(event['changes'], 'change')} so far" if event["changes"] else ""
    if event["copies_wait"]:
        return "; ".join(filter(None, (changes, event["copies_wait"])))
    if view is not None:
        return snapshot_text(view) if view.rows else ""
    return changes


def snapshot_text(view: SnapshotView) -> str:
    """Return the progress of the snapshots in a few words."""
    remaining = "" if view.seconds_left is None else f", about {estimate_text(view.seconds_left)} left"
    return (
        f"snapshot: {counted(view.rows, 'row')}, {bytes_text(view.bytes)}, {view.fraction:.0%}{remaining}; "
        f"not complete yet: {listed(view.tables)}"
    )


def maintenance_text(done: MaintenanceResult) -> str:
    """Return the work of maintenance on a table, in one line."""
    before, after = done.before, done.after
    work = ", ".join(done.done) or "nothing to do"
    return (
        f"{done.layer}.{done.name}: {work}; files {before.count} → {after.count}, "
        f"{bytes_text(before.size)} → {bytes_text(after.size)}, "
        f"deleted rows {before.deleted_rows:,} → {after.deleted_rows:,}; "
        f"removed {counted(done.removed_files, 'file')}, "
        f"{counted(done.removed_log_entries, 'log entry')}; {seconds_text(done.seconds)}"
    )
