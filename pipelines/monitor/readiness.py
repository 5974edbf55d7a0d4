"""Whether the layers of a command can be relied on now, and if not, why. Pure.

Ready means: the newest sample is of now, the lake can be read, each layer has a position, no error of the
pipeline is open, and no layer is behind by more than the limit. An error of one table stops that table alone,
so it is no reason.
Alive means that each stage of the command runs. A command that waits for its server lives, and is not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.terminal.output import seconds_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from pipelines.monitor.samples import View


def why_not_ready(view: View, layers: Collection[str], limit: float) -> list[str]:
    """The reasons; empty where the layers are ready.

    Args:
        view: what is known.
        layers: of the command.
        limit: seconds that a layer may be behind.
    """
    status = view.status
    if status is None or view.late:
        return [_no_sample(view)]
    reasons = why_not_alive(view)
    if "bronze" in layers and status.source_error:
        reasons.append(f"the source does not answer: {status.source_error.splitlines()[0]}")
    if not status.lake_read:
        why = (status.lake_error or "").partition("\n")[0]
        return [*reasons, f"the lake cannot be read: {why}"]
    rungs = {rung.name: rung for rung in status.ladder}
    for layer in layers:
        rung = rungs.get(layer)
        if rung is None:  # gold of a pipeline without documents
            continue
        if rung.lsn is None:
            reasons.append(f"{layer} holds nothing yet")
        elif rung.seconds is not None and rung.seconds > limit:
            reasons.append(f"{layer} is {seconds_text(rung.seconds)} behind (limit {seconds_text(limit)})")
    reasons += [f"open error {error.code}" for error in status.errors if error.scope == "pipeline"]
    return reasons


def why_not_alive(view: View) -> list[str]:
    """The stages that do not run; empty where all do."""
    if not view.stages:
        return ["the stages are starting"]
    return [f"{stage} does not run" for stage, alive in view.stages.items() if not alive]


def _no_sample(view: View) -> str:
    if view.age is None:
        return "the status has not been read yet" + (f": {view.failure}" if view.failure else "")
    return f"the newest status is {seconds_text(view.age)} old" + (
        f": {view.failure}" if view.failure else ""
    )
