"""Propose documents by a source's foreign keys: tables that deserve a document, and the content. Pure.

A foreign key has a direction, and the direction gives the verb. Seen from the child, the referenced row is a
`one`. Seen from the parent, the referencing rows are a `many`, or a `one` if the key is unique among the
rows. A document joins through a *link* table (`gold.drafting.foreign_keys`).

A draft shows a value that a join makes equal on both sides only once, on the side nearer the root. For
example, an order has `customer_id` and a `customer` without `id`; a customer has `orders` without
`customer_id`. No value is lost, even if a key was declared NOT VALID and references no row.

Limits keep a draft finite and readable, and the draft lists the omitted joins. A draft also omits columns of
bytes and columns whose names suggest secrets.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.drafting.draft import Draft, DraftField, Join, Proposal, UndraftedTable, filled
from deltasmelt.gold.drafting.foreign_keys import Schema, left_out
from deltasmelt.gold.drafting.names import (
    document_name,
    field_name,
    names_of_children,
    names_of_one,
    plural,
    singular,
    stem,
    unique,
)
from deltasmelt.gold.drafting.secrets import table_speaks_of_secrets
from deltasmelt.gold.language import types
from deltasmelt.gold.language.pairs import equality_rule
from deltasmelt.gold.tree.comparisons import undecided

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.drafting.draft import ColumnPairs, Omitted
    from deltasmelt.gold.drafting.foreign_keys import Described, ForeignKey
    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable

MAX_DOCUMENTS: Final = 5
MAX_DEPTH: Final = 3
MAX_ONES: Final = 2
MAX_MANYS: Final = 2
MAX_JOINS: Final = 24
MOST_EACH: Final = 500
"""Average number of rows per parent up to which a draft has an array; a draft counts more rows."""
MOST_INSIDE: Final = 5_000
"""Average number of rows of one node in a document up to which a draft has an array."""

_DELETED: Final = frozenset({"deleted_at", "deleted_on"})


def propose(tables: Iterable[Described], *, most: int = MAX_DOCUMENTS) -> Proposal:
    """Propose documents for the tables that deserve a document, of all tables that the pipeline carries."""
    schema = Schema(tables)
    ranked = schema.roots()
    names: dict[TableName, str] = {}
    for root in sorted(ranked[:most], key=lambda root: root.name.schema != "public"):
        table = root.name
        candidates = [document_name(table.name), document_name(f"{table.schema}_{table.name}")]
        names[table] = unique(candidates, {name.lower() for name in names.values()})
    drafts = [_Drafter(schema, root, names[root.name]).draft() for root in ranked[:most]]
    drafts = [draft for draft in drafts if draft.fields]  # a draft with only columns of bytes has no fields
    chosen = {draft.root for draft in drafts}
    left_out = (
        UndraftedTable(
            table,
            "secrets by its name" if table_speaks_of_secrets(table.name) else _why_not(schema, table, ranked),
            tuple(d.name for d in drafts if table in d.tables),
        )
        for table in sorted(schema.tables)
        if table not in chosen
    )
    return Proposal(tuple(drafts), tuple(left_out))


def _why_not(schema: Schema, name: TableName, ranked: Sequence[Described]) -> str:
    table = schema.tables[name]
    if name in schema.links:
        first, second = schema.keys[name]
        return f"links {first.target} and {second.target}"
    if table in ranked:
        return "fewer tables depend on this table than on the drafted tables"
    if schema.children(table):
        return "a lookup table"
    if any(child is not table for child, _ in schema.incoming[name]):
        return "other tables reference this table, but none depends on it"
    if schema.keys[name]:
        return "no table depends on this table"
    refused = next((key for key in schema.unfollowed if name in key.ends), None)
    return "no foreign key leads to this table or from it" if refused is None else f"left out: {refused}"


@dataclass(slots=True)
class _Place:
    """An occurrence of a table in a draft, with the fields still to find.

    `inside` is the approximate number of the table's rows in one document.
    """

    table: Described
    fields: list[DraftField]
    omitted: list[Omitted]
    path: tuple[TableName, ...]
    label: str = ""
    hidden: frozenset[str] = frozenset()
    ones: int = 0
    manys: int = 0
    leaf: bool = False
    link: Described | None = None
    link_fields: list[DraftField] = field(default_factory=list)
    link_omitted: list[Omitted] = field(default_factory=list)
    inside: int = 1


@dataclass(slots=True)
class _Candidate:
    """A possible join of a place; `counted` is why the draft only counts the rows, else empty."""

    join: Join
    names: list[str]
    note: str
    next: _Place
    counted: str = ""


class _Drafter:
    """Drafter of one document, breadth first."""

    def __init__(self, schema: Schema, root: Described, name: str) -> None:
        self._schema = schema
        self._draft = Draft(name, root.name, [], deleted_at=_deleted_at(root.table))
        # Breadth first: joins near the root have priority under the limit of joins.
        self._waiting = deque([_Place(root, self._draft.fields, self._draft.omitted, (root.name,))])
        self._joins = 0

    def draft(self) -> Draft:
        while self._waiting:
            self._expand(self._waiting.popleft())
        self._draft.fields[:] = filled(self._draft.fields, self._draft.omitted)
        return self._draft

    def _expand(self, place: _Place) -> None:
        top = not place.label
        for unfollowed in self._schema.unfollowed:
            if place.table.name in unfollowed.ends:
                self._leave_out(str(unfollowed))
        used_names: set[str] = set()
        columns = [column for column in place.table.table.columns if column.name not in place.hidden]
        key_columns = set(place.table.table.key) if top else set()  # the key is in every document anyway
        columns = _without(place.omitted, columns, key_columns)
        _add_columns(place.fields, [column.name for column in columns], used_names, top=top)
        if place.link is not None:
            columns = _without(place.link_omitted, self._schema.link_columns(place.link), set())
            _add_columns(
                place.link_fields,
                [column.name for column in columns],
                used_names,
                prefix=singular(place.link.name.name),
            )
        for candidate in [] if place.leaf else list(self._candidates(place)):
            names = [field_name(candidate_name, top=top) for candidate_name in candidate.names]
            name = unique(list(dict.fromkeys(names)), used_names)
            label = f"{place.label}.{name}" if place.label else name
            if candidate.join.speaks_of_secrets:
                place.omitted.append((f"{name} ({candidate.join.table})", "secrets by the table's name"))
                continue
            if self._joins >= MAX_JOINS:
                self._draft.not_followed.append(f"{label} ({candidate.join.table})")
                continue
            self._joins += 1
            used_names.add(name.lower())
            note = candidate.note
            if candidate.counted:
                candidate.join.counted, candidate.next.leaf = name, True
                name = unique([f"{singular(name)}_count", f"{name}_count"], used_names)
                note = "; ".join(filter(None, [note, candidate.counted]))
                used_names.add(name.lower())
            place.fields.append(DraftField(name, join=candidate.join, note=note))
            candidate.next.label = label
            self._waiting.append(candidate.next)

    def _leave_out(self, reason: str) -> None:
        if reason not in self._draft.unfollowed:
            self._draft.unfollowed.append(reason)

    def _chooses(self, target: SilverTable, parent: SilverTable, on: ColumnPairs) -> bool:
        """Check whether a `one` by given pairs is valid: the key of the rows must decide the first row."""
        alone = {
            mine
            for mine, theirs in on
            if not equality_rule(target.column(mine), parent.column(theirs)).merges
        }
        # Pairs that cover the key leave no choice and are always valid.
        fault = None if set(target.key) <= alone else undecided(target, ())
        if fault is not None:
            self._leave_out(f"one row of {target.table} by {', '.join(mine for mine, _ in on)}: {fault}")
        return fault is None

    def _candidates(self, place: _Place) -> Iterator[_Candidate]:
        if len(place.path) > MAX_DEPTH:
            return
        if place.ones < MAX_ONES:
            yield from self._pointed_at(place)
            yield from self._pointing(place, alone=True)
        # A `many` never follows a `one`: a country's customers are no part of an order.
        if not place.ones and place.manys < MAX_MANYS and place.link is None:
            yield from self._pointing(place, alone=False)
            yield from self._linked(place)

    def _pointed_at(self, place: _Place) -> Iterator[_Candidate]:
        """Yield candidates for the rows that the table's foreign keys reference."""
        keys = self._schema.keys[place.table.name]
        times = Counter(key.target for key in keys)
        for key in keys:
            if not _free(place, key.target):
                continue
            if key.target == place.table.name and place.label and not _is_hierarchy(key):
                continue
            target = self._schema.tables[key.target]
            join = Join("one", key.target, tuple(zip(key.referenced, key.columns, strict=True)))
            if not self._chooses(target.table, place.table.table, join.on):
                continue
            note = _several(times[key.target], f"by {', '.join(key.columns)}")
            yield _Candidate(
                join, names_of_one(key, keys), note, _below(place, join, target, hidden=key.referenced)
            )

    def _pointing(self, place: _Place, *, alone: bool) -> Iterator[_Candidate]:
        """Yield candidates for rows that reference the table: one if the foreign key is unique, else many."""
        incoming = self._schema.incoming[place.table.name]
        times = Counter(child.name for child, _ in incoming)
        for child, key in incoming:
            unique_key = any(set(columns) <= set(key.columns) for columns in child.unique)
            if child.name in self._schema.links or unique_key != alone or not _free(place, child.name):
                continue
            if child.name == place.table.name and place.label:
                continue
            join = Join(
                "one" if alone else "many", child.name, tuple(zip(key.columns, key.referenced, strict=True))
            )
            if alone and not self._chooses(child.table, place.table.table, join.on):
                continue
            note = _several(times[child.name], f"by {', '.join(key.columns)}")
            rows_each = 1 if alone else _rows_per_parent(child.rows, place.table.rows)
            names = names_of_children(
                child, key, place.table.name, alone=alone, several=times[child.name] > 1
            )
            below = _below(place, join, child, hidden=key.columns, rows_each=rows_each)
            yield _Candidate(join, names, note, below, _why_counted(rows_each, below.inside))

    def _linked(self, place: _Place) -> Iterator[_Candidate]:
        """Yield candidates for rows behind link tables."""
        incoming = [
            (link, near)
            for link, near in self._schema.incoming[place.table.name]
            if link.name in self._schema.links
        ]
        for link, near_key in incoming:
            first, second = self._schema.keys[link.name]
            far_key = second if near_key is first else first
            if not _free(place, far_key.target):
                continue
            if place.label and near_key is not self._schema.leading(link):
                continue  # a customer's orders have products; these products' other orders are not followed
            target = self._schema.tables[far_key.target]
            join = Join(
                "many",
                far_key.target,
                tuple(zip(near_key.columns, near_key.referenced, strict=True)),
                through=link.name,
                to=tuple(zip(far_key.columns, far_key.referenced, strict=True)),
            )
            rows_each = _rows_per_parent(link.rows, place.table.rows)
            by_column = plural(stem(far_key.columns[-1]))
            names = [
                plural(far_key.target.name),
                by_column,
                f"{plural(far_key.target.name)}_through_{link.name.name}",
            ]
            if far_key.target == place.table.name:
                names = names[1:]
            below = _below(place, join, target, hidden=(), link=link, rows_each=rows_each)
            counted = _why_counted(rows_each, below.inside)
            yield _Candidate(join, names, f"through {link.name.name}", below, counted)


