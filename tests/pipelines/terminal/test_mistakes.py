"""Users' mistakes, played with each command: one message, an exit code, no traceback.

Most mistakes run in pytest's process, through the function of the console script. Mistakes about a process
itself (Ctrl-C during the start, a killed JVM) run as a process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.pipelines.cli import main
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.test_cli import pipeline_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOWN = "host=127.0.0.1 port=1 dbname=x"
DOCUMENTS = "gold: {documents: [d.yml]}\n"
PLAIN = (
    "pipeline: shop\nsource: {dsn: 'host=127.0.0.1 port=1', slot: s, publication: s}\nlake: {path: ./lake}\n"
)
OK = "document: a\nroot: public.t\nfields: [id]\n"


@dataclass(frozen=True)
class Mistake:
    """The files of the folder, the command, and the texts of the expected message."""

    command: str
    texts: tuple[str, ...]
    code: int = 1
    files: dict[str, str | bytes] = field(default_factory=dict)
    pipeline: str | bytes = PLAIN


Outcome = tuple[int, str]


@pytest.fixture
def run_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Outcome]]:
    """Return a function that calls the command in the test's folder and returns exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path / "logs"))
    root = logging.getLogger()
    before = list(root.handlers)

    def call(*arguments: str) -> Outcome:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            code = int(str(end.code))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    yield call
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)
            handler.close()
    logging.captureWarnings(capture=False)


