"""The gate of `bronze.checks.ownership`, over all commands and all functions of `deltasmelt`.

The test runs each command of the parser's tree with a pipeline file: with the DSN of a second server, with a
second database, and with a foreign lake. Each method of an open lake runs likewise. Every command with a
connection to a server must be refused by name, and no lake and no server may change. A command without any
connection needs no server. Java is missing, so a refusal after Spark's start also fails.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
import typer

import deltasmelt
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.position import read_position
from deltasmelt.pipelines import cli
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres

_SETTINGS = {"autovacuum": "off", "log_connections": "on"}
_ENDLESS = {"watch"}
"""Options that only repeat a command's output endlessly."""
_FOLLOWING = {"tail"}
"""Commands that never end by themselves; they read the lake alone."""
_WORDS = {
    "tables": "public.items", "table": "public.items", "document": "item", "name": "items", "key": "1",
    "statement": "SELECT 1", "query": "SELECT 1", "layer": "silver",
}  # fmt: skip


@dataclass
class World:
    """Two servers, the lake of a pipeline, and foreign lakes."""

    folder: Path
    ours: EmbeddedServer
    other: EmbeddedServer

    def file(self, name: str, dsn: str, lake: str, *, slot: str = "whose") -> Path:
        path = self.folder / f"{name}.yml"
        (self.folder / "item.yml").write_text("document: item\nroot: public.items\nfields: [id]\n")
        path.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {slot}, publication: whose}}\n"
            f"lake: {{path: ./{lake}}}\ngold: {{documents: [item.yml]}}\nbronze: {{flush_interval: 50ms}}\n"
        )
        return path

    def state(self) -> dict[str, Any]:
        """Return all files of all lakes, and what only a server's writes change: transaction ids, slots."""
        status: dict[str, Any] = {
            str(path.relative_to(self.folder)): path.stat().st_mtime_ns
            for lake in self.folder.glob("lake*")
            for path in lake.rglob("*")
            if path.is_file() and ".locks" not in path.parts
        }
        for number, server in enumerate((self.ours, self.other)):
            with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
                status[f"server {number}"] = connection.execute(
                    "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, (SELECT array_agg((slot_name, "
                    "confirmed_flush_lsn::text)::text ORDER BY 1) FROM pg_replication_slots)"
                ).fetchall()
        return status

    def connections(self) -> int:
        """Return the number of connections to pipelines' databases so far, from the servers' logs."""
        logs = (server.log.read_text(errors="replace") for server in (self.ours, self.other))
        return sum(log.count("connection authorized") - log.count("database=postgres") for log in logs)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with EmbeddedServer(settings=_SETTINGS) as ours, EmbeddedServer(settings=_SETTINGS) as second_server:
        built = World(tmp_path_factory.mktemp("whose"), ours, second_server)
        for server, databases in ((ours, ("shop", "twin")), (second_server, ("shop",))):
            for database in databases:
                with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE {database}".encode())
                with psycopg.connect(server.dsn(database), autocommit=True) as connection:
                    connection.execute("CREATE TABLE items (id int PRIMARY KEY)")
                    connection.execute("INSERT INTO items VALUES (1)")
        lakes = {"lake": "whose", "lake_second": "second"}
        for lake, slot in lakes.items():
            file = built.file(slot, ours.dsn("shop"), lake, slot=slot)
            process = smelt_here("bronze", file, "--until-caught-up", folder=built.folder)
            assert process.returncode == 0, process.stderr
            position = read_position(Lake(str(built.folder / lake)))
            assert position is not None
            control = ControlTables(Lake(str(built.folder / lake)))
            control.record_cut(Cut("silver", position.frontier, None, {"items": 0}))
        yield built


@pytest.fixture
def wrong(request: pytest.FixtureRequest, world: World) -> tuple[Path, str]:
    """Return a pipeline file with one mistake, and the text of the refusal."""
    ours = world.ours.dsn("shop")
    return {
        "server": (world.file("server", world.other.dsn("shop"), "lake"), "changes of PostgreSQL cluster"),
        "database": (world.file("database", world.ours.dsn("twin"), "lake"), "changes of database 'shop'"),
        "lake": (world.file("beside", ours, "lake_second"), "belongs to another lake"),
        "no lake": (world.file("none", ours, "lake_none"), "belongs to another lake"),
    }[request.param]