def _below(
    place: _Place,
    join: Join,
    table: Described,
    *,
    hidden: Iterable[str],
    link: Described | None = None,
    rows_each: int = 1,
) -> _Place:
    is_one = join.verb == "one"
    return _Place(
        table,
        join.fields,
        join.omitted,
        (*place.path, table.name),
        hidden=frozenset(hidden),
        ones=place.ones + is_one,
        manys=place.manys + (not is_one),
        leaf=table.name == place.table.name,
        link=link,
        link_fields=join.through_fields,
        link_omitted=join.through_omitted,
        inside=place.inside * rows_each,
    )


def _free(place: _Place, target: TableName) -> bool:
    # No table occurs twice on a join path, except a table joined to itself at the end of the path.
    return target == place.table.name or target not in place.path


def _is_hierarchy(key: ForeignKey) -> bool:
    """Check by a column's name whether a table joined to itself is a tree: ``parent_id``."""
    return "parent" in "_".join(key.columns).lower()


def _add_columns(
    fields: list[DraftField], columns: Sequence[str], used: set[str], *, top: bool = False, prefix: str = ""
) -> None:
    """Add columns under their own names, or under the nearest allowed name."""
    # Own names have priority.
    plain = [name for name in columns if field_name(name, top=top) == name]
    names = {}
    for name in plain:
        if name.lower() not in used:
            names[name] = name
            used.add(name.lower())
    for name in columns:
        if name not in names:
            clean = field_name(name, top=top)
            names[name] = unique([clean, field_name(f"{prefix}_{clean}")] if prefix else [clean], used)
            used.add(names[name].lower())
    fields += [DraftField(names[name], column=name) for name in columns]


