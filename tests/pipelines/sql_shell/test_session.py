"""Meta-commands on a lake, and statements that `smelt sql` refuses before Spark starts."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.commands.sql import SqlOptions, display_of, run_sql
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.lake_sql import cut_of
from deltasmelt.pipelines.sql_shell.results import FirstRows
from deltasmelt.pipelines.sql_shell.session import Display, SqlSession
from deltasmelt.pipelines.sql_shell.shell import history_file, is_complete
from deltasmelt.pipelines.sql_shell.splitting import split
from deltasmelt.pipelines.sql_shell.warm_spark import WithoutSpark
from deltasmelt.pipelines.terminal.arguments import RowFormat
from deltasmelt.pipelines.terminal.output import Output
from tests.pipelines.sql_shell.small_lake import make_small_lake

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return load_pipeline(make_small_lake(tmp_path_factory.mktemp("lake")))


@pytest.fixture
def session(pipeline: Pipeline) -> SqlSession:
    return SqlSession(pipeline, Output(), WithoutSpark(), cut_of(pipeline), Display())


class OnTerminal(Output):
    @property
    def rich(self) -> bool:
        return True


def output_of(session: SqlSession, lines: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    for statement in split(lines).all:
        session.run(statement)
    captured = capsys.readouterr()
    return (captured.out + captured.err).splitlines()


def test_tables_are_listed_at_current_and_chosen_cut(
    session: SqlSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_of(session, r"\d", capsys)[:5] == [
        "layer    table      columns  rows",
        "-------  ---------  -------  ----",
        "silver   late             1   400",
        "silver   orders           3   400",
        "gold     customer         1   400",
    ]
    assert output_of(session, r"\cut 0/1FF", capsys) == [
        "as of 0/100 (2026-01-01 12:00:00 UTC)",
        r"the newest is 0/200 (2026-01-01 13:00:00 UTC); \cut newest shows it",
    ]
    assert output_of(session, r"\d silver.*", capsys)[2:] == ["silver  orders        3   200"]
    assert output_of(session, r"\cut newest", capsys) == ["as of 0/200 (2026-01-01 13:00:00 UTC)"]
    assert output_of(session, r"\cut 2026-01-01 12:59", capsys)[0].startswith("as of 0/100 ")


def test_wide_rows_of_any_statement_are_expanded(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = FirstRows(("id", "title"), ("id",), (("1", "a" * 40),), more=False)
    narrow = FirstRows(("id", "title"), ("id",), (("1", "a"),), more=False)
    display = display_of(SqlOptions(statement="SELECT 1"))

    def text(output: Output, shown: FirstRows) -> list[str]:
        session = SqlSession(pipeline, output, WithoutSpark(), cut_of(pipeline), display)
        return session._text(shown).splitlines()

    assert text(OnTerminal(), rows) == ["-[ row 1 ]-------", "id    | 1", f"title | {'a' * 40}"]
    assert len(text(OnTerminal(), narrow)) == 3
    assert text(Output(), rows)[0].split() == ["id", "title"]  # a file has no width


def test_columns_show_types_here_and_at_source(
    session: SqlSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_of(session, r"\d ORDERS", capsys) == [
        "silver.orders, version 1, from public.orders",
        "column     type           PostgreSQL  there",
        "---------  -------------  ----------  -----",
        "id         INT            int4        key",
        "total      DECIMAL(10,2)  numeric",
        "note, odd  STRING",
    ]
    assert output_of(session, r"\d gold.customer", capsys)[0] == "gold.customer, version 1"
    assert output_of(session, r"\d control.cuts", capsys)[0] == "control.cuts, in its present state"
    with pytest.raises(
        DefiniteError, match=r"no table silver\.order exists at this cut; did you mean 'silver\.orders'"
    ):
        output_of(session, r"\d silver.order", capsys)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (r"\cut yesterday", r"\\cut: 'yesterday' is neither an LSN nor a time"),
        (r"\cut 0/1", "no cut is recorded as of 0/1: the oldest cut is 0/100"),
        (r"\o xml", r"\\o does not accept 'xml'"),
        (r"\x perhaps", r"\\x does not accept 'perhaps'"),
        (r"\watch", "no statement to repeat"),
    ],
)
def test_unsupported_argument_of_meta_command_is_rejected(
    session: SqlSession, line: str, message: str
) -> None:
    with pytest.raises((ConfigurationError, DefiniteError), match=message):
        session.run(split(line).all[0])


def test_enter_ends_what_is_complete() -> None:
    assert all(map(is_complete, ["SELECT 1;", r"\d", "quit", "", "help;"]))
    assert not any(map(is_complete, ["SELECT 1", "SELECT ';", "quit now"]))


def test_history_is_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file("shop")
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.parent.chmod(0o777)
    assert history_file("shop") is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (SqlOptions("SELECT 1", form=RowFormat.PARQUET), "Parquet cannot be printed\nremedy: add --to"),
        (SqlOptions("SELECT 1", to="rows.txt"), "rows.txt: its name has no suffix .*\nremedy: give it"),
        (SqlOptions("SELECT 1", to="rows.csv", form=RowFormat.TABLE), "drawn table\nremedy: leave out"),
        (SqlOptions("SELECT 1", to="no/such/rows.csv"), "its folder does not exist\nremedy: mkdir -p "),
        (SqlOptions("SELECT 1", to="s3://bucket/rows.csv"), "only folders of Parquet can be written"),
        (SqlOptions("SELECT 'it"), "SQL:1: a text in single quotes is not closed"),
        (SqlOptions(file="nowhere.sql"), "nowhere.sql: the file of statements does not exist"),
        (SqlOptions("SELECT 1", as_of="soon"), "'soon' is neither an LSN nor a time"),
    ],
)
def test_wrong_command_line_is_rejected_before_spark(
    pipeline: Pipeline, asked: SqlOptions, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_sql(pipeline, asked, Output())


def test_a_script_is_read_whole_before_spark_starts(pipeline: Pipeline, tmp_path: Path) -> None:
    script = tmp_path / "report.sql"
    script.write_text("SELECT 1;\nSELECT 2 /* and\n;")
    with pytest.raises(ConfigurationError, match=r"report.sql:2: a comment /\* is not closed"):
        run_sql(pipeline, SqlOptions(file=str(script)), Output())
    script.write_text("SELECT 1;\n\\d silver.orders\nDROP TABLE silver.orders;")
    with pytest.raises(DefiniteError, match=r"report\.sql:3 \(statement 3\): .* only read, and DROP writes"):
        run_sql(pipeline, SqlOptions(file=str(script)), Output())
    script.write_bytes(b"SELECT '\xff'")
    with pytest.raises(ConfigurationError, match=r"report\.sql: the file is not UTF-8 at byte 8"):
        run_sql(pipeline, SqlOptions(file=str(script)), Output())


def test_nothing_is_written_over(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()
    with pytest.raises(ConfigurationError, match="already exists"):
        run_sql(pipeline, SqlOptions("SELECT 1", to=str(tmp_path / "rows.csv")), Output())


def test_a_script_without_statements_says_so(
    pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "empty.sql"
    script.write_text("-- nothing yet\n;")
    run_sql(pipeline, SqlOptions(file=str(script)), Output())
    assert capsys.readouterr().err == f"{script}: no statement\n"
