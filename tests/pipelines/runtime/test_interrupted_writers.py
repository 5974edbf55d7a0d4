"""An interrupted process releases no lock while its JVM can still commit, at whichever signal. No Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.leases import leased, object_of, still_writing, writing_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.runtime import supervisor
from deltasmelt.pipelines.runtime.locks import lake_lock, writing
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark import session_owner
from deltasmelt.pipelines.spark.session_owner import Owned
from deltasmelt.pipelines.terminal import interrupts
from deltasmelt.pipelines.terminal.interrupts import Terminated, deferred, terminable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession


class Jvm:
    """A JVM whose death takes a moment; meanwhile a second signal arrives."""

    def __init__(self, lake: Lake, second: signal.Signals | None = None) -> None:
        self.lake = lake
        self.second = second
        self.steps: list[str] = []

    def kill(self) -> None:
        self.steps.append("killed")

    def wait(self, timeout: float) -> None:
        assert timeout < 60
        second, self.second = self.second, None
        if second is not None:
            signal.raise_signal(second)
        self.steps.append("dead, " + ("locked" if is_locked(self.lake) else "released"))


def is_locked(lake: Lake) -> bool:
    try:
        with lake_lock(lake, ("silver",), command="smelt silver"):
            return False
    except DefiniteError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_jvm_is_dead_before_inner_blocks_end(
    lake_path: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Otherwise a pool would wait for its MERGEs, and the layer's lock would be free before."""
    with subprocess.Popen(["sleep", "600"]) as jvm:
        monkeypatch.setattr(session_owner, "_jvm", jvm)
        dead: list[int | None] = []

        def merge() -> None:
            # `terminable` as in a command that starts Spark within its locks
            with writing(Lake(path=lake_path), "silver"), terminable():
                try:
                    signal.raise_signal(number)
                finally:
                    dead.append(jvm.returncode)

        with pytest.raises((KeyboardInterrupt, Terminated)):
            merge()
        jvm.kill()
    assert dead == [-signal.SIGKILL]


def test_second_signal_awaits_death_of_jvm(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(path=lake_path)
    jvm = Jvm(lake, signal.SIGTERM)
    monkeypatch.setattr(session_owner, "_jvm", jvm)
    with (
        pytest.raises(Terminated),
        lake_lock(lake, ("silver",), command="smelt rebuild silver"),
        writing(lake, "silver"),
    ):
        signal.raise_signal(signal.SIGINT)
    assert jvm.steps == ["killed", "killed", "dead, locked"]
    assert not is_locked(lake)


def test_interrupted_lease_in_store_is_not_released(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may execute the last request of a killed JVM later."""
    lake = Lake(path=place)
    monkeypatch.setattr(session_owner, "_jvm", None)

    def merge() -> None:
        with writing(lake, "silver"):
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                with pytest.raises(TransientError, match="interrupted"):
                    still_writing(lake, "silver")

    with pytest.raises(KeyboardInterrupt):
        merge()
    stored = objects.read(lake.root, object_of(writing_of("silver")))
    assert stored is not None
    assert json.loads(stored.body)["holder"] is not None


class Run(Supervisor):
    """A run of silver in the middle of a statement."""

    def __init__(self, folder: Path) -> None:
        text = "{pipeline: p, source: {dsn: x, slot: s, publication: p}, lake: {path: ./lake}}"
        file = folder / "pipeline.yml"
        file.write_text(text)
        super().__init__(load_pipeline(file), (), command="smelt run", layers=["silver"])
        self.begun, self.killed = threading.Event(), threading.Event()

    def _work(self) -> None:
        self._taken = Owned(cast("SparkSession", None))
        self.begun.set()
        self.killed.wait()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Run, Jvm]]:
    run = Run(tmp_path)
    jvm = Jvm(run._pipeline.lake_address(), signal.SIGINT)
    monkeypatch.setattr(supervisor, "access_of", lambda _: cast("Any", Running(jvm)))
    monkeypatch.setattr(supervisor, "_WORKER_SECONDS", 0.1)
    yield run, jvm
    run.killed.set()


class Running:
    """An access to a session with this JVM."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm

    def process(self) -> Jvm:
        return self.jvm


def together(*numbers: signal.Signals) -> None:
    """Send signals that Python receives at the same moment, as from a service that ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGINT, signal.SIGTERM]])
def test_further_signals_do_not_shorten_end(
    run: tuple[Run, Jvm], monkeypatch: pytest.MonkeyPatch, numbers: list[signal.Signals]
) -> None:
    supervised, jvm = run
    if len(numbers) == 1:  # further signals come later
        monkeypatch.setattr(interrupts, "_TOGETHER_SECONDS", 0.0)

    def end(_: Owned, __: object, *, patience: float = 15.0) -> None:
        jvm.steps.append(f"end, {patience}")
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise OSError("the JVM does not answer")

    monkeypatch.setattr(Owned, "end", end)

    def interrupted() -> None:
        with terminable(), supervised:
            assert supervised.begun.wait(60)
            together(*numbers)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert jvm.steps == ["end, 0.0", "killed", "dead, locked"]
    assert not is_locked(jvm.lake)


@pytest.mark.parametrize("in_store", [False, True])
def test_wait_for_lock_ends_with_run(
    lake_path: str,
    place: str,
    in_store: bool,  # noqa: FBT001
) -> None:
    """A pool's thread inside a wait without a limit would prevent the end of the process."""
    lake, stop = Lake(path=place if in_store else lake_path), threading.Event()
    outcomes: list[str] = []
    holder: AbstractContextManager[object] = (
        leased(lake.root, writing_of("silver"), command="smelt maintain", wait=False)
        if in_store
        else writing(lake, "silver")
    )

    def wait() -> None:
        try:
            with writing(lake, "silver", stop=stop):
                outcomes.append("entered")
        except InterruptedError:
            outcomes.append("ended")

    with holder:
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        stop.set()
        waiting.join(60)
    with writing(lake, "silver", stop=stop):
        outcomes.append("free again")
    assert outcomes == ["ended", "free again"]


def test_signal_during_deferral_takes_effect_afterwards() -> None:
    steps: list[str] = []

    def work() -> None:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append("completed")

    with pytest.raises(KeyboardInterrupt):
        work()

    def failing() -> None:
        try:
            raise ValueError("first")
        finally:
            work()  # the error stays

    with pytest.raises(ValueError, match="first"):
        failing()
    assert steps == ["completed"] * 2
