"""The crontab and the DAG: their commands parse, and both interpret exit codes correctly."""

from __future__ import annotations

import ast
import fcntl
import re
import shlex
import subprocess
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from deltasmelt.pipelines.private import conf_folder
from tests.pipelines.jobs.command_lines import parsed

if TYPE_CHECKING:
    from pathlib import Path

CRON = (conf_folder() / "cron" / "deltasmelt.cron").read_text()
DAG = (conf_folder() / "airflow" / "deltasmelt_dag.py").read_text()
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def called(shell: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the `smelt` commands in a line of shell, each parsed."""
    commands = re.findall(r"(?:/opt/smelt/bin/)?\bsmelt ([^;|&)]*?)(?: 2>&1)?(?=[;|&)]|$)", shell)
    return [parsed(shlex.split(words)) for words in commands]


def lines() -> list[list[str]]:
    """Return the jobs of the crontab: five fields of time, account, shell."""
    rows = [line for line in CRON.splitlines() if line and not re.match(r"#|[A-Z_]+=", line)]
    return [row.split(None, 6) for row in rows]


def is_field(text: str, least: int, most: int) -> bool:
    match = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/\d+)?", text)
    return match is not None and all(least <= int(number) <= most for number in match.groups() if number)


def test_each_crontab_line_has_time_account_and_commands() -> None:
    """Every command of a crontab line parses."""
    commands = []
    for *times, account, shell in lines():
        assert all(is_field(text, *bounds) for text, bounds in zip(times, RANGES, strict=True)), times
        assert account == "deltasmelt"
        assert not re.search(r"(?<!\\)%", shell), "cron would make it a line break"
        assert subprocess.run(["sh", "-n", "-c", shell], check=False).returncode == 0
        commands += [(command, params.get("until_caught_up")) for command, params in called(shell)]
    assert commands == [("silver", True), ("gold", True), ("maintain", None), ("quality", None)]


def by_shell(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the first line of the crontab with a folder's environment, lock and `smelt`."""
    shell = lines()[0][-1].replace("/etc/deltasmelt", str(folder)).replace("/var/log/deltasmelt", str(folder))
    return subprocess.run(
        ["sh", "-c", shell],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_cron_line_reports_failure_and_continues(tmp_path: Path) -> None:
    """A shell runs the line with a substitute for `smelt`: silver leaves tables out, gold succeeds."""
    smelt = tmp_path / "smelt"
    smelt.write_text('#!/bin/sh\necho "$1 $SMELT_DSN" >&2\n[ "$1" = gold ] || exit 3\n')
    smelt.chmod(0o755)
    (tmp_path / "environment").write_text("SMELT_DSN='postgresql://smelt@db/shop?sslmode=require&x=1'\n")
    process = by_shell(tmp_path)
    assert process.stdout == "silver postgresql://smelt@db/shop?sslmode=require&x=1\n"
    assert (process.stderr, process.returncode) == ("", 0)


def test_overlapping_cron_run_ends_silently(tmp_path: Path) -> None:
    (tmp_path / "environment").touch()
    (tmp_path / "smelt").write_text("#!/bin/sh\necho started >&2\nexit 1\n")
    (tmp_path / "smelt").chmod(0o755)
    with (tmp_path / "stages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert by_shell(tmp_path).stdout == ""
    assert by_shell(tmp_path).stdout == "started\nstarted\n"


def test_each_cron_and_airflow_command_has_deadline() -> None:
    for *_, shell in lines():
        assert len(re.findall(r"timeout -k 60 \d+h smelt ", shell)) == len(called(shell))
    hours = {
        task: task_settings["execution_timeout"] / timedelta(hours=1)
        for task, task_settings in settings().items()
    }
    assert hours == {"silver": 24, "gold": 24, "maintain": 12, "quality": 12}
    of_cron = [re.findall(r"timeout -k 60 (\d+)h smelt (\w+)", shell) for *_, shell in lines()]
    assert {task: int(number) for line in of_cron for number, task in line} == hours


def tasks() -> list[dict[str | None, ast.expr]]:
    """Return the arguments of each task of the DAG, without its watcher."""
    keywords = [
        {keyword.arg: keyword.value for keyword in call.keywords}
        for call in ast.walk(ast.parse(DAG))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "BashOperator"
    ]
    return [task_settings for task_settings in keywords if "task_id" in task_settings]


def calls(name: str) -> list[dict[str, ast.expr]]:
    nodes = [node for node in ast.walk(ast.parse(DAG)) if isinstance(node, ast.Call)]
    return [
        {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for call in nodes
        if isinstance(call.func, ast.Name) and call.func.id == name
    ]


def constants() -> dict[str, Any]:
    file, names = ast.parse(DAG), {"timedelta": timedelta}
    text = "\n".join(ast.unparse(node) for node in file.body if isinstance(node, ast.Assign))
    exec(text, names)  # noqa: S102 - the rest of the file needs Airflow
    return names


def settings() -> dict[str, dict[str, Any]]:
    """Return each task's shared arguments, evaluated from the file's constants."""
    names = constants()
    return {
        ast.literal_eval(task["task_id"]): eval(ast.unparse(task[None]), names)  # noqa: S307
        for task in tasks()
    }


def test_each_dag_task_is_parsing_command() -> None:
    commands = {}
    for task in tasks():
        shell = ast.literal_eval(task["bash_command"])
        assert shell.startswith("set -a; . /etc/deltasmelt/environment; exec "), "signals reach the command"
        ((command, params),) = called(shell)
        assert ast.literal_eval(task["task_id"]) == command
        commands[command] = params.get("until_caught_up")
    assert commands == {"silver": True, "gold": True, "maintain": None, "quality": None}


def test_dag_runs_singly_and_fails_on_omitted_tables() -> None:
    """Airflow itself is not available: the rules come from its documentation (watcher pattern)."""
    dags = calls("DAG")
    assert len(dags) == 2
    for dag in dags:
        assert ast.literal_eval(dag["max_active_runs"]) == 1
        assert ast.literal_eval(dag["catchup"]) is False
        times = ast.literal_eval(dag["schedule"]).split()
        assert all(is_field(text, *bounds) for text, bounds in zip(times, RANGES, strict=True))
    for task_settings in settings().values():
        assert "skip_on_exit_code" not in task_settings, "a task that is skipped is seen by nobody"
        assert task_settings["trigger_rule"] == "all_done", "gold follows what silver left out"
    assert {task: task_settings["retries"] for task, task_settings in settings().items()} == {
        "silver": 0, "gold": 0, "maintain": 1, "quality": 0,
    }  # fmt: skip
    watcher = constants()["WATCHER"]
    assert (watcher["trigger_rule"], watcher["retries"]) == ("one_failed", 0)
    process = subprocess.run(["bash", "-c", watcher["bash_command"]], capture_output=True, check=False)
    assert process.returncode == 1
    watched = re.findall(r"BashOperator\(\*\*WATCHER\)\.set_upstream\(\[(\w+), (\w+)\]\)", DAG)
    assert watched == [("silver", "gold"), ("maintain", "quality")], "the last task of each run"


def test_the_dag_is_one_of_airflow_3() -> None:
    assert "from airflow.sdk import DAG" in DAG
