"""`smelt run` with `quality.every`: checks run in parallel with the cycles and do not delay the end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.runtime.supervisor import END_SECONDS
from tests.fix_postgres import drop_database, make_database
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.runtime.test_run import Shop

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.torture]


def test_run_repeats_quality_and_ends_during_check(server_dsn: str, tmp_path: Path) -> None:
    dsn = make_database(server_dsn)
    try:
        shop = Shop(tmp_path, dsn)
        shop.file.write_text(
            shop.file.read_text() + "quality: {every: 1s, masked: [public.customers.name]}\n"
        )
        with Command("run", shop.file, folder=tmp_path) as run:
            wait_for(lambda: "expectations hold" in run.text(), 200)
            shop.execute("INSERT INTO customers VALUES (51, 'new', NULL, '{}')")
            wait_for(lambda: run.text().count("expectations hold") > 2, 200)
            run.process.send_signal(signal.SIGINT)
            assert run.wait(END_SECONDS) == 130
            output = run.text()
        assert "Traceback" not in output
        assert "could not be checked" not in output
        assert "Traceback" not in next((tmp_path / "logs").glob("*/smelt.log")).read_text()
        assert list((tmp_path / "logs").glob("*/quality.html"))
    finally:
        drop_database(server_dsn, dsn)
