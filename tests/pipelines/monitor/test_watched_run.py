"""A reader on a real server, watched from outside while it runs: metrics, page, an alert, JSON lines."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.monitor import probe
from tests.bronze.replaying import execute, source_of
from tests.patience import wait_for
from tests.pipelines.monitor.statuses import SECRET
from tests.pipelines.monitor.test_alerts import receiver
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef0123"


def get(address: str) -> str:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text


@pytest.mark.postgres
@pytest.mark.process
def test_running_reader_serves_status_and_alerts(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_HTTP_TOKEN", TOKEN)
    source, file = source_of(database), tmp_path / "pipeline.yml"
    execute(source, "CREATE TABLE good (id int PRIMARY KEY)", "CREATE TABLE keyless (id int)")
    with receiver(500, 200) as (hook, accepted):
        file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
            f"lake: {{path: ./lake}}\nalerts: {{webhook: '{hook}', kinds: [error]}}\n"
        )
        with Command(
            "bronze", file, "--http", "127.0.0.1:0", "--metrics-port", "0", "--log-format", "json",
            folder=tmp_path,
        ) as command:  # fmt: skip
            wait_for(lambda: "/metrics" in command.text(), 60)
            page, metrics = re.findall(r'http://[^"\s]+', command.text())
            wait_for(lambda: 'deltasmelt_tables{pipeline="shop",state="waiting"} 1.0' in get(metrics), 60)
            text = get(metrics)
            assert 'deltasmelt_stage_up{pipeline="shop",stage="bronze"} 1.0' in text
            assert 'deltasmelt_slot_active{pipeline="shop"} 1.0' in text
            assert (
                'deltasmelt_open_errors{code="table-without-key",pipeline="shop",scope="table"} 1.0' in text
            )
            assert get(f"{page}healthz") == "ok\n"
            assert probe.main(["/healthz", "--http", page.removeprefix("http://").strip("/")]) == 0
            page_text = get(page)
            assert "public.good" in page_text
            assert "smelt explain-error table-without-key" in page_text
            wait_for(lambda: accepted, 30)
            second = Command(
                "bronze", file, "--http", page.removeprefix("http://").strip("/"), folder=tmp_path
            )
            with second:
                assert second.wait(60) == 1
                assert (
                    "cannot listen on this address: Address already in use [cannot-listen]" in second.text()
                )
            command.process.send_signal(signal.SIGTERM)
            assert command.wait(60) == 143
            output = command.text()
    assert [(alert["name"], alert["code"]) for alert in accepted] == [("public.keyless", "table-without-key")]
    lines = [json.loads(line) for line in output.splitlines()]
    assert {"time", "level", "logger", "process", "message"} <= set(lines[0])
    assert lines[-1]["message"] == "ended by SIGTERM"
    log = next((tmp_path / "logs").glob("*/smelt.log")).read_text()
    assert any(json.loads(line)["logger"] == "deltasmelt.reader" for line in log.splitlines()[:1])
    assert SECRET not in output + log + page_text + text
    assert TOKEN not in output + log + page_text + text


@pytest.mark.postgres
@pytest.mark.process
def test_a_job_posts_its_errors_and_its_end(database: str, tmp_path: Path) -> None:
    source, file = source_of(database), tmp_path / "pipeline.yml"
    execute(source, "CREATE TABLE keyless (id int)", "INSERT INTO keyless VALUES (1)")
    with receiver(200) as (hook, accepted):
        file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
            f"lake: {{path: ./lake}}\nalerts: {{webhook: '{hook}', kinds: [error]}}\n"
        )
        with Command("bronze", file, "--until-caught-up", folder=tmp_path) as command:
            assert command.wait(60) == 3, command.text()
    assert [(alert["name"], alert["code"]) for alert in accepted] == [
        ("public.keyless", "table-without-key"), ("shop", None),
    ]  # fmt: skip
    assert (
        "the command ended: caught up except for: public.keyless (stopped by errors)" in accepted[1]["text"]
    )


@pytest.mark.process
def test_job_with_silent_server_posts_end(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    with receiver(200) as (hook, accepted):
        file.write_text(
            "pipeline: shop\nsource: {host: 127.0.0.1, port: 1, user: u, slot: s, publication: p}\n"
            f"lake: {{path: ./lake}}\nalerts: {{webhook: '{hook}'}}\n"
        )
        with Command("bronze", file, "--until-caught-up", folder=tmp_path) as command:
            assert command.wait(60) == 1, command.text()
    (alert,) = accepted
    assert "the command ended: 127.0.0.1:1" in alert["text"]
