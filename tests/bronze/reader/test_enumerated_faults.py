"""Each effect of the reader meets each kind of fault once, with and without a kill afterwards.

Two histories. The first lies in the log and is read again for each case. The history has some hundred
transactions (one large), DDL, TRUNCATE, a table added, heartbeats, compacted files and a broken connection.
The second begins at the first start: publication, slot and first copies are made while tables change.

Plain runs take a sample; `make torture` runs all cases.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.bronze.enumerated import KINDS, Case, Killed, cases
from tests.bronze.first_start import FirstStart
from tests.bronze.standard_history import History, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.postgres

CHUNKS = 16
SAMPLE = 2
START_SAMPLE = 1


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use small limits, and suppress the tracebacks of killed readers' threads."""
    hook = threading.excepthook

    def tell(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Killed:
            hook(arguments)

    monkeypatch.setattr(threading, "excepthook", tell)
    shorten(monkeypatch)
    return iter([None])


def run(history: History | FirstStart, chosen: Sequence[Case]) -> None:
    """Run each case; report all failures. Most cases meet their fault: the number of effects varies."""
    met_count, failed = 0, []
    for case in chosen:
        try:
            outcome = history.read(case)
            met_count += outcome.guard.met
            history.check(outcome, case)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(chosen)} cases", failed)
    assert met_count >= 0.6 * len(chosen)


def sample(history: History | FirstStart, count: int) -> None:
    """Run `count` cases from the whole history; each case meets its fault.

    The number of effects varies between runs: simultaneous input is one batch, so a busy machine counts 30 or
    200. If a case comes too late, an earlier effect of the same kind replaces the case.
    """
    every = cases(history.seen)
    for number in range(count):
        meet(history, every[(2 * number + 1) * len(every) // (2 * count)])


def meet(history: History | FirstStart, case: Case) -> None:
    """Run a case, or the case of an earlier effect of the same kind if the case meets no fault."""
    tried = [replace(case, number=max(case.number * part // 4, 1)) for part in (4, 3, 2, 1, 0)]
    for tried_case in tried:
        outcome = history.read(tried_case)
        history.check(outcome, tried_case)
        if outcome.guard.met:
            return
    pytest.fail(f"none of these met its fault: {tried}")


def test_sampled_faults_leave_bronze_as_the_log(database: str, tmp_path: Path) -> None:
    history = History(database, tmp_path)
    sample(history, SAMPLE)
    for door in sorted(KINDS["never"]):
        meet(history, Case(door, (history.seen[door] + 1) // 2, "never", kill=False))


def test_sampled_faults_of_a_first_start_lose_nothing(database: str, tmp_path: Path) -> None:
    sample(FirstStart(database, tmp_path), START_SAMPLE)


@pytest.mark.torture
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_fault_leaves_bronze_as_the_log(database: str, tmp_path: Path, chunk: int) -> None:
    history = History(database, tmp_path)
    run(history, cases(history.seen)[chunk::CHUNKS])


@pytest.mark.torture
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_fault_of_a_first_start_loses_nothing(database: str, tmp_path: Path, chunk: int) -> None:
    start = FirstStart(database, tmp_path)
    run(start, cases(start.seen)[chunk::CHUNKS])