def _deleted_at(table: SilverTable) -> str | None:
    """Return a column with the time of a row's deletion, by the names that frameworks use."""
    for column in table.columns:
        moment = types.is_moment(column.spark_type)
        if column.name.lower() in _DELETED and moment and not column.not_null:
            return column.name
    return None


def _several(number: int, text: str) -> str:
    return f"{text}; {number} foreign keys lead to this table" if number > 1 else ""


def _without(
    omitted: list[Omitted], columns: Iterable[SilverColumn], key_names: Container[str]
) -> list[SilverColumn]:
    """Return the columns to show, and add the rest to `omitted`; `key_names` columns stay except bytes."""
    shown = []
    for column in columns:
        reason = left_out(column)
        if reason and (column.name not in key_names or reason == "bytea"):
            omitted.append((column.name, reason))
        else:
            shown.append(column)
    return shown


def _rows_per_parent(rows: int, parents: int) -> int:
    """Return the average number of rows per parent, at least 1; 1 if unknown."""
    return max(1, round(rows / parents)) if parents else 1


def _why_counted(rows_each: int, inside: int) -> str:
    """Return why a draft counts rows that are too many for an array; else empty."""
    # The statistics of one parent, or of a whole document, decide. With an array, each change of one row
    # would build and write all rows again; the draft has the array as a comment.
    if rows_each > MOST_EACH:
        return f"about {rows_each:,} rows each, so the rows are counted"
    return f"about {inside:,} rows in a document, so the rows are counted" if inside > MOST_INSIDE else ""
