"""The generated parts of the pages: options of commands, keys of the pipeline file, columns of tables.

`make reference` writes these parts, and a test checks that they are current. The text comes from Typer's
parameters and the pydantic models, as in the program. Only the last column of a key, its meaning, is written
by hand.
"""

from __future__ import annotations

import re
import types
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

import pyarrow as pa
import typer
from pydantic import BaseModel, SecretStr

from deltasmelt.bronze.config.sections import parse_duration, parse_size
from deltasmelt.bronze.lake.control import CUTS_SCHEMA, ERRORS_SCHEMA, RUNS_SCHEMA
from deltasmelt.bronze.lake.erasures import ERASURES_SCHEMA
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, RELATIONS_SCHEMA
from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.quality.results import RESULTS_SCHEMA
from deltasmelt.pipelines.settings import Pipeline
from deltasmelt.pipelines.terminal.help_layout import EXAMPLES, GROUPS
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS: Final = ROOT / "docs"
OPTIONS: Final = DOCS / "command-line.md"
KEYS: Final = DOCS / "pipeline-file.md"
TABLES: Final = DOCS / "tables.md"
SCHEMAS: Final = {
    "bronze.changes": CHANGES_SCHEMA,
    "bronze.relations": RELATIONS_SCHEMA,
    "control.cuts": CUTS_SCHEMA,
    "control.errors": ERRORS_SCHEMA,
    "control.runs": RUNS_SCHEMA,
    "control.erasures": ERASURES_SCHEMA,
    "quality.results": RESULTS_SCHEMA,
}
_COLUMNS: Final = re.compile(r"(<!-- columns of ([\w.]+):[^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
_TABLE: Final = re.compile(
    r"(?<=<!-- keys: from the model, meanings by hand -->\n).*?(?=<!-- end of keys -->)", re.DOTALL
)
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"), (1.0, "s"), (0.001, "ms"))


def options_page() -> str:
    """Return the page of all commands with their arguments and options, in the order of `smelt --help`."""
    root: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        "<!-- Made from the code by `make reference`; edits are lost. -->",
        (
            "Arguments and options of every command, as `smelt COMMAND --help` shows them. "
            "[Commands](commands.md) describes what they do, and how they end."
        ),
        (
            "`smelt` itself takes `--version`, `--install-completion`, `--show-completion`, "
            "and `--debug` anywhere on the command line."
        ),
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            parts += _command(name, root.commands[name])
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"### {name}"
    yield "\n\n".join(" ".join(part.split()) for part in str(command.help).split("\n\n"))
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\nsmelt {name} {usage}\n```"
    rows = [row for kind in command.rows(context).values() for row in kind if row[0] != "--help"]
    if rows:
        lines = ["| argument or option | meaning |", "| --- | --- |"]
        lines += [f"| `{_cell(option)}` | {_cell(right)} |" for option, right in rows]
        yield "\n".join(lines)
    yield "```sh\n" + "\n".join(EXAMPLES[name]) + "\n```"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def keys_table(page: str) -> str:
    """Return a page's table of keys: keys, types and defaults from the model, meanings from the page.

    Raises:
        KeyError: the page has no meaning for a key.
    """
    rows = [re.split(r"(?<!\\)\|", line) for line in page.splitlines() if line.startswith("| `")]
    meanings = {row[1].strip().strip("`"): row[-2].strip() for row in rows}
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key}` | {kind} | {default} | {meanings[key]} |" for key, kind, default in keys(Pipeline)]
    return "\n".join(lines) + "\n"


def keys(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str, str]]:
    """Return every key of a section and its subsections: name, type in words, default as in the file."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{above}{name}.")
            continue
        checks = [getattr(annotation, "func", None) for annotation in field.metadata]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield (
            above + name,
            _words(kind, checks, field.metadata),
            _default(default, checks, required=field.is_required()),
        )


def _words(kind: Any, checks: list[Any], limits: list[Any]) -> str:
    for check, word in ((parse_duration, "duration"), (parse_size, "size")):
        if check in checks:
            return word
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        checks = [*checks, *(getattr(annotation, "func", None) for annotation in kind.__metadata__)]
        return _words(inner[0], checks, limits)
    if origin in {Union, types.UnionType}:  # `X | None`
        return _words(next(member for member in inner if member is not type(None)), checks, limits)
    if origin is Literal:
        return " ".join(f"`{choice}`" for choice in inner)
    words: dict[Any, str] = {
        bool: "`true` `false`",
        int: "integer",
        str: "text",
        SecretStr: "text",
        list: "list",
        dict: "mapping",
    }
    names = (("ge", "at least"), ("le", "at most"))
    bounds = [
        f"{text} {getattr(bound, name)}" for bound in limits for name, text in names if hasattr(bound, name)
    ]
    if origin is not None:
        bounds = []
    return ", ".join([words[origin or kind], *bounds])


def _default(value: Any, checks: list[Any], *, required: bool) -> str:
    if required:
        return "required"
    if value is None:
        return ""
    if parse_duration in checks:
        unit, name = next((size, name) for size, name in _UNITS if value >= size)
        return f"`{value / unit:g}{name}`"
    if parse_size in checks:
        return f"`{value / 10**6:g}MB`"
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower()}`"


def columns_table(name: str, rows: str) -> str:
    """Return a Delta table's table of columns: names and types from its schema, meanings from `rows`.

    Raises:
        KeyError: `rows` has no meaning for a column.
    """
    meanings = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", rows, re.MULTILINE))
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| `{column.name}` | `{_sql_type(column.type)}` | {meanings[column.name]} |"
        for column in SCHEMAS[name]
    ]
    return "\n".join(lines) + "\n"


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "STRUCT"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP"
    return {"int64": "BIGINT", "int32": "INT", "string": "STRING", "bool": "BOOLEAN", "double": "DOUBLE"}[
        str(kind)
    ]


def pages() -> dict[Path, str]:
    """Return the expected text of each page with generated parts."""
    page = KEYS.read_text(encoding="utf-8")
    tables = TABLES.read_text(encoding="utf-8")
    return {
        OPTIONS: options_page(),
        KEYS: _TABLE.sub(lambda _: keys_table(page), page),
        TABLES: _COLUMNS.sub(lambda found: found[1] + columns_table(found[2], found[3]) + found[4], tables),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