def commands(*, switches: bool) -> Iterator[list[str]]:
    """Return each command with a pipeline file, plain and, if asked, with each single switch."""
    tree = cast("Any", typer.main.get_command(cli.app))
    for name, command in tree.commands.items():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        if not arguments or arguments[0].name != "file" or name in _FOLLOWING:
            continue
        words = ["FILE", *(_WORDS[argument.name] for argument in arguments[1:])]
        options = [param for param in command.params if param.param_type_name == "option"]
        for option in options:
            if option.required:
                words += [option.opts[0], _WORDS[option.name]]
        flags = [param for param in options if param.is_flag and param.name not in _ENDLESS]
        ends = [param.opts[0] for param in flags if param.name == "until_caught_up"]
        yield [name, *words, *ends]
        if not switches:
            continue
        for switch in flags:
            for flag in (*switch.opts, *switch.secondary_opts):
                if flag in ends:
                    continue
                with_all = [word for word in words if not (flag == "--all" and word == _WORDS["tables"])]
                yield [name, *with_all, *ends, flag]
        repeatable = [param for param in options if param.name in {"table", "document"}]
        for option in repeatable:
            yield [name, *words, *ends, option.opts[0], _WORDS[option.name]]


def assert_refused(
    world: World,
    refusal: str,
    walked: Iterable[tuple[str, list[str]]],
    run: Callable[[str, list[str]], str],
) -> set[str]:
    """Check that each call to a server is refused without writes; return the names of such calls.

    Args:
        refusal: text that each refusal must contain.
        walked: names of calls, each with its arguments.
        run: function that makes a call and returns its output.
    """
    called, unrefused, wrote = set(), [], []
    for name, words in walked:
        before, connected = world.state(), world.connections()
        output = run(name, words)
        if world.connections() == connected:
            continue
        called.add(name)
        if refusal not in output:
            unrefused.append((name, words, output))
        if (after := world.state()) != before:
            keys = sorted(after.keys() | before.keys())
            wrote.append((name, words, [key for key in keys if after.get(key) != before.get(key)]))
    assert unrefused == []
    assert wrote == []
    return called


WRONG = pytest.mark.parametrize("wrong", ["server", "database", "lake", "no lake"], indirect=True)


@WRONG
def test_every_command_refuses_what_is_not_ours(
    wrong: tuple[Path, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    file, refusal = wrong

    def run(name: str, words: list[str]) -> str:
        process = smelt_here(
            name, *[str(file) if word == "FILE" else word for word in words], folder=world.folder
        )
        output = process.stdout + process.stderr
        assert "Traceback" not in output, (name, words, output)
        return output

    # The gate tells the mistakes apart, and not the command: one mistake meets every switch.
    walk = commands(switches="server" in file.name)
    called = assert_refused(world, refusal, ((name, words) for name, *words in walk), run)
    asks_first = {"verify", "quality"} if "none" not in file.name else set()  # an empty lake has no cut
    assert {"run", "bronze", "snapshot", "drop", "check", "status"} | asks_first <= called, (
        "the walk has lost the commands that ask a server"
    )


def calls() -> Iterator[tuple[str, list[str]]]:
    """Return each public method of an open lake, with its required arguments."""
    for name, method in inspect.getmembers(deltasmelt.OpenLake, inspect.isfunction):
        needed = [
            parameter.name
            for parameter in list(inspect.signature(method).parameters.values())[1:]
            if parameter.default is inspect.Parameter.empty
        ]
        if not name.startswith("_") and name != "close":
            yield (
                name,
                [
                    f"silver.{_WORDS[name_needed]}" if name == "table" else _WORDS[name_needed]
                    for name_needed in needed
                ],
            )


@WRONG
def test_every_method_refuses_what_is_not_ours(
    wrong: tuple[Path, str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    file, refusal = wrong
    with deltasmelt.open(file) as lake:

        def run(name: str, words: list[str]) -> str:
            try:
                output = repr(getattr(lake, name)(*words))
            except SmeltError as error:
                output = str(error)
            return output.replace("\\'", "'")

        called = assert_refused(world, refusal, calls(), run)
    assert {"status", "check"} <= called
