"""Failures of copies, told to a lake that may itself be what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from bronze.config.sections import SnapshotSettings
from bronze.config.timing import Timing
from bronze.errors import TransientError
from bronze.progress import Progress
from bronze.reader.copies import InitialCopies
from bronze.reader.copy_trouble import CopyTrouble
from bronze.reader.look import Look
from tests.bronze.replaying import source_of
from tests.bronze.running import wait_for

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import pytest

    from bronze.lake.control import OpenError


def transient(code: str) -> TransientError:
    return TransientError("it passes", code=code)


class Control:
    """`control.errors` in memory, in a lake that is down or not."""

    def __init__(self) -> None:
        self.down = False
        self.codes: list[str] = []

    def open_error(self, error: OpenError) -> None:
        self._reach()
        self.codes.append(error.code)

    def close_errors(self, _scope: str, _name: str, code: str) -> None:
        self._reach()
        self.codes = [known for known in self.codes if known != code]

    def _reach(self) -> None:
        if self.down:
            raise OSError("the lake is down")


def test_an_error_that_could_not_be_closed_is_closed_by_the_next_failure() -> None:
    control: Any = Control()
    trouble = CopyTrouble(control, "shop")
    trouble.failed(transient("connection-lost"))
    control.down = True
    trouble.failed(transient("lake-unwritable"))
    assert control.codes == ["connection-lost"]
    control.down = False
    trouble.failed(transient("lock-timeout"))
    assert control.codes == ["lock-timeout"]


def copies_of(trouble: Any, rounds: Callable[[], Look], monkeypatch: pytest.MonkeyPatch) -> InitialCopies:
    """Copies whose looks are played, and whose failures are told to `trouble`."""
    sink = SimpleNamespace(tables=SimpleNamespace(requests=lambda _: {}))
    landing: Any = SimpleNamespace(
        progress=Progress(), shapes=SimpleNamespace(unknown_columns=dict), sink=sink, reached=lambda _: None
    )
    source = source_of("postgresql://nobody@127.0.0.1:1/none", timing=Timing(retry_first=0.01))
    control: Any = None
    copies = InitialCopies(source, SnapshotSettings(), landing, control, trouble)

    def look(_: threading.Event) -> Look:
        copies.tables._newest = rounds()
        return copies.tables.newest

    monkeypatch.setattr(copies.tables, "look", look)
    monkeypatch.setattr(copies._watch, "start", lambda: None)
    return copies


def test_a_copy_that_fails_before_the_lake_does_is_tried_again_when_both_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control: Any = Control()
    failures = iter(["connection-lost", "lake-unwritable", "lake-unwritable"])

    def rounds() -> Look:
        code = next(failures, None)
        control.down = code == "lake-unwritable"
        if code is not None:
            raise transient(code)
        return Look()

    copies = copies_of(CopyTrouble(control, "shop"), rounds, monkeypatch)
    copies.start()
    try:
        wait_for(lambda: copies.complete or copies._failure is not None, 5)
        copies.raise_failure()
        wait_for(lambda: control.codes == [], 5)
    finally:
        copies.stop()


def test_a_fault_that_heals_while_one_is_told_does_not_end_the_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter(["connection-lost"])

    def rounds() -> Look:
        for code in failures:
            raise transient(code)
        return Look()

    def failed(_: object) -> None:
        raise OSError("the lake is down")

    trouble = SimpleNamespace(failed=failed, ended=lambda: None)
    copies = copies_of(trouble, rounds, monkeypatch)
    copies.start()
    try:
        wait_for(lambda: copies.complete or copies._failure is not None, 5)
        copies.raise_failure()
    finally:
        copies.stop()
