"""Findings about documents that join or compare columns with rules (`source.columns`). Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.checks.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.rules import Rules
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.tree.nodes import Tree

_TEXT: Final = r"'(?:[^']|'')*'"
_COLUMN: Final = "\0"
"""Stands for a column in the text of an expression; no text of a document has this character."""
_COMPARED: Final = re.compile(
    rf"{_COLUMN}\s*(?:=|<>|!=|(?:not\s+)?i?like\b)\s*(?P<right>{_TEXT})"
    rf"|{_COLUMN}\s*(?:not\s+)?in\s*\((?P<listed>\s*{_TEXT}(?:\s*,\s*{_TEXT})*\s*)\)"
    rf"|(?P<left>{_TEXT})\s*(?:=|<>|!=)\s*{_COLUMN}",
    re.IGNORECASE,
)


def rule_findings(tree: Tree, rules: Rules) -> list[Finding]:
    """Return the findings about joins and comparisons that find nothing because of rules."""
    return [*_joins(tree, rules), *_constants(tree, rules)]


def with_excluded(rules: Rules, finding: Finding) -> Finding:
    """Return a finding about a document; an unknown column that the rules exclude gets this reason."""
    for table, columns in rules.tables.items():
        for column in re.findall(rf"{re.escape(str(table))} has no column '([^']+)'", finding.message):
            if columns.action(column) == "exclude":
                reason = f"; source.columns excludes {column}"
                return replace(finding, message=finding.message + reason)
    return finding


def _joins(tree: Tree, rules: Rules) -> Iterator[Finding]:
    """Yield the joins of columns with different rules: a hash equals no clear value, so nothing matches."""
    for node in tree.nodes():
        joins = [(link.scope, link.on) for link in node.links] + [(node.scope, node.on)]
        before = node.parent
        if node.recursion is not None:
            joins.append((node.scope, node.recursion.on))
        for scope, pairs in joins:
            for own, other in pairs:
                tables = scope.table.table, before.table.table
                if rules.table(tables[0]).action(own) != rules.table(tables[1]).action(other):
                    yield Finding(
                        level="error",
                        code="join-rules-differ",
                        subject=tree.name,
                        message=f"joins {tables[0]}.{own} with {tables[1]}.{other}, for which source.columns "
                        "has different rules: no rows would match",
                        remedy="write the same rule for both columns",
                    )
            before = scope


def _constants(tree: Tree, rules: Rules) -> Iterator[Finding]:
    """Yield the comparisons of hashed or masked columns with constants that no row has."""
    for table, expression in tree.expressions():
        for column, text in compared_texts(expression):
            if not rules.table(table).may_arrive(column, text):
                action = rules.table(table).action(column)
                yield Finding(
                    level="error",
                    code="constant-clear",
                    subject=tree.name,
                    message=f"compares {table}.{column} with a constant, and source.columns has the rule "
                    f"{action} for the column: no row has such a value",
                    remedy="compare with the hash of the constant"
                    if action == "hash"
                    else "compare with a masked value, or remove the rule",
                )


def compared_texts(expression: Expression) -> Iterator[tuple[str, str]]:
    """Yield the columns that an expression compares directly with texts, each with one text."""
    names, pieces = [], []
    for part in expression.read or expression.parts:
        pieces.append(part if isinstance(part, str) else _COLUMN)
        names += [] if isinstance(part, str) else [part.name]
    whole = "".join(pieces)
    for match in _COMPARED.finditer(whole):
        column = names[whole.count(_COLUMN, 0, match.end()) - 1]
        constants = match["right"] or match["left"] or match["listed"]
        for text in re.findall(_TEXT, constants):
            yield column, text[1:-1].replace("''", "'")
