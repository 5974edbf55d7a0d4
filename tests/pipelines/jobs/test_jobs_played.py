"""The promises of job definitions: a pod's reader under load, its probes, its ConfigMap and its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from deltasmelt.pipelines.monitor import watch
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.runtime.supervisor import END_SECONDS
from tests.bronze.replaying import execute, source_of
from tests.patience import wait_for
from tests.pipelines.jobs.command_lines import compose
from tests.pipelines.jobs.test_jobs_kubernetes import READER, container, pods
from tests.pipelines.processes import ROOT, Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALERTS_SECONDS = watch._LAST_SAMPLE_SECONDS + watch._LAST_ALERTS_SECONDS
PAGES = conf_folder().parent / "docs" / "how-to"


def graces() -> Iterator[tuple[str, float]]:
    """Return the seconds from SIGTERM to SIGKILL in every definition."""
    for name, pod in pods().items():
        yield name, pod["spec"]["terminationGracePeriodSeconds"]
    page = (PAGES / "container.md").read_text().replace("\\\n", " ")
    for number, run in enumerate(re.findall(r"^docker run .*$", page, re.MULTILINE)):
        (seconds,) = re.findall(r"--stop-timeout (\d+)", run)
        yield f"docker run {number}", float(seconds)
    for name in ("reader", "silver", "gold"):
        yield f"compose {name}", float(compose()["services"][name]["stop_grace_period"].removesuffix("s"))
    texts = [*(conf_folder() / "systemd").glob("**/*.conf"), PAGES / "schedule.md"]
    texts += [path for path in (conf_folder() / "systemd").glob("*.service") if "Stop" in path.read_text()]
    for path in texts:
        (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", path.read_text(), re.MULTILINE)
        yield path.name, float(seconds)
    for seconds in re.findall(r"timeout -k (\d+) ", (conf_folder() / "cron" / "deltasmelt.cron").read_text()):
        yield "cron", float(seconds)


def test_every_definition_allows_command_enough_shutdown_time() -> None:
    listed = list(graces())
    assert {"deltasmelt-reader", "docker run 1", "compose gold", "common.conf", "schedule.md", "cron"} <= {
        *dict(listed)
    }
    assert [(name, seconds) for name, seconds in listed if seconds < END_SECONDS + ALERTS_SECONDS] == []


def probe(name: str, port: str, token: Path) -> tuple[bool, float]:
    """Run a probe of the manifest as the kubelet does; return its success in time, and its seconds."""
    definition = container(READER)[name]
    words = [sys.executable, *definition["exec"]["command"][1:], f"--http=0.0.0.0:{port}"]
    words = [re.sub(r"(--http-token-file)=.*", rf"\1={token}", word) for word in words]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        process = subprocess.run(
            words, env=environment, capture_output=True, timeout=definition["timeoutSeconds"], check=False
        )
    except subprocess.TimeoutExpired:
        return False, time.monotonic() - began
    return process.returncode == 0, time.monotonic() - began


def lies_in(lake: Path) -> set[Any]:
    """Return the ids in bronze."""
    if not (lake / "bronze" / "changes" / "_delta_log").is_dir():
        return set()
    rows = DeltaTable(lake / "bronze" / "changes").to_pyarrow_table(columns=["op", "new"])
    rows = rows.filter(pc.is_in(rows["op"], pa.array(["insert", "snapshot"])))  # whichever read them first
    return {new[0] for new in rows["new"].to_pylist()}


@pytest.mark.postgres
@pytest.mark.process
def test_reader_pod_lives_by_single_config_map(database: str, tmp_path: Path) -> None:
    """The test lays out the ConfigMap as the kubelet does, and changes its lake; then the reader dies."""
    source, token, config = source_of(database), tmp_path / "token", tmp_path / "config"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)

    def mount(version: str) -> None:
        folder = config / f"..{version}"
        folder.mkdir(parents=True)
        (folder / "pipeline.yml").write_text(
            f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
            f"lake: {{path: '{tmp_path / version}'}}\n"
        )
        (config / "..next").symlink_to(folder.name)
        (config / "..next").replace(config / "..data")

    execute(source, "CREATE TABLE items (id int PRIMARY KEY, t text)")
    mount("first")
    (config / "pipeline.yml").symlink_to("..data/pipeline.yml")
    arguments = ("--http", "0.0.0.0:0", "--http-token-file", token)
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        with Command("bronze", config / "pipeline.yml", *arguments, folder=tmp_path) as pod:
            wait_for(lambda: "status page" in pod.text(), 120)
            ((port),) = re.findall(r"status page: http://\S+?:(\d+)/", pod.text())
            wait_for(lambda: probe("startupProbe", port, token)[0], 120)
            execute(source, "INSERT INTO items SELECT n, repeat('x', 400) FROM generate_series(1, 20000) n")
            for name in ("livenessProbe", "readinessProbe"):
                definition = container(READER)[name]
                # A pod whose first look is still under way is not ready yet; a later probe finds it so.
                wait_for(
                    lambda probed=name: probe(probed, port, token)[0],  # type: ignore[misc]
                    definition["failureThreshold"] * definition["periodSeconds"],
                )
            for busy in load:
                busy.kill()
            wait_for(lambda: len(lies_in(tmp_path / "first")) == 20000, 120)

            mount("second")
            (reader,) = pod.family("reader_process")
            os.kill(reader, signal.SIGKILL)
            execute(source, "INSERT INTO items VALUES (0)")
            wait_for(lambda: "0" in lies_in(tmp_path / "first"), 60)
            assert not (tmp_path / "second").exists(), "a reader that is started again reads as its command"

            began = time.monotonic()
            pod.process.send_signal(signal.SIGTERM)
            assert pod.wait(READER["spec"]["terminationGracePeriodSeconds"]) == 143, pod.text()
            assert time.monotonic() - began < END_SECONDS
    finally:
        for busy in load:
            busy.kill()
            busy.wait()
