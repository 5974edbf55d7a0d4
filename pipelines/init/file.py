"""The pipeline file of `smelt init`, as text. Pure.

The file contains the given connection without its secrets. A secret stays in the environment. The file names
the variable of the secret in a separate key, not inside the connection string, where a password with an ``@``
would have to be percent-encoded.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.identifiers import pattern_of
from deltasmelt.gold.drafting.files import scalar, yaml_comment
from deltasmelt.pipelines.health.numeric_digits import better_type
from deltasmelt.pipelines.init.personal import proposed_action

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import Action
    from deltasmelt.gold.drafting.draft import Proposal, UndraftedTable
    from deltasmelt.pipelines.init.catalog import Excluded, SourceCatalog

_SECRETS: Final = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}
_IN_AUTHORITY: Final = ("user", "host", "port", "dbname")


@dataclass(frozen=True, slots=True)
class WrittenDsn:
    """A connection string without secrets."""

    text: str
    # environment variables of the secrets, by key of the pipeline file
    secrets: Mapping[str, str]


def without_password(dsn: str) -> WrittenDsn:
    """Return the connection string for the file, and the variables of its secrets."""
    values = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    secrets = {key: variable for key, variable in _SECRETS.items() if values.pop(key, None) is not None}
    if not secrets:
        return WrittenDsn(dsn, {})
    if "://" in dsn:
        uri = _uri(values)
        if {key: str(value) for key, value in conninfo_to_dict(uri).items()} == values:
            return WrittenDsn(uri, secrets)
    return WrittenDsn(make_conninfo("", **values), secrets)


def _uri(values: Mapping[str, str]) -> str:
    user = f"{quote(values['user'], safe='')}@" if "user" in values else ""
    hosts = values.get("host", "").split(",")
    ports = values.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(
        _host(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)
    )
    database = f"/{quote(values['dbname'], safe='')}" if "dbname" in values else ""
    parameters = {key: value for key, value in values.items() if key not in _IN_AUTHORITY}
    return f"postgresql://{user}{places}{database}" + (
        f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    )


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")


WIDTH: Final = 110
_LISTED: Final = 40
_UNQUOTED: Final = re.compile(r"[A-Za-z_](?:[\w ./:@?&=%+*-]*[\w/*])?", re.ASCII)
_WORD: Final = re.compile(r"\w*", re.ASCII)


def pipeline_name(database: str) -> str:
    """Return the nearest valid name of a pipeline."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", database).lstrip("_.-")[:63] or "pipeline"


def slot_name(database: str, used: Collection[str]) -> str:
    """Return an unused name for slot and publication."""
    base = "smelt_" + (re.sub(r"[^a-z0-9_]", "_", database.lower()).strip("_") or "pipeline")
    name, number = base[:63], 2
    while name in used:
        suffix = f"_{number}"
        name, number = base[: 63 - len(suffix)] + suffix, number + 1
    return name


def pipeline_text(
    catalog: SourceCatalog,
    proposal: Proposal,
    *,
    connection: Sequence[tuple[str, str]],
    secrets: Sequence[tuple[str, str]],
    slot: str,
    documents: Sequence[str],
) -> str:
    """Return the whole pipeline file.

    Args:
        connection: keys of `source` for the server.
        secrets: keys of `source` with their environment variables.
    """
    schemas = [item_text(pattern_of(schema)) for schema in catalog.schemas]
    lines = [
        "# Written by `smelt init`; docs/pipeline-file.md describes every key.",
        f"pipeline: {value_text(pipeline_name(catalog.database))}",
        "source:",
        *(f"  {key}: {value_text(value)}" for key, value in connection),
        *(f"  {key}: ${{{variable}}}    # from the environment" for key, variable in secrets),
        f"  slot: {slot}    # the first start creates slot and publication",
        f"  publication: {slot}",
        f"  tables: [{', '.join(schemas)}]    # all tables, future ones included",
        *_exclude(catalog),
        *_rules(catalog),
        "lake: {path: ./lake}    # a folder, or the URL of an object store",
        *_types(catalog),
        *_gold(proposal, documents),
    ]
    return "\n".join(lines) + "\n"


def left_out_text(table: UndraftedTable) -> str:
    """Return the reason for a table without a document, and the documents with its rows."""
    inside = f"; included in {', '.join(table.inside)}" if table.inside else ""
    return f"{table.table}: {table.reason}{inside}"


def by_reason(excluded: Iterable[Excluded]) -> dict[str, list[Excluded]]:
    """Group the excluded tables by reason."""
    groups: dict[str, list[Excluded]] = defaultdict(list)
    for exclusion in excluded:
        groups[exclusion.reason].append(exclusion)
    return groups


