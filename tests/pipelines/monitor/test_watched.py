"""The block that watches a run: its pages, the report of the end, and no cost unless requested."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.monitor.access import Address, ViewOptions
from deltasmelt.pipelines.monitor.watch import watched
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import tables_stopped
from deltasmelt.pipelines.terminal.interrupts import Terminated
from deltasmelt.pipelines.terminal.jvm_errors import SparkFailure
from deltasmelt.pipelines.terminal.output import Output
from tests.patience import wait_for
from tests.pipelines.monitor.statuses import SECRET
from tests.pipelines.monitor.test_alerts import receiver

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline


def pipeline_of(folder: Path, alerts: str = "{}") -> Pipeline:
    file = folder / "p.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: 127.0.0.1, port: 1, user: u, slot: s, publication: p}\n"
        f"lake: {{path: lake}}\nalerts: {alerts}\n"
    )
    return load_pipeline(file)


def code_of(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_an_error_that_ends_the_command_is_posted(tmp_path: Path) -> None:
    with receiver(503, 200) as (hook, accepted):
        pipeline = pipeline_of(tmp_path, f"{{webhook: '{hook}'}}")
        error = DefiniteError("the slot is lost", code="slot-lost", where="db", remedy="do this")
        with pytest.raises(DefiniteError), watched(pipeline, ("bronze",), None, Output()):
            raise error
    (alert,) = accepted
    assert alert["text"] == "shop: the command ended: db: the slot is lost [slot-lost]"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SparkFailure("OutOfMemoryError", "heap\n\tat x.y"), "Spark: OutOfMemoryError: heap"),
        (OSError(errno.ENOSPC, "full", "/lake/x"), "/lake/x: No space left on device"),
        (RuntimeError(f"postgresql://u:{SECRET}@db/shop"), "RuntimeError: postgresql://u:***@db/shop"),
        (tables_stopped(["public.bad"]), "caught up except for: public.bad (stopped by errors)"),
    ],
)
def test_whatever_ends_the_command_is_posted(error: Exception, message: str, tmp_path: Path) -> None:
    with receiver(200) as (hook, accepted):
        pipeline = pipeline_of(tmp_path, f"{{webhook: '{hook}'}}")
        with pytest.raises(type(error)), watched(pipeline, ("bronze",), None, Output()):
            raise error
    (alert,) = accepted
    assert (alert["text"], alert["code"]) == (f"shop: the command ended: {message}", None)
    assert alert["remedy"].startswith(("smelt.log", "`smelt status`"))


def test_a_command_that_somebody_ended_posts_nothing(tmp_path: Path) -> None:
    torn = OSError("what was under way")
    torn.__context__ = Terminated()
    with receiver(200) as (hook, accepted):
        pipeline = pipeline_of(tmp_path, f"{{webhook: '{hook}'}}")
        for end in (KeyboardInterrupt(), Terminated(), torn):
            with pytest.raises(type(end)), watched(pipeline, ("bronze",), None, Output()):
                raise end
    assert accepted == []


def test_job_error_is_posted_despite_early_end(tmp_path: Path) -> None:
    """The job ends before the next poll."""
    with receiver(200) as (hook, accepted):
        pipeline = pipeline_of(tmp_path, f"{{webhook: '{hook}', kinds: [error]}}")
        with watched(pipeline, ("bronze",), None, Output()) as command:
            command.runs(lambda: {"bronze": True})
            wait_for(lambda: command.pages()["/status.json"]().status == 200, 20)
            message = "copying waits for open transactions: pid 7 (boss on shop, psql, active, 5 s)"
            error = OpenError("table", "public.bad", "table-without-key", message)
            ControlTables(pipeline.lake_address()).open_error(error)
    (alert,) = accepted
    assert (alert["name"], alert["code"]) == ("public.bad", "table-without-key")
    assert alert["message"] == "copying waits for open transactions: pid 7 (5 s)"


def test_the_port_of_metrics_has_metrics_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched(pipeline_of(tmp_path), ("bronze",), ViewOptions(metrics_port=0), Output()) as command:
        command.runs(lambda: {"bronze": True})
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", capsys.readouterr().err)
        assert code_of(address) == 200
        assert [code_of(address.replace("metrics", page)) for page in ("", "status.json", "readyz")] == [
            404
        ] * 3
    with pytest.raises(urllib.error.URLError):
        code_of(address)


def test_pipeline_with_absent_server_is_alive_but_unready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views = ViewOptions(http=Address("127.0.0.1", 0))
    with watched(pipeline_of(tmp_path), ("bronze",), views, Output()) as command:
        (address,) = re.findall(r"http://\S+/", capsys.readouterr().err)
        assert code_of(f"{address}healthz") == 503, "the stages have not started"
        command.runs(lambda: {"bronze": True})
        wait_for(lambda: code_of(f"{address}status.json") == 200, 20)
        assert [code_of(f"{address}{page}") for page in ("healthz", "readyz", "")] == [200, 503, 200]


def test_invalid_display_settings_are_reported_before_run(tmp_path: Path) -> None:
    everywhere = ViewOptions(http=Address("0.0.0.0", 0))  # noqa: S104 - refused
    with (
        pytest.raises(ConfigurationError, match="the page needs a token"),
        watched(
            pipeline_of(tmp_path, f"{{webhook: 'https://127.0.0.1:1/{SECRET}'}}"), (), everywhere, Output()
        ),
    ):
        pytest.fail("the run has begun")


@pytest.mark.process
def test_command_showing_nothing_loads_no_monitor() -> None:
    code = (
        "import deltasmelt.pipelines.cli, deltasmelt.pipelines.commands.run, sys; "
        "names = 'deltasmelt.pipelines.monitor.watch', 'prometheus_client', 'jinja2', 'http.server'; "
        "print([name for name in names "
        "if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert process.stdout.strip() == "[]"
