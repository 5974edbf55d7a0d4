"""`smelt tail` beside a real reader: one database and one lake, through all kinds of changes."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.commands import tail as tail_command
from deltasmelt.pipelines.commands.tail import Tail, TailOptions, run_tail
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Format, Output
from tests.bronze.replaying import bronze_rows, execute, read_all
from tests.bronze.written_log import LOG, Process, Server
from tests.fix_postgres import drop_database, make_database
from tests.object_store import Faults, lake_text
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import ROOT, Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.lake.place import Location
    from deltasmelt.pipelines.settings import Pipeline
    from tests.object_store import ObjectStore

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text, email text, bio text);
ALTER TABLE customers ALTER bio SET STORAGE EXTERNAL;
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2), note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO customers SELECT n, 'n' || n, n || '@x.org', repeat('b', 3000) FROM generate_series(1, 40) n;
INSERT INTO orders VALUES (1, 7, 12.50, 'a, b')
"""
CHANGES = (
    "INSERT INTO customers VALUES (41, 'new', NULL, E'\\x1b[2Jclear')",
    "UPDATE customers SET email = 'one@x.org' WHERE id = 1",
    "UPDATE customers SET id = 100 WHERE id = 2",
    "UPDATE orders SET total = 13 WHERE id = 1",
    "UPDATE orders SET id = 2, note = NULL WHERE id = 1",
    "DELETE FROM customers WHERE id = 3",
    "ALTER TABLE customers RENAME name TO full_name; UPDATE customers SET full_name = 'x' WHERE id = 4",
    "SELECT pg_logical_emit_message(true, 'app', 'deploy')",
    "TRUNCATE orders",
)
LINES = [
    r"insert    public.customers  id=41  name=new, email=NULL, bio=\"\u001b[2Jclear\"".replace('\\"', '"'),
    "update    public.customers  id=1  name=n1, email=one@x.org, bio unchanged",
    "update    public.customers  id=2 → 100  name=n2, email=2@x.org, bio unchanged",
    "update    public.orders  id=1  total: 12.50 → 13.00",
    'update    public.orders  id=1 → 2  note: "a, b" → NULL',
    "delete    public.customers  id=3",
    "update    public.customers  id=4  full_name=x, email=4@x.org, bio unchanged",
    "message       prefix=app, content=deploy",
    "truncate  public.orders",
]


class Shown:
    """A tail in this process: what it prints at each poll."""

    def __init__(self, pipeline: Pipeline, *tables: str, output: Format = Format.TEXT, **more: Any) -> None:
        self.messages = io.StringIO()
        self._tail = Tail(pipeline, TailOptions(tables, **more), Output(output))
        self.begins()

    def begins(self) -> bool:
        with redirect_stderr(self.messages):
            return self._tail.begin()

    def lines(self) -> list[str]:
        """Return the lines of one poll, without their times."""
        with redirect_stdout(io.StringIO()) as out:
            assert self._tail.step()
        return [line[25:] if line.startswith("20") else line for line in out.getvalue().splitlines()]

    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.lines()]

    def places(self) -> list[tuple[str, int]]:
        """Return the places of the changes of one poll, which may fail."""
        with redirect_stdout(io.StringIO()) as out:
            self._tail.step()
        shown = [json.loads(line) for line in out.getvalue().splitlines()]
        return [(each["commit_lsn"], each["seq"]) for each in shown]


