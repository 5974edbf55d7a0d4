"""Commands on a lake in an object store that refuses access: a single message with a remedy."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.object_store import Faults, lake_text
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

NOWHERE: Final = "http://127.0.0.1:9"
DENIED: Final = Faults(denied="GET|PUT|DELETE|POST|HEAD")


class Bad(NamedTuple):
    """A lake that cannot be opened, the fault, and the expected error code."""

    lake: str
    options: dict[str, str]
    faults: Faults
    code: str


BAD: Final = [
    Bad("s3://nobodys/lake", {}, Faults(), "lake-bucket"),
    Bad("s3://lake/denied", {}, DENIED, "lake-credentials"),
    Bad("s3://lake/away", {"aws_endpoint_url": NOWHERE}, Faults(), "lake-unreachable"),
]
_roots = count()


def pipeline_file(folder: Path, lake: str, options: dict[str, str]) -> Path:
    file = folder / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: 127.0.0.1, port: 1, database: x, slot: s, publication: p}\n"
        f"{lake_text(lake, options)}"
    )
    return file


def findings(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    assert "Traceback" not in done.stderr + done.stdout
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.code)
def test_check_says_it_once_and_fails(bad: Bad, store: ObjectStore, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, bad.lake, {**store.options(), **bad.options})
    store.set_faults(bad.faults)
    process = smelt_here("check", file, "--offline", "--output", "json", folder=tmp_path)
    [finding] = findings(process)
    assert (process.returncode, finding["level"], finding["code"], finding["subject"]) == (
        1, "error", bad.code, bad.lake,
    )  # fmt: skip
    assert finding["remedy"]
    assert "\n" not in finding["message"]


@pytest.mark.parametrize("command", [["status"], ["bronze", "--until-caught-up"], ["maintain"], ["sql", "x"]])
@pytest.mark.parametrize("bad", BAD[:2], ids=lambda bad: bad.code)
def test_command_opening_unusable_lake_ends_with_single_message(
    command: list[str], bad: Bad, store: ObjectStore, tmp_path: Path
) -> None:
    file = pipeline_file(tmp_path, bad.lake, {**store.options(), **bad.options})
    store.set_faults(bad.faults)
    name, *arguments = command
    process = smelt_here(name, file, *arguments, folder=tmp_path)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr + process.stdout
    assert "\x1b" not in process.stderr
    message, remedy, page_line = process.stderr.strip().splitlines()
    assert message.startswith(f"error: {bad.lake}")
    assert message.endswith(f"[{bad.code}]")
    assert remedy.startswith("remedy: ")
    assert page_line == f"more: smelt explain-error {bad.code}"


def test_check_of_sound_store_is_silent_and_traceless(store: ObjectStore, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, f"s3://lake/sound/{next(_roots)}", store.options())
    process = smelt_here("check", file, "--offline", "--output", "json", folder=tmp_path)
    assert (process.returncode, findings(process)) == (0, [])


def test_check_finds_a_store_without_conditional_puts(store: ObjectStore, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "s3://lake/unconditional", store.options())
    store.set_faults(Faults(ignored="MATCH"))
    process = smelt_here("check", file, "--offline", folder=tmp_path)
    assert process.returncode == 1
    assert "error: s3://lake/unconditional: this store does not support conditional writes" in process.stdout
    assert "[lake-conditional-put]" in process.stdout
