"""A bucket is missing for a while under a running reader: alerts fire, then the reader continues."""

from __future__ import annotations

import re
import signal
import urllib.request
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.pipelines.settings import load_pipeline
from tests.bronze.replaying import execute
from tests.object_store import Faults, lake_text
from tests.patience import wait_for
from tests.pipelines.monitor.test_alerts import receiver
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake
    from tests.object_store import ObjectStore

ROOT = "s3://lake/bucket_away"


def ids(lake: Lake) -> set[str]:
    """Return the rows in bronze, from the snapshot or from the stream."""
    table = open_table(lake.uri("bronze", "changes"))
    if table is None:
        return set()
    rows = (row for batch in table.batches(["op", "new"]) for row in batch.to_pylist())
    return {row["new"][0] for row in rows if row["op"] in {"insert", "snapshot"}}


def numbers(metrics: str) -> set[str]:
    """Return the metrics with no label but the pipeline's, without their prefix."""
    with urllib.request.urlopen(metrics, timeout=10) as answer:  # noqa: S310 - our own
        text: str = answer.read().decode()
    return set(text.replace("deltasmelt_", "").replace('{pipeline="away"}', "").splitlines())


@pytest.mark.process
def test_a_bucket_that_is_away_is_waited_for(database: str, store: ObjectStore, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (0)")
    with receiver(200) as (hook, accepted):
        file = tmp_path / "pipeline.yml"
        file.write_text(
            f"pipeline: away\nsource: {{dsn: '{database}', slot: bucket_away, publication: p}}\n"
            f"{lake_text(ROOT, store.options())}\nalerts: {{webhook: '{hook}', kinds: [blind], lag: 1s}}\n"
        )
        lake = load_pipeline(file).lake_address()
        with Command("bronze", file, "--metrics-port", "0", folder=tmp_path) as running:
            wait_for(lambda: ids(lake) == {"0"}, 60)
            (metrics,) = re.findall(r"http://\S+/metrics", running.text())
            wait_for(lambda: {"lake_up 1.0", "slot_active 1.0"} <= numbers(metrics), 60)
            log = tmp_path / "logs" / "away" / "smelt.log"
            store.set_faults(Faults(gone=True))
            execute(database, "INSERT INTO items VALUES (1)")
            wait_for(lambda: "NoSuchBucket" in log.read_text(), 60)
            wait_for(lambda: {"lake_up 0.0", "slot_exists 1.0", "source_up 1.0"} <= numbers(metrics), 60)
            wait_for(
                lambda: [(alert["name"], alert["state"]) for alert in accepted] == [("lake", "firing")], 60
            )
            assert running.process.poll() is None, running.text()
            store.set_faults()
            execute(database, "INSERT INTO items VALUES (2)")
            wait_for(lambda: ids(lake) == {"0", "1", "2"}, 60)
            wait_for(lambda: (accepted[-1]["name"], accepted[-1]["state"]) == ("lake", "resolved"), 60)
            running.process.send_signal(signal.SIGTERM)
            assert running.wait(60) in {0, 143}, running.text()
