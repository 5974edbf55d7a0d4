"""A reader process that starts before its orders arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines import databricks_secrets
from deltasmelt.pipelines.runtime.reader_supervision import loaded_reader, send_orders, spawn

pytestmark = pytest.mark.process


def test_reader_without_orders_ends_with_parent(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        process = spawn(log)
    output, _ = process.communicate(timeout=60)  # closes its standard input
    assert (process.returncode, output) == (0, b"")
    assert (tmp_path / "log").read_bytes() == b""


def test_unused_reader_ends_after_block() -> None:
    with loaded_reader(needed=True) as process:
        assert process is not None
        assert process.poll() is None
    assert process.returncode is not None
    with loaded_reader(needed=False) as nobody:
        assert nobody is None


def test_orders_reach_reader_and_select_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the reader are in the log named by the orders."""
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    with spawn() as process:
        file, output_file = tmp_path / "none.yml", tmp_path / "said"
        send_orders(process, file=file, text="pipeline: 7\n", log=output_file, until=Lsn(5))
        assert process.stdout is not None
        error = process.stdout.read()
    assert process.returncode == 1
    assert b'"event": "error"' in error
    assert b"none.yml" in error
    assert b"the reader stopped" in (tmp_path / "said").read_bytes()


def test_secrets_travel_with_orders_and_stay_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    monkeypatch.setattr(databricks_secrets, "_KNOWN", {"shop/dsn": "host=db prot=1 password=gEh31m-Wort"})
    file = tmp_path / "shop.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: '${secret:shop/dsn}', slot: s, publication: p}\nlake: {path: ./lake}\n"
    )
    with spawn() as process:
        texts = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
        send_orders(process, file=file, text=file.read_text(), log=tmp_path / "said", until=None)
        assert process.stdout is not None
        error = process.stdout.read()
    assert process.returncode == 1
    assert b"dsn-invalid" in error, "it has read the secret"
    texts += [error, (tmp_path / "said").read_bytes()]
    assert not any(b"gEh31m" in text for text in texts)


def test_orders_to_a_dead_one_are_no_error(tmp_path: Path) -> None:
    with spawn() as process:
        process.kill()
        process.wait(60)
        send_orders(process, file=tmp_path / "a.yml", text="", log=tmp_path / "log", until=None)


def test_a_file_that_is_wrong_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("pipeline: a\nsource: 7\n")
    command = [sys.executable, "-m", "deltasmelt", "bronze", str(tmp_path / "a.yml")]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert ended.returncode == 1
    assert "source" in ended.stderr
    assert not ended.stdout


def test_a_print_while_it_loads_is_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, psycopg\n"
        "class Says:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'deltasmelt.bronze.reader.reader':\n"
        "            print('stray', flush=True)\n"
        "sys.meta_path.insert(0, Says())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with (tmp_path / "log").open("ab") as log:
        process = spawn(log)
    output, _ = process.communicate(timeout=60)
    assert output == b""
    assert (tmp_path / "log").read_bytes() == b"stray\n"
