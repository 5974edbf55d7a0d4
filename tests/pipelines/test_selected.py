"""An empty selection is no success: for all commands, and all arguments and options that select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import psycopg
import pytest
import typer

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines import cli
from deltasmelt.pipelines.selected import selected, there_are
from deltasmelt.pipelines.settings import Pipeline
from tests.pipelines.in_process import smelt_here
from tests.pipelines.test_cli import make_lake, pipeline_file
from tests.silver.histories import BronzeWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SELECTING = {"tables", "table", "document", "name"}
"""Arguments and options of commands that select tables or documents."""
WORDS = {"layer": ["silver", "gold"], "key": ["1"], "statement": ["SELECT 1"]}
NOTHING = "nothing_like_it"


def nothing(pattern: str) -> ConfigurationError:
    return ConfigurationError(f"{pattern} selects nothing", code="pattern-unused")


def test_patterns_select_once_and_unmatched_pattern_raises() -> None:
    names = {"a*": ["ab", "aa"], "aa": ["aa"], "b*": []}
    assert selected(["a*", "aa"], names.__getitem__, nothing) == ["ab", "aa"]
    assert selected([], names.__getitem__, nothing) == []
    with pytest.raises(ConfigurationError, match=r"^b\* selects nothing"):
        selected(["a*", "b*"], names.__getitem__, nothing)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "available: none"),
        (["a"], "available: a"),
        (list("abcde"), "available: a, b, c, d, e"),
        (list("abcdefg"), "available: a, b, c, d, e and 2 more"),
    ],
)
def test_what_there_is_is_listed(names: list[str], message: str) -> None:
    assert there_are(names) == message


def commands() -> Iterator[tuple[str, list[Any]]]:
    """Return each command that takes a pipeline file, with its parameters."""
    tree = cast("Any", typer.main.get_command(cli.app))
    for name, command in tree.commands.items():
        if command.params and command.params[0].name == "file":
            yield name, command.params


def words_of(parameters: list[Any], *, layer: str = "silver") -> list[str]:
    """Return the required words of a command after its file."""
    words = []
    for parameter in parameters[1:]:
        if parameter.required or (parameter.name == "document" and parameter.param_type_name == "argument"):
            word = layer if parameter.name == "layer" else WORDS.get(parameter.name, [NOTHING])[0]
            words += [parameter.opts[0], word] if parameter.param_type_name == "option" else [word]
    return words + [
        parameter.opts[0] for parameter in parameters if parameter.name in {"until_caught_up", "all_tables"}
    ]


def noted(
    method: Callable[[Pipeline], list[Path]], pattern: str, read: list[str]
) -> Callable[[Pipeline], list[Path]]:
    """Wrap a method so that each call is recorded."""

    def call(pipeline: Pipeline) -> list[Path]:
        read.append(pattern)
        return method(pipeline)

    return call


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_unmatched_patterns_end_every_command_reading_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    """A run of each command shows whether it reads the patterns. Without Java a late refusal fails."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    settings = "gold: {documents: ['document/*.yml']}\nquality: {suites: ['expectation/*.yml']}\n"
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1", more=settings)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "customer.yml").touch()
    make_lake(tmp_path)
    read: list[str] = []
    for method, pattern in (("document_files", "document"), ("suite_files", "expectation")):
        monkeypatch.setattr(Pipeline, method, noted(getattr(Pipeline, method), pattern, read))
    ended = set()
    for name, parameters in commands():
        if name == "tail":  # reads neither, and waits for bronze
            continue
        read.clear()
        process = smelt_here(name, file, *words_of(parameters, layer=layer), folder=tmp_path)
        output = process.stdout + process.stderr
        assert "Traceback" not in output
        if read:
            ended.add(name)
            assert f"{read[0]}/*.yml selects no file" in output, (name, output)
            assert process.returncode == 1, (name, output)
            assert name == "maintain" or "documents/customer.yml" in output, (name, output)
    assert {"run", "gold", "quality", "check", "verify", "explain", "preview"} <= ended


@pytest.mark.postgres
def test_every_selecting_option_rejects_empty_selection(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    file = pipeline_file(tmp_path, database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    make_lake(tmp_path)
    tried = []
    for name, parameters in commands():
        for choice in parameters[1:]:
            if choice.name not in SELECTING:
                continue
            for layer in (
                WORDS["layer"] if any(parameter.name == "layer" for parameter in parameters) else [""]
            ):
                for pattern in (f"public.{NOTHING}*", f"{NOTHING}*", NOTHING):
                    behind = [choice.opts[0]] if choice.param_type_name == "option" else []
                    needed = [layer] if layer else []
                    needed += (
                        ["--key", "1"] if any(parameter.name == "key" for parameter in parameters) else []
                    )
                    process = smelt_here(name, file, *needed, *behind, pattern, folder=tmp_path)
                    tried.append((name, choice.name))
                    assert process.returncode == 1, (
                        name,
                        choice.name,
                        pattern,
                        process.stdout,
                        process.stderr,
                    )
                    assert pattern in process.stderr, (name, choice.name, process.stderr)
                    assert "java" not in process.stderr.lower()
    assert {("verify", "table"), ("verify", "document"), ("snapshot", "tables")} <= set(tried)
    assert {("rebuild", "name"), ("explain", "document"), ("preview", "document")} <= set(tried)


@pytest.mark.postgres
def test_a_source_without_tables_is_no_success(tmp_path: Path, database: str) -> None:
    file = pipeline_file(tmp_path, database)
    process = smelt_here("snapshot", file, "--all", folder=tmp_path)
    assert (process.returncode, "no table to snapshot: source.tables is" in process.stderr) == (1, True)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("more", ["", "gold: {documents: []}\n"])
def test_gold_without_documents_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1", more=more)
    make_lake(tmp_path)
    process = smelt_here("gold", file, "--until-caught-up", folder=tmp_path)
    assert (process.returncode, "gold.documents is empty\nremedy: " in process.stderr) == (1, True), (
        process.stderr
    )
    assert "caught up" not in process.stderr


def test_silver_without_tables_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    BronzeWriter(Lake(str(tmp_path / "lake"))).commit(20)
    process = smelt_here("silver", file, "--until-caught-up", folder=tmp_path)
    assert (process.returncode, "no table is replicated: source.tables is" in process.stderr) == (1, True), (
        process.stderr
    )
    assert "java" not in process.stderr.lower()
