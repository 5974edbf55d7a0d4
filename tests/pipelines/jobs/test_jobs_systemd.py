"""The units: systemd knows each directive, and each started command exists and ends as its unit expects."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.terminal import failures
from tests.pipelines.jobs.command_lines import parsed

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = conf_folder() / "systemd"
PAGE = (conf_folder().parent / "docs" / "how-to" / "systemd.md").read_text()
SMELT = "/opt/smelt/bin/smelt"
KNOWN = {
    "Unit": {"Description", "After", "Wants", "OnFailure", "StartLimitIntervalSec"},
    "Service": {
        "Type", "User", "Group", "EnvironmentFile", "Environment", "WorkingDirectory", "ExecStart", "Restart",
        "RestartSec", "RestartPreventExitStatus", "SuccessExitStatus", "KillMode", "TimeoutStartSec",
        "TimeoutStopSec",
        "StateDirectory", "StateDirectoryMode", "LogsDirectory", "LogsDirectoryMode", "CacheDirectory",
        "CacheDirectoryMode", "UMask", "MemoryHigh", "MemoryMax", "NoNewPrivileges", "CapabilityBoundingSet",
        "AmbientCapabilities", "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectProc",
        "ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
        "ProtectKernelTunables", "ProtectControlGroups", "RestrictAddressFamilies", "RestrictNamespaces",
        "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute", "RemoveIPC",
        "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
    },
    "Timer": {"OnCalendar", "Persistent", "RandomizedDelaySec", "Unit"},
    "Install": {"WantedBy"},
}  # fmt: skip
"""Directives of systemd 252 and later in these sections; https://www.freedesktop.org/software/systemd/man/.
"""


SHARED = FOLDER / "deltasmelt-.service.d" / "common.conf"


def read(name: str) -> dict[str, dict[str, list[str]]]:
    """Return a unit, with the additions from the shared folder for units of its prefix."""
    sections: dict[str, dict[str, list[str]]] = {"Unit": defaultdict(list)}
    text = (FOLDER / name).read_text()
    if name.startswith("deltasmelt-") and name.endswith(".service"):
        text += SHARED.read_text()
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(match[1], defaultdict(list))
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            section[key].append(value)
    return sections


UNITS = sorted(path.name for path in FOLDER.iterdir() if path.is_file())
SERVICES = [name for name in UNITS if re.fullmatch(r"deltasmelt-.*\.service", name)]
TIMERS = [name for name in UNITS if name.endswith(".timer")]


def test_units_are_reader_and_timers_with_services() -> None:
    started = []
    for timer in TIMERS:
        assert read(timer)["Install"]["WantedBy"] == ["timers.target"]
        started += read(timer)["Timer"].get("Unit", [timer.replace(".timer", ".service")])
    assert started == ["deltasmelt-maintain.service", "deltasmelt-silver.service"]
    assert [name for name in SERVICES if "Install" in read(name)] == ["deltasmelt-reader.service"]


@pytest.mark.parametrize("name", UNITS)
def test_each_directive_is_one_of_its_section(name: str) -> None:
    for section, directives in read(name).items():
        assert set(directives) <= KNOWN[section]


def test_systemd_itself_finds_nothing_to_say(tmp_path: Path) -> None:
    """Checks only with systemd installed. systemd requires existing programs: ``true`` replaces `smelt`."""
    program = shutil.which("systemd-analyze")
    for name in UNITS:
        (tmp_path / name).write_text((FOLDER / name).read_text().replace(SMELT, shutil.which("true") or ""))
    shutil.copytree(SHARED.parent, tmp_path / SHARED.parent.name)
    if program is not None:
        command = [program, "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        ours = [line for line in (process.stdout + process.stderr).splitlines() if "smelt" in line]
        assert ours == []


def commands(name: str) -> list[str]:
    service = read(name)["Service"]
    listed = []
    for line in service["ExecStart"]:
        program, *words = shlex.split(line)
        assert program == SMELT
        command, params = parsed(words)
        assert str(params["file"]) == "/etc/deltasmelt/pipeline.yml"
        assert params.get("until_caught_up") in {None, command != "bronze"}
        listed.append(command)
    return listed


def test_each_service_calls_commands_that_parse() -> None:
    assert {name: commands(name) for name in SERVICES} == {
        "deltasmelt-gold.service": ["gold"],
        "deltasmelt-maintain.service": ["maintain"],
        "deltasmelt-quality.service": ["quality"],
        "deltasmelt-reader.service": ["bronze"],
        "deltasmelt-silver.service": ["silver"],
    }


def test_reader_restarts_except_after_usage_error() -> None:
    unit = read("deltasmelt-reader.service")
    service = unit["Service"]
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"], "never given up"
    assert service["Restart"] == ["always"]
    assert service["RestartPreventExitStatus"] == [str(failures.USAGE)]
    _, params = parsed(shlex.split(service["ExecStart"][0])[1:])
    assert params["http"].startswith("127.0.0.1:"), "for this machine alone, so it needs no token"


def test_unit_and_page_connection_strings_verify_server_certificate() -> None:
    texts = [(FOLDER / "deltasmelt-reader.service").read_text(), PAGE]
    dsns = [line for text in texts for line in re.findall(r"^(?:#\s+)?SMELT_DSN='(.+)'$", text, re.MULTILINE)]
    assert len(dsns) == 2
    for dsn in dsns:
        parameters = conninfo_to_dict(dsn)
        assert (parameters["sslmode"], parameters["sslrootcert"]) == ("verify-full", "/etc/deltasmelt/ca.pem")


def test_spark_drop_in_gives_reader_limits_of_stages() -> None:
    block = re.search(r"```ini\n\[Service\]\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    settings = dict(line.split("=", 1) for line in block[1].splitlines())
    assert set(settings) <= KNOWN["Service"]
    stages = read("deltasmelt-silver.service")["Service"]
    assert [settings["MemoryMax"]] == stages["MemoryMax"]
    reader = read("deltasmelt-reader.service")["Service"]
    assert {key for key in ("MemoryDenyWriteExecute", "MemoryHigh") if reader[key] != stages.get(key)} < set(
        settings
    )


def test_gold_follows_silver_after_reported_exit_code_3() -> None:
    """systemd 252 behaved so with a substitute for `smelt`: failure, mail, and then gold."""
    for first, second in (("silver", "gold"), ("maintain", "quality")):
        first_unit, second_unit = (read(f"deltasmelt-{name}.service") for name in (first, second))
        unit_wants = first_unit["Unit"]["Wants"]
        assert f"deltasmelt-{second}.service" in unit_wants, "not Requires: it starts after a failure"
        assert f"deltasmelt-{first}.service" in second_unit["Unit"]["After"]
    for name in SERVICES:
        unit = read(name)
        assert unit["Unit"]["OnFailure"] == ["smelt-failed@%n.service"]
        ends = {int(code) for code in unit["Service"]["SuccessExitStatus"][0].split()}
        assert ends == {failures.INTERRUPTED, failures.TERMINATED}
        if name != "deltasmelt-reader.service":
            assert unit["Service"]["TimeoutStartSec"], "a oneshot has none of its own"
            assert unit["Service"]["Type"] == ["oneshot"], "a timer starts no second one"
    (command,) = read("smelt-failed@.service")["Service"]["ExecStart"]
    assert subprocess.run(["sh", "-n", "-c", shlex.split(command)[2]], check=False).returncode == 0


def test_services_are_confined_except_jvm_compilation() -> None:
    for name in SERVICES:
        service = read(name)["Service"]
        assert service["ProtectSystem"] == ["strict"]
        assert service["User"][0] == "deltasmelt", "also without the folder that all share"
        unit_text = (FOLDER / name).read_text()
        assert not re.search(r"^(Protect|Private|Restrict[A-Z]|System|NoNew|Cap)", unit_text, re.MULTILINE)
    memory = {name: read(name)["Service"].get("MemoryDenyWriteExecute") for name in SERVICES}
    assert {name for name, value in memory.items() if value} == {"deltasmelt-reader.service"}
