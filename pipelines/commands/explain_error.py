"""`smelt explain-error`: the page about an error, also where only the wheel is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.config.suggestions import suggestion
from pipelines.terminal.error_pages import codes, has_page, meaning, page

if TYPE_CHECKING:
    from pipelines.terminal.output import Output


def show_error(code: str, output: Output) -> str | None:
    """Print the page about a code; returns what is wrong with the code where there is none."""
    code = code.strip("[]")
    if not has_page(code):
        return f"no error has the code {code!r}{suggestion(code, codes())}"
    output.markdown(page(code))
    return None


def list_errors(output: Output) -> None:
    """Print every code and what it means."""
    output.table(("code", "meaning"), [(code, meaning(code)) for code in codes()])
