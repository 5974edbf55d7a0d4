"""Long results go to the pager, short results do not. The pagers are real processes (subprocess)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.sql_shell.paging import Paged, pager_command

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("pager", ["", "cat", "no-such-pager -x", "less 'x"])
def test_no_pager_where_none_is_wanted_or_there(pager: str) -> None:
    assert pager_command({"PAGER": pager}) is None


def test_the_users_pager_is_called_with_its_options() -> None:
    assert pager_command({"PAGER": f"{sys.executable} -c 'a b'"}) == [sys.executable, "-c", "a b"]


def test_output_exceeding_screen_is_paged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    got = tmp_path / "got"
    pager = [sys.executable, "-c", f"import sys; open({str(got)!r}, 'w').write(sys.stdin.read())"]
    short = Paged(pager, height=10)
    for number in range(8):
        short.write(f"{number}\n")
    short.close()
    assert capfd.readouterr().out == "".join(f"{number}\n" for number in range(8))
    long = Paged(pager, height=10)
    for number in range(1000):
        long.write(f"{number} größer\n")
    assert long.paging
    long.close()
    assert capfd.readouterr().out == ""
    assert got.read_text().splitlines() == [f"{number} größer" for number in range(1000)]


def test_a_pager_that_is_left_stops_the_rows() -> None:
    paged = Paged([sys.executable, "-c", "input()"], height=4)
    with pytest.raises(BrokenPipeError):
        _fill(paged)
    assert paged.paging
    paged.close()


def _fill(sink: Paged) -> None:
    while True:
        sink.write("a row\n")
