"""Blocks that users copy from the pages: command lines parse, YAML fits the models, SQL fits the grammars."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import typer

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.gold.language.document import parse_document
from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.quality.suite_files import load_suite
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.pipelines.terminal.error_pages import codes
from tests.docs.blocks import ROOT, Block, blocks, commands, pages, spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT_COMMAND: Any = typer.main.get_command(app)
ALL = [block for path in pages() for block in blocks(path)]
COMMAND_LINE_ERROR: Any = typer.BadParameter.__mro__[2]
OF_OTHERS = frozenset({"version", "primary_key", "soft_delete"})
"""Keys of a different program's file, which a page compares with deltasmelt's keys."""

SPARK_PAGES = ("docs/silver/cuts.md", "docs/silver/history.md", "docs/changes.md", "docs/how-to/notebook.md")
NOT_SPARK = re.compile(
    r"^\s*(BEGIN|COMMIT|CREATE (ROLE|PUBLICATION)|ALTER (TABLE|SYSTEM|PUBLICATION)|GRANT)", re.MULTILINE
)
OF_SPARK = re.compile(r"\b(silver|gold|bronze|control|quality|delta)\s*\.\s*[`a-z{]")
FIELDS = "document: part\nroot: public.customers\nfields:\n"
MINIMAL = {
    "pipeline": "shop",
    "source": "{dsn: 'host=db', slot: s, publication: p}",
    "lake": "{path: ./lake}",
}


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


def is_of_spark(block: Block) -> bool:
    return block.page in SPARK_PAGES or (
        OF_SPARK.search(block.text) is not None and not NOT_SPARK.search(block.text)
    )


def refusal(words: list[str], *, template: bool) -> str | None:
    """Return the parser's error for a command line; None if the line parses.

    Args:
        words: the words after `smelt`.
        template: whether words may be placeholders or absent; only command and options must exist.
    """
    names = [word for word in words if not word.startswith("-")]
    if not names or re.fullmatch(r"COMMAND|…|sql_shell", names[0]):
        return None
    if words[0].startswith("-") and words[0] in {
        "--help",
        "--version",
        "--install-completion",
        "--show-completion",
        "--debug",
    }:
        return None
    command = ROOT_COMMAND.commands.get(words[0])
    if command is None:
        return f"no command {words[0]}"
    arguments = [word for word in words[1:] if word not in {"--help", "--debug"}]
    if template:
        options = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        options_given = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(arguments))
        unknown = [option for option in options_given if option not in options]
        return f"no option {unknown[0]}" if unknown else None
    try:
        command.make_context(words[0], list(arguments))
    except COMMAND_LINE_ERROR as error:  # the base class of all errors of a command line
        return str(error.format_message())
    return None


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_page_parses(path: Path) -> None:
    wrong = [
        f"{block}: smelt {' '.join(words)}: {reason}"
        for block in blocks(path)
        for words in commands(block)
        if (reason := refusal(words, template="[" in " ".join(words) and "]" in " ".join(words)))
    ]
    wrong += [
        f"{path.name}:{line}: `smelt {' '.join(words)}`: {reason}"
        for line, words in spans(path)
        if (reason := refusal(words, template=True))
    ]
    assert wrong == []


def test_commands_are_found_in_blocks_of_every_kind() -> None:
    command_lines = [words for block in ALL for words in commands(block)]
    assert len(command_lines) > 120
    assert ["silver", "pipeline.yml", "--until-caught-up"] in command_lines, "behind && in a crontab"
    assert ["run", "pipeline.yml"] in command_lines
    assert refusal(["snapshto", "x"], template=True)
    assert refusal(["run", "pipeline.yml", "--until-done"], template=False)
    assert refusal(["preview", "pipeline.yml"], template=False)


def test_every_code_explained_in_docs_exists() -> None:
    explained = {
        word
        for path in pages()
        for word in re.findall(r"smelt explain-error ([a-z][a-z-]+)", path.read_text(encoding="utf-8"))
    }
    assert explained <= set(codes())


def steps() -> Iterator[tuple[str, str]]:
    """Return whole YAML texts, each with a name; entries of `fields` continue the preceding document."""
    whole: dict[str, str] = {}
    last = ""
    for block in of("yaml"):
        if block.text.startswith("  - "):
            assert last.startswith(block.page), f"{block} continues no document"
            whole[last] += block.text
        else:
            last = str(block)
            whole[last] = block.text
    yield from whole.items()


@pytest.mark.parametrize(("name", "text"), list(steps()), ids=lambda value: value if ".md:" in value else "")
def test_every_yaml_block_is_read_by_the_models(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.pipelines.settings.secret", lambda secret: f"postgresql://{secret}")
    monkeypatch.setenv("SMELT_HASH_KEY", "k" * 32)
    file = tmp_path / "pipeline.yml"
    value = parse_yaml(text, Path(name)).data
    if isinstance(value, list):
        text, value = FIELDS + text, {"document": "fields alone"}
    if isinstance(value, dict) and set(value) >= OF_OTHERS:
        assert "gold-compared" in name
    elif isinstance(value, dict) and "document" in value:
        parse_document(parse_yaml(text, Path(name)))
    elif isinstance(value, dict) and {"table", "expectations"} <= set(value):
        suite = tmp_path / "suite.yml"
        suite.write_text(text, encoding="utf-8")
        assert load_suite(suite)
    else:
        assert isinstance(value, dict), f"{name}: neither a pipeline file, nor a document, nor a suite"
        assert set(value) <= set(Pipeline.model_fields), name
        minimal_keys = "".join(f"{key}: {default}\n" for key, default in MINIMAL.items() if key not in value)
        file.write_text(text + minimal_keys, encoding="utf-8")
        load_pipeline(file)


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_every_python_block_compiles(block: Block) -> None:
    ast.parse(block.text)


def test_every_block_language_is_checked_or_known() -> None:
    languages = {
        "yaml",
        "sql",
        "python",
        "json",
        "sh",
        "console",
        "ini",
        "text",
        "",
        "{toctree}",
        "{include}",
    }
    assert {block.language for block in ALL} <= languages


@pytest.mark.postgres
def test_every_sql_block_for_the_source_is_postgresqls(database: str) -> None:
    """PL/pgSQL parses the statements of a function's body at its creation, and runs none."""
    wrong = []
    with psycopg.connect(database, autocommit=True) as connection:
        for block in of("sql"):
            if not is_of_spark(block) and (error := syntax_error(connection, block.text)):
                wrong += [f"{block}: {error}"]
        assert syntax_error(connection, "ALTER TABEL orders ADD x int;") is not None
    assert wrong == []


def without_comments(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql)


def syntax_error(connection: psycopg.Connection, text: str) -> str | None:
    plain = without_comments(re.sub(r"^\s*(BEGIN|COMMIT);", "", text, flags=re.MULTILINE))
    body = plain.strip().removesuffix(";") + ";"
    head = "CREATE OR REPLACE FUNCTION pg_temp.page() RETURNS void LANGUAGE plpgsql AS"
    function = f"{head} $page$ BEGIN\n{body}\nEND $page$"
    try:
        connection.execute(function.encode())
    except psycopg.Error as error:
        return str(error)
    return None


def test_every_sql_block_for_the_lake_is_sparks(spark: SparkSession) -> None:
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    lake = [block for block in of("sql") if is_of_spark(block)]
    assert len(lake) >= 3
    for block in lake:
        for statement in without_comments(block.text).split(";"):
            if statement.strip():
                parser.parsePlan(statement)
    called = [words for block in ALL for words in commands(block) if words[0] == "sql"]
    queries = [word for words in called for word in words if re.match(r"(SELECT|WITH) [^…]*$", word)]
    assert len(queries) > 10
    for query in queries:
        parser.parsePlan(query)