class Shop:
    """A database with a lake, and a tail from before each change."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.dsn = dsn
        self.lake_path = str(folder / "lake")
        name = f"tail_{conninfo_to_dict(dsn)['dbname']}"
        self.file = folder / "pipeline.yml"
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            "lake: {path: ./lake}\n"
        )
        execute(dsn, TABLES)
        waiting = self.tail()
        assert not waiting.begins()
        assert waiting.messages.getvalue().count("bronze does not exist yet") == 1
        self.read()
        assert waiting.begins()
        self.copies = sorted(waiting.lines())
        self.start = str(Lsn(bronze_rows(self.lake_path)[-1]["commit_lsn"] + 1))
        self.live, self.objects = self.tail(), self.tail(output=Format.JSON)
        self.some = self.tail("public.ord*", operations={"update", "truncate"})
        execute(dsn, *CHANGES)
        self.read()

    def tail(self, *tables: str, masked: str | None = None, **more: Any) -> Shown:
        pipeline = load_pipeline(self.file)
        pipeline.quality.masked.extend([] if masked is None else [masked])
        return Shown(pipeline, *tables, **more)

    def read(self) -> None:
        read_all(load_pipeline(self.file).source, self.lake_path)


@pytest.fixture(scope="module")
def shop(server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    dsn = make_database(server_dsn)
    yield Shop(tmp_path_factory.mktemp("tail"), dsn)
    drop_database(server_dsn, dsn)


@pytest.mark.postgres
def test_changes_are_shown_as_they_arrive(shop: Shop) -> None:
    assert shop.copies == [
        "snapshot  public.customers  copied, 40 rows",
        "snapshot  public.orders  copied, 1 row",
    ]
    assert shop.live.lines() == LINES
    assert shop.live.lines() == []
    assert shop.some.lines() == [LINES[3], LINES[4], LINES[8]]
    assert shop.tail(start=shop.start).lines() == LINES
    rows = bronze_rows(shop.lake_path)
    third = next(row for row in rows if row["op"] == "update" and row["old_is_key"])
    for start in (str(Lsn(third["commit_lsn"])), third["commit_ts"].isoformat()):
        assert shop.tail(start=start).lines() == LINES[2:]
    copied = shop.tail("public.orders", operations={"snapshot"}, start="0/0").lines()
    assert copied == ['snapshot  public.orders  id=1  customer=7, total=12.50, note="a, b"', shop.copies[1]]


@pytest.mark.postgres
def test_json_has_every_value_that_was_sent(shop: Shop) -> None:
    shown = shop.objects.objects()
    assert [each["op"] for each in shown] == [line.split()[0] for line in LINES]
    assert shown[0]["new"]["bio"] == "\x1b[2Jclear"
    assert shown[1]["unchanged"] == ["bio"]
    assert "bio" not in shown[1]["new"]
    assert (shown[2]["old_key"], shown[2]["key"]) == ({"id": "2"}, {"id": "100"})
    assert (shown[4]["old"]["note"], shown[4]["new"]["note"]) == ("a, b", None)
    assert shown[8]["end_of_tx"] is True


@pytest.mark.postgres
def test_masked_values_are_not_shown(shop: Shop) -> None:
    masked = shop.tail(masked="public.customers.full_name", start=shop.start).lines()
    assert masked[1] == "update    public.customers  id=1  name=***, email=one@x.org, bio unchanged"
    assert masked[3] == LINES[3]
    with pytest.raises(ConfigurationError) as refused:
        shop.tail(masked="public.customers.nme", start="0/0").lines()
    assert refused.value.code == "mask-unknown"


@pytest.mark.postgres
def test_wrong_words_are_refused(shop: Shop, tmp_path: Path) -> None:
    for words, text in {
        ("public.custmers",): "did you mean public.customers?",
        ("--op", "upsert"): "is not one of insert",
        ("--from", "noon"): "neither an LSN",
    }.items():
        done = smelt_here("tail", shop.file, *words, folder=tmp_path)
        assert done.returncode != 0
        assert text in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.postgres
@pytest.mark.process
def test_interrupt_ends_the_command_at_once(shop: Shop, tmp_path: Path) -> None:
    with Command("tail", shop.file, "--from", "0/0", folder=tmp_path) as command:
        wait_for(lambda: "truncate  public.orders" in command.text())
        interrupted = time.monotonic()
        command.process.send_signal(signal.SIGINT)
        assert command.wait(10) == 130
        assert time.monotonic() - interrupted < 5
        assert command.text().splitlines()[-1] == "interrupted"
        assert "following bronze from 0/0" in command.text()


@pytest.mark.postgres
@pytest.mark.process
def test_closed_pipe_ends_the_command_quietly(shop: Shop, tmp_path: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "deltasmelt", "tail", str(shop.file)],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "SMELT_LOGS": str(tmp_path)},
    )
    os.close(write)
    with process:
        assert process.stderr is not None
        assert b"following bronze" in process.stderr.readline()
        os.close(read)  # nothing is written: the command looks by itself
        assert process.wait(10) == 1
        assert process.stderr.read() == b""


@pytest.mark.postgres
def test_burst_is_counted_in_bounded_memory(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    begin = str(Lsn(bronze_rows(shop.lake_path)[-1]["commit_lsn"] + 1))
    live, objects = shop.tail(), shop.tail(output=Format.JSON)
    execute(
        shop.dsn,
        "INSERT INTO customers SELECT n, 'burst', 'b', 'c' FROM generate_series(1000, 20999) n",
        "INSERT INTO orders VALUES (7, 7, 7, 'small')",
    )
    shop.read()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    lines = live.lines()
    assert time.process_time() - start < 4, "5,000 changes cost less than a second"
    assert len(lines) == 1001
    assert lines[-1] == "insert    public.orders  id=7  customer=7, total=7.00, note=small"
    with monkeypatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(tail_command, "_pause", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_tail(load_pipeline(shop.file), TailOptions(start=begin), Output())
        assert out.getvalue().endswith("… 19,000 more changes of 1 table left out\n")
    time.sleep(1)
    assert live.lines() == ["… 19,000 more changes of 1 table left out"]
    assert len(objects.objects()) == 20_001
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"


def test_lake_in_a_catalog_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'host=x', slot: s, publication: p}\nlake: {catalog: main}\n"
    )
    with pytest.raises(DefiniteError) as refused:
        Tail(load_pipeline(file), TailOptions(), Output())
    assert refused.value.code == "tail-place"
    assert isinstance(load_pipeline(file).lake_address(), Lake)


def test_failing_store_is_waited_for(tmp_path: Path, store: ObjectStore, place: Location) -> None:
    server = Server(LOG[:2])
    Process(server, place).run()
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'host=x', slot: s, publication: p}\n"
        f"{lake_text(str(place), store.options())}"
    )
    tail = Shown(load_pipeline(file), "public.items", output=Format.JSON)
    server.log = LOG
    Process(server, place).run()
    store.set_faults(Faults(unavailable=3.0))
    places: list[tuple[str, int]] = []

    def is_complete() -> bool:
        places.extend(tail.places())
        return len(places) >= 10

    with redirect_stderr(tail.messages):
        wait_for(is_complete)
        assert tail.places() == []
    assert len(places) == len(set(places)) == 10, "each change once"


def test_waiting_survives_tables_that_come_later(tmp_path: Path, store: ObjectStore, place: Location) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'host=x', slot: s, publication: p}\n"
        f"{lake_text(str(place), store.options())}"
    )
    pipeline = load_pipeline(file)
    pipeline.quality.masked.append("public.customers.email")
    tail = Shown(pipeline, "public.items", "public.custmers", output=Format.JSON)
    store.set_faults(Faults(unavailable=3.0))
    assert not tail.begins()
    assert "trying again" in tail.messages.getvalue()
    Process(Server(LOG[:1]), place).run()
    wait_for(tail.begins)
    with redirect_stderr(tail.messages):
        shown = tail.objects()
    assert [set(each["new"].values()) for each in shown] == [{"***"}] * 3
    messages = tail.messages.getvalue()
    assert messages.count("bronze has no table public.custmers yet") == 1
    assert messages.count("all values are hidden until bronze has the column") == 1
