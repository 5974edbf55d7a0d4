"""Write a drafted document as YAML in the style of a person, with comments on each choice."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.draft import DraftField

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.drafting.draft import ColumnPairs, Draft, Join, Omitted

WIDTH: Final = 100

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_WORDS_OF_YAML: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_PLAIN_PART: Final = re.compile(r'[^".\s]+')
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def scalar(text: str) -> str:
    """Return a text in YAML, quoted if a reader of any version could read another value."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(map(_character, text)) + '"'


def table_text(table: TableName) -> str:
    """Return a table's name in the form of document files, in YAML."""
    parts = (
        part if _PLAIN_PART.fullmatch(part) else '"' + part.replace('"', '""') + '"'
        for part in (table.schema, table.name)
    )
    return scalar(".".join(parts))


def yaml_comment(text: str) -> str:
    """Return a text for a comment after ``#``: a single line, without characters that YAML rejects."""
    return "".join(character if character.isprintable() else "?" for character in text)


def draft_text(draft: Draft, schema: str | None = None) -> str:
    """Return the whole document file; `schema` names the file by which editors check the document."""
    lines = [
        *([] if schema is None else [f"# yaml-language-server: $schema={schema}"]),
        f"# {_headline(draft)}",
        "# Drafted by `smelt init` from foreign keys: edit as needed, see docs/gold/language.md.",
        f"document: {scalar(draft.name)}",
        f"root: {table_text(draft.root)}",
    ]
    if draft.deleted_at is not None:
        column = yaml_comment(draft.deleted_at)
        lines.append(f'# where: "{column} is null"    # then rows marked as deleted have no document')
    lines += ["fields:", *_entries(draft.fields, draft.omitted, "  ")]
    if draft.not_followed:
        lines.append("# Left out to keep the document readable, although foreign keys lead to these tables:")
        lines += [f"#   {yaml_comment(key)}" for key in draft.not_followed]
    if draft.unfollowed:
        lines.append("# Left out because a document cannot join or choose these rows like PostgreSQL:")
        lines += [f"#   {yaml_comment(key)}" for key in draft.unfollowed]
    return "\n".join(lines) + "\n"


def _headline(draft: Draft) -> str:
    names = [entry.name for entry in draft.joins]
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    what = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return yaml_comment(f"One document per row of {draft.root}" + (f", with its {what}." if what else "."))


def _entries(fields: Sequence[DraftField], omitted: Iterable[Omitted], indent: str) -> Iterator[str]:
    """Yield fields line by line: columns first, then omitted columns, then joins."""
    for entry in fields:
        if entry.join is None:
            yield f"{indent}- {_column(entry)}"
    for name, reason in omitted:
        yield f"{indent}# - {_left_out(name, reason)}"
    for entry in fields:
        if entry.join is not None and entry.join.counted:
            yield from _counted(entry, entry.join, indent)
        elif entry.join is not None:
            yield from _join(entry, entry.join, indent)


def _left_out(name: str, why: str) -> str:
    """Return a comment with the omitted name and the reason, which may contain names of columns."""
    return yaml_comment(f"{name}    # {why}, left out")


def _counted(draft: DraftField, join: Join, indent: str) -> Iterator[str]:
    """Yield the number of rows, and an array of the rows as a comment if the rows have fields to show."""
    short = "; `limit` or `cap` would limit the length of an array:" if join.fields else ""
    yield f"{indent}# {yaml_comment(draft.note)}{short}"
    for line in _join(DraftField(join.counted), join, indent) if join.fields else ():
        yield f"{indent}# {line.removeprefix(indent)}"
    head, inner = f"{indent}- {scalar(draft.name)}:", indent + "    "
    flat = f"{head} {{count: {table_text(join.table)}, on: {_pairs(join.on)}}}"
    if join.through is None and len(flat) <= WIDTH:
        yield flat
        return
    yield head
    yield f"{inner}count: {table_text(join.table)}"
    bare = replace(join, through_fields=[], through_omitted=[])
    yield from _through(bare, inner) if join.through is not None else [f"{inner}on: {_pairs(join.on)}"]


def _column(draft: DraftField) -> str:
    if draft.name == draft.column:
        return scalar(draft.name)
    return f"{scalar(draft.name)}: {{column: {scalar(draft.column)}}}"


def _join(draft: DraftField, join: Join, indent: str) -> Iterator[str]:
    head = f"{indent}- {scalar(draft.name)}:"
    flat = _flat(join.fields, join.omitted)
    if join.verb == "one" and flat is not None and not draft.note:
        line = f"{head} {{one: {table_text(join.table)}, on: {_pairs(join.on)}, fields: {flat}}}"
        if len(line) <= WIDTH:
            yield line
            return
    yield head + (f"    # {yaml_comment(draft.note)}" if draft.note else "")
    inner = indent + "    "
    yield f"{inner}{join.verb}: {table_text(join.table)}"
    yield from _through(join, inner) if join.through is not None else [f"{inner}on: {_pairs(join.on)}"]
    yield from _list("fields", join.fields, join.omitted, inner)


def _through(join: Join, indent: str) -> Iterator[str]:
    assert join.through is not None  # noqa: S101 - the caller's condition
    ends = f"table: {table_text(join.through)}, on: {_pairs(join.on)}, to: {_pairs(join.to)}"
    flat = _flat(join.through_fields, join.through_omitted)
    fields = f", fields: {flat}" if join.through_fields else ""
    line = f"{indent}through: {{{ends}{fields}}}"
    if len(line) <= WIDTH and flat is not None:
        yield line
        return
    yield f"{indent}through:"
    inner = indent + "  "
    yield f"{inner}table: {table_text(join.through)}"
    yield f"{inner}on: {_pairs(join.on)}"
    yield f"{inner}to: {_pairs(join.to)}"
    if join.through_fields:
        yield from _list("fields", join.through_fields, join.through_omitted, inner)
    else:
        yield from (f"{inner}# {_left_out(name, reason)}" for name, reason in join.through_omitted)


def _list(key: str, fields: Sequence[DraftField], omitted: Sequence[Omitted], indent: str) -> Iterator[str]:
    flat = _flat(fields, omitted)
    line = f"{indent}{key}: {flat}"
    if flat is not None and len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}{key}:"
    yield from _entries(fields, omitted, indent + "  ")


def _flat(fields: Sequence[DraftField], omitted: Sequence[Omitted]) -> str | None:
    """Return fields on one line; None if one line would hide a join, a new name or an omission."""
    if omitted or any(entry.join is not None or entry.name != entry.column for entry in fields):
        return None
    return "[" + ", ".join(scalar(entry.name) for entry in fields) + "]"


def _pairs(pairs: ColumnPairs) -> str:
    return "{" + ", ".join(f"{scalar(mine)}: {scalar(theirs)}" for mine, theirs in pairs) + "}"


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