MISTAKES = {
    "no file": Mistake("run nowhere.yml", ("nowhere.yml: the pipeline file does not exist", "smelt init")),
    "a folder": Mistake("check .", ("the path is a folder, not a pipeline file",)),
    "no YAML": Mistake(
        "check pipeline.yml", ("pipeline.yml:2: expected ',' or ']'",),
        pipeline="a: [1\nb: 2\n",
    ),
    "empty": Mistake("check pipeline.yml", ("expected a mapping, found nothing",), pipeline=""),
    "a list": Mistake("check pipeline.yml", ("expected a mapping, found a list",), pipeline="- a\n"),
    "Latin-1": Mistake("check pipeline.yml", ("not UTF-8 text",), pipeline="pipeline: Grü".encode("latin1")),
    "a binary": Mistake("check pipeline.yml", ("not UTF-8 text",), pipeline=bytes(range(256))),
    "a tab": Mistake("status pipeline.yml", (":3: a tab",), pipeline="pipeline: a\nsource:\n\tdsn: x\n"),
    "twice": Mistake(
        "status pipeline.yml", (":4: key 'lake' occurs twice",),
        pipeline=PLAIN + "lake: {path: y}\n",
    ),
    "unknown key": Mistake(
        "silver pipeline.yml", ("did you mean 'silver'?",),
        pipeline=PLAIN + "sliver: {}\n",
    ),
    "a number": Mistake(
        "gold pipeline.yml", (":2: source: expected a mapping, found a number",),
        pipeline="pipeline: a\nsource: 5\nlake: {path: x}\n",
    ),
    "no lake": Mistake(
        "drop pipeline.yml", ("'lake' is missing",),
        pipeline="pipeline: a\nsource: {dsn: 'host=x', slot: a, publication: a}\n",
    ),
    "empty path": Mistake(
        "check pipeline.yml --offline", ("lake.path: expected text, found nothing",),
        pipeline=PLAIN.replace("./lake", "''"),
    ),
    "duration": Mistake(
        "check pipeline.yml", ("lake.retention: not a duration: '7 weeks'",),
        pipeline=PLAIN.replace("./lake", "./lake, retention: 7 weeks"),
    ),
    "environment": Mistake(
        "maintain pipeline.yml", (":3: environment variable NOT_SET_AT_ALL is not set",),
        pipeline=PLAIN.replace("./lake", "'${NOT_SET_AT_ALL}'"),
    ),
    "slot's name": Mistake(
        "snapshot pipeline.yml --all", ("source.slot: expected lower-case letters, digits and _",),
        pipeline=PLAIN.replace("slot: s", "slot: My-Slot"),
    ),
    "pipeline's name": Mistake(
        "verify pipeline.yml", (":1: pipeline: expected letters, digits",),
        pipeline=PLAIN.replace("shop", "a/b"),
    ),
    "unreadable DSN": Mistake(
        "check pipeline.yml --offline", ("source.dsn", "dsn-invalid"),
        pipeline=PLAIN.replace("host=127.0.0.1 port=1", "postgresql://user@:abc/"),
    ),
    "Spark's key": Mistake(
        "quality pipeline.yml", ("'driver.memory' is not a Spark setting",),
        pipeline=PLAIN + "spark: {driver.memory: 2g}\n",
    ),
    "no document file": Mistake(
        "explain pipeline.yml a", ("gold.documents names d.yml, which does not exist",),
        pipeline=PLAIN + DOCUMENTS,
    ),
    "no suite file": Mistake(
        "check pipeline.yml --offline", ("quality.suites names q.yml, which does not exist",),
        pipeline=PLAIN + "quality: {suites: [q.yml]}\n",
    ),
    "a pattern without files": Mistake(
        "check pipeline.yml --offline", ("gold.documents: docs/*.yml selects no file [pattern-unused]",),
        pipeline=PLAIN + "gold: {documents: ['docs/*.yml']}\n",
    ),
    "an empty document": Mistake(
        "check pipeline.yml --offline", ("d.yml:1: the file: expected a mapping, found nothing",),
        files={"d.yml": ""}, pipeline=PLAIN + DOCUMENTS,
    ),
    "a document's root": Mistake(
        "run pipeline.yml --until-caught-up", ("d.yml:2: root: not a table name: 'nope'",),
        files={"d.yml": OK.replace("public.t", "nope")}, pipeline=PLAIN + DOCUMENTS,
    ),
    "a document's name": Mistake(
        "run pipeline.yml --until-caught-up", ("d.yml:1: document: expected a letter",),
        files={"d.yml": OK.replace("document: a", "document: 1a")}, pipeline=PLAIN + DOCUMENTS,
    ),
    "two of one name": Mistake(
        "gold pipeline.yml --until-caught-up", ("'a' is defined twice",),
        files={"x.yml": OK, "y.yml": OK}, pipeline=PLAIN + "gold: {documents: [x.yml, y.yml]}\n",
    ),
    "unknown document": Mistake(
        "preview pipeline.yml b --key 1", ("no document matches 'b'",), files={"d.yml": OK},
        pipeline=PLAIN + DOCUMENTS,
    ),
    "a suite's rule": Mistake(
        "check pipeline.yml --offline", ("q.yml:4", "expectation: expected expect_… or unexpected_rows"),
        files={"q.yml": "suite: a\ntable: silver.t\nexpectations:\n  - expectation: no_nulls\n"},
        pipeline=PLAIN + "quality: {suites: [q.yml]}\n",
    ),
    "server down, run": Mistake("run pipeline.yml --until-caught-up", ("cannot be reached", "127.0.0.1:1")),
    "server down, bronze": Mistake("bronze pipeline.yml --until-caught-up", ("cannot be reached",)),
    "server down, drop": Mistake("drop pipeline.yml", ("cannot be reached",)),
    "server down, snapshot": Mistake("snapshot pipeline.yml public.t", ("cannot be reached",)),
    "server down, check": Mistake("check pipeline.yml", ("cannot be reached",)),
    "server down, init": Mistake(f"init --out n.yml --dsn|{DOWN}", ("cannot be reached",)),
    "server down, demo": Mistake(f"demo --folder d --dsn|{DOWN}", ("Connection refused", "remedy")),
    "server down, status": Mistake("status pipeline.yml", ("cannot be reached",), code=0),
    "nothing to fold": Mistake("silver pipeline.yml --until-caught-up", ("smelt bronze pipeline.yml",)),
    "nothing to build": Mistake(
        "gold pipeline.yml --until-caught-up", ("smelt silver pipeline.yml",), files={"d.yml": OK},
        pipeline=PLAIN + DOCUMENTS,
    ),
    "nothing to ask": Mistake("sql pipeline.yml|SELECT 1", ("the lake is empty", "smelt run")),
    "nothing to check": Mistake("quality pipeline.yml", ("the lake is empty",)),
    "nothing to maintain": Mistake("maintain pipeline.yml", ("the lake is empty",)),
    "nothing to rebuild": Mistake("rebuild pipeline.yml silver", ("the lake is empty",)),
    "a layer that is none": Mistake("rebuild pipeline.yml copper", ("'copper' is not one of",), code=2),
    "SQL twice": Mistake("sql pipeline.yml|SELECT 1|-f|x.sql", ("a statement or --file, not both",), code=2),
    "no rows": Mistake("sql pipeline.yml|SELECT 1|--limit|0", ("--limit",), code=2),
    "no document": Mistake("explain pipeline.yml", ("name a document",), code=2),
    "a fraction": Mistake("verify pipeline.yml --sample 7", ("--sample",), code=2),
    "a format": Mistake("status pipeline.yml --output xml", ("--output",), code=2),
    "no table": Mistake("snapshot pipeline.yml", ("no table is named", "--all")),
    "a time": Mistake("sql pipeline.yml|SELECT 1|--as-of|soon", ("'soon' is neither an LSN nor a time",)),
    "a file that is there": Mistake(f"init --out pipeline.yml --dsn|{DOWN}", ("already exists",)),
    "no database": Mistake("init", ("no database is given",), code=2),
    "a shop of no time": Mistake("demo --seconds -4", ("--seconds",), code=2),
    "a shop without customers": Mistake("demo --rate 0", ("--rate",), code=2),
    "a folder that is a file": Mistake("demo --folder pipeline.yml", ("Not a directory", "remedy")),
    "a folder of others": Mistake("demo --folder .", ("no demo created it", "--folder")),
    "a lake that is a file": Mistake(
        "check pipeline.yml --offline", ("the path is a file, not a folder",),
        files={"lake": "x"},
    ),
    "status of such a lake": Mistake(
        "status pipeline.yml", ("Not a directory", "remedy"),
        files={"lake": "x"},
    ),
    "silver of such a lake": Mistake(
        "silver pipeline.yml", ("Not a directory", "remedy", "lake-folder"),
        files={"lake": "x"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_once_with_its_place(
    mistake: Mistake, run_command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, content in {"pipeline.yml": mistake.pipeline, **mistake.files}.items():
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    words, *whole = mistake.command.split("|")
    code, output = run_command(*words.split(), *whole)
    assert code == mistake.code, output
    for text in mistake.texts:
        assert text in output
    assert "Traceback" not in output
    assert "traceback" not in output or "remedy: " in output, "an error that nobody foresaw"
    errors = output.count("error: ") + output.count("Error: ")
    assert errors == (1 if code else 0), output


@pytest.mark.postgres
def test_mistakes_at_the_source_name_a_remedy(
    run_command: Callable[..., Outcome], tmp_path: Path, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("DROP ROLE IF EXISTS plain_reader")
        connection.execute("CREATE ROLE plain_reader LOGIN")
    plain = make_conninfo(database, user="plain_reader")
    wrong = [
        (make_conninfo(database, dbname="nowhere"), "check the database"),
        (make_conninfo(database, user="nobody_at_all"), "CREATE ROLE"),
        (make_conninfo(database, host="no.such.host.invalid"), "check the host"),
        (plain, "remedy: "),
    ]
    for dsn, remedy in wrong:
        pipeline_file(tmp_path, dsn)
        code, output = run_command("bronze", "pipeline.yml", "--until-caught-up")
        assert (code, output.count("error: ")) == (1, 1), output
        assert remedy in output
        assert "Traceback" not in output
    pipeline_file(tmp_path, database).write_text(
        (tmp_path / "pipeline.yml").read_text().replace("slot:", "tables: ['public.tt*'], slot:")
    )
    code, output = run_command("bronze", "pipeline.yml", "--until-caught-up")
    assert (code, "no table is replicated: source.tables is public.tt*" in output) == (1, True), output
    code, output = run_command("check", "pipeline.yml")
    assert "the pattern public.tt* matches no table" in output
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP ROLE plain_reader")
    assert run_command("drop", "pipeline.yml", "--yes")[0] == 0


@pytest.mark.postgres
def test_ctrl_c_ends_a_start_without_traceback(tmp_path: Path, database: str) -> None:
    started: list[tuple[Command, float]] = []
    for number, seconds in enumerate((0.5, 1.0, 3.2)):  # earlier, Python itself is interrupted
        folder = tmp_path / str(number)
        folder.mkdir()
        file = pipeline_file(folder, database)
        file.write_text(file.read_text().replace("cli_test", f"stopped_{number}"))
        command = Command("run", file, folder=folder)
        started.append((command, seconds))
        time.sleep(seconds)
        command.process.send_signal(signal.SIGINT)
    for command, seconds in started:
        with command:
            code = command.wait(60)
            assert code in {130, -signal.SIGINT}, (seconds, command.text())
            assert "Traceback" not in command.text(), seconds
            # Interrupted inside exec("…"), as dataclasses use it, Python ends by the signal although it was
            # caught; before the command could report it, in silence.
            assert command.text().splitlines()[-1:] in (["interrupted"], [] if code < 0 else None), seconds
            _wait_for_its_family(command)


def test_ctrl_c_during_imports_ends_in_silence(tmp_path: Path) -> None:
    slow = tmp_path / "pipelines_cli_is_slow.py"
    slow.write_text(
        "import builtins, os, signal, sys\n"
        "real = builtins.__import__\n"
        "def load(name, *more, **named):\n"
        "    if name == 'deltasmelt.pipelines.cli':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *more, **named)\n"
        "builtins.__import__ = load\n"
        "from deltasmelt.__main__ import main\n"
        "main()\n"
    )
    import subprocess  # noqa: PLC0415

    process = subprocess.run(
        [sys.executable, str(slow), "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (process.returncode, process.stderr) == (-signal.SIGINT, "")


def _wait_for_its_family(command: Command) -> None:
    wait_for(lambda: not command.family(), 60)