def _exclude(catalog: SourceCatalog) -> Iterator[str]:
    if catalog.excluded:
        yield "  exclude:"
    for reason, exclusions in by_reason(catalog.excluded).items():
        yield from _wrapped(f"{reason}:", "    # ")
        for exclusion in exclusions:
            yield f"    - {value_text(pattern_of(exclusion.table.schema, exclusion.table.name))}"
            yield from _wrapped(f"remedy: {exclusion.remedy}", "      # ")


def _rules(catalog: SourceCatalog) -> Iterator[str]:
    """Return proposed rules, as comments, for columns whose names suggest secrets or personal data."""
    proposed: dict[TableName, dict[str, Action]] = {}
    types = {
        (described.table.table, column.name): column.spark_type
        for described in catalog.described
        for column in described.table.columns
    }
    for table in catalog.tables:
        relation = table.relation
        # A key column must stay unique, and the replica identity needs each of its columns.
        bound = {*relation.key, *(column.name for column in relation.columns if column.in_identity)}
        for column in relation.columns:
            spark_type = types.get((table.table, column.name), "STRING")
            action = proposed_action(
                column.name, key=column.name in bound, table=table.table.name, spark_type=spark_type
            )
            if action is not None:
                proposed.setdefault(table.table, {})[column.name] = action
    if not proposed:
        return
    yield from _wrapped(
        "The names of these columns suggest secrets or personal data. Remove the signs # below, and the "
        "values never arrive in clear text (docs/privacy.md):",
        "  # ",
    )
    if any("hash" in actions.values() for actions in proposed.values()):
        yield "  # hash_key: ${SMELT_HASH_KEY}    # at least 16 bytes, from the environment"
    yield "  # columns:"
    for name, actions in proposed.items():
        rules = ", ".join(f"{scalar(_escaped(column))}: {action}" for column, action in actions.items())
        yield f"  #   {scalar(_escaped(str(name)))}: {{{rules}}}"


def _types(catalog: SourceCatalog) -> Iterator[str]:
    """Return better types of numeric columns than the default, and the values outside every type."""
    better = [
        (name, values, type_) for name, values in catalog.numbers.items() if (type_ := better_type(values))
    ]
    if better:
        yield "silver:"
        yield (
            "  # numeric without a precision is DECIMAL(38,18) by default; these types fit the present "
            "values:"
        )
        yield "  types:"
    for name, values, type_ in better:
        digits = f"{values.whole} digits before the point, {values.scale} after it"
        yield f"    {scalar(name)}: {type_}    # {digits}"
    for name, values in catalog.numbers.items():
        lost = values.special if better_type(values) else values.unfit
        if lost:
            sentence = f"{lost:,} of {values.values:,} values of {name} fit no decimal"
            yield from _wrapped(f"{sentence}: NULL in silver, with their text in _unrepresentable", "# ")


def _gold(proposal: Proposal, documents: Sequence[str]) -> Iterator[str]:
    yield "gold:"
    if not proposal.drafts:
        yield "  # No foreign key joins two of the tables, so no document was drafted; see docs/gold.md."
    patterns = ", ".join(item_text(pattern) for pattern in documents)
    if len(patterns) < WIDTH - 20:
        yield f"  documents: [{patterns}]"
    else:
        yield "  documents:"
        yield from (f"    - {value_text(pattern)}" for pattern in documents)
    if not proposal.drafts or not proposal.left_out:
        return
    yield "  # Without a document; a file in documents/ with `root` and `fields` adds one:"
    for table in proposal.left_out[:_LISTED]:
        yield f"  #   {yaml_comment(left_out_text(table))}"
    if len(proposal.left_out) > _LISTED:
        yield f"  #   … and {len(proposal.left_out) - _LISTED} more"


def value_text(text: str) -> str:
    """Return a value for a separate line, quoted if necessary; ``${`` then names no variable."""
    escaped = _escaped(text)
    plain = _UNQUOTED.fullmatch(escaped) and ": " not in escaped and not _WORD.fullmatch(escaped)
    return escaped if plain else scalar(escaped)


def item_text(text: str) -> str:
    """Return a value for use inside brackets, as `value_text` does."""
    return scalar(_escaped(text)) if ":" in text else value_text(text)


def _escaped(text: str) -> str:
    return text.replace("${", "$${")


def _wrapped(text: str, prefix: str) -> list[str]:
    return [
        prefix + yaml_comment(line)
        for line in textwrap.wrap(text, WIDTH - len(prefix), break_long_words=False, break_on_hyphens=False)
    ]
