"""Define the document language: the content of a document file, as strict models.

The models read a document file without knowing any table, so that a check offline finds a wrong key, verb or
type. `gold.tree.resolve` checks everything that needs the catalog (tables, columns, types). Each entry of
`fields` is a column's name, or one name with one verb::

    fields:
      - id
      - country: {one: public.countries, on: {id: country_id}, fields: [code, name]}

The verb's own key identifies the verb, and a field's errors mention only this verb, never all verbs.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from deltasmelt.bronze.config.sections import Section, in_the_form
from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.language.notation import (
    NAME,
    Conditions,
    Elements,
    FieldName,
    Levels,
    Name,
    Orderings,
    Snippet,
    TableText,
    _field_name,
    parse_target,
)

AGGREGATES: Final = ("count", "sum", "avg", "min", "max", "count_distinct", "collect", "first", "last")
VERBS: Final = ("column", "sql", "object", "one", "many", *AGGREGATES)


def _one_verb(value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping with one of {', '.join(VERBS)}")  # noqa: TRY004 - pydantic wants it
    verbs = [key for key in value if key in VERBS]
    if len(verbs) > 1:
        raise ValueError(f"{verbs[0]!r} and {verbs[1]!r} cannot be used in one field")
    if not verbs:
        first = next(iter(value), "")
        raise ValueError(f"needs one of {', '.join(VERBS)}{suggestion(first, VERBS)}")
    return value


def _verb_tag(value: Any) -> str:
    if isinstance(value, Section):
        return f"<{type(value).__name__}>"
    verb = next(key for key in value if key in VERBS)
    return _TAGS[verb]


def _one_name(value: Any) -> Any:
    if isinstance(value, dict) and len(value) != 1:
        names = ", ".join(repr(name) for name in value) or "nothing"
        raise ValueError(f"an entry is a column's name, or one name with a mapping; this entry has {names}")
    if not isinstance(value, str | dict):
        raise ValueError("an entry is a column's name, or one name with a mapping")  # noqa: TRY004
    return value


def _entry_tag(value: Any) -> str:
    return "<name>" if isinstance(value, str) else "<field>"


def _exactly_one(*names: str) -> dict[str, Any]:
    """Return the JSON Schema of a Python validator: exactly one of the keys is present."""
    return {"oneOf": [{"required": [name]} for name in names]}


_NOT_BOTH: Final[dict[str, Any]] = {"not": {"required": ["limit", "cap"]}}


class ColumnField(Section):
    """A column under another name, or with a default for NULL.

    Attributes:
        column: the column.
        default: the value in place of NULL.
    """

    column: Name
    default: str | bool | int | float | None = None


class SqlField(Section):
    """A scalar Spark SQL expression over the row's own columns.

    Attributes:
        sql: the expression; deterministic functions of one row only.
    """

    sql: Snippet


class ObjectField(Section):
    """Values of the same row, nested.

    Attributes:
        object: the fields.
    """

    object: Entries


class Through(Section):
    """A link table between the parent and the far table.

    Attributes:
        table: the table, as schema.table.
        on: its columns: the columns of the table before it, or of the parent.
        to: its columns: the far table's columns; only in the last of several.
        where: an SQL condition over its rows.
        fields: of its row, flat in each element.
    """

    table: TableText
    on: Conditions
    to: Conditions | None = None
    where: Snippet | None = None
    fields: Entries | None = None


class Recurse(Section):
    """Rows of the same table below each row, level by level, in a field of the same name.

    Attributes:
        on: this table's columns: the columns of the row above.
        max_depth: how many levels; the rows that the field itself finds are the first.
    """

    on: Conditions
    max_depth: Levels


class OneField(Section):
    """At most one row of another table, as an object; or its fields in the object around it, with `flatten`.

    Attributes:
        one: the table, as schema.table.
        on: its columns: the parent's columns.
        fields: of the row.
        where: an SQL condition over the table's rows.
        order_by: which row is taken if several match; then the table's key.
        flatten: true, or a prefix for the fields' names.
        recurse: more rows of the table below the row, level by level.
    """

    one: TableText
    on: Conditions
    fields: Entries
    where: Snippet | None = None
    order_by: Orderings | None = None
    flatten: bool | Annotated[str, AfterValidator(_field_name)] = False
    recurse: Recurse | None = None

    @model_validator(mode="after")
    def _nested_or_flat(self) -> OneField:
        if self.recurse is not None and self.flatten:
            raise ValueError("'recurse' nests each row in the row below: the row cannot be flattened")
        return self

    @property
    def prefix(self) -> str:
        """The prefix of the names of flattened fields."""
        return self.flatten if isinstance(self.flatten, str) else ""


def _through_tag(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<step>"


JoinPath: TypeAlias = Annotated[
    Annotated[Through, Tag("<step>")]
    | Annotated[Annotated[list[Through], Field(min_length=1)], Tag("<list>")],
    Discriminator(_through_tag),
]


class _Joined(Section):
    on: Conditions | None = None
    through: JoinPath | None = None
    where: Snippet | None = None
    order_by: Orderings | None = None
    limit: Elements | None = None
    cap: Elements | None = None

    @model_validator(mode="after")
    def _on_or_through(self) -> _Joined:
        if (self.on is None) == (self.through is None):
            raise ValueError("write either 'on' or 'through'")
        for step in self.join_path[:-1]:
            if step.to is not None:
                raise ValueError("'to' leads to the far table: write 'to' only in the last step of 'through'")
        if self.join_path and self.join_path[-1].to is None:
            raise ValueError("'to' is missing in 'through': the columns that lead to the far table")
        if self.limit is not None and self.cap is not None:
            raise ValueError("write either 'limit' or 'cap'")
        return self

    @property
    def join_path(self) -> list[Through]:
        """Tables between the parent and the far table, from the parent's side."""
        return self.through if isinstance(self.through, list) else [self.through] if self.through else []


class ManyField(_Joined):
    """Rows of another table, as an array of objects, or of plain values; as a map with `key_by`.

    Attributes:
        many: the table, as schema.table.
        on: its columns: the parent's columns.
        through: a link table, or a list of several, between the parent and the table.
        fields: of each element, which is an object.
        values: the column whose values are the elements.
        where: an SQL condition over the table's rows.
        order_by: the order of elements, each as: column [asc|desc] [nulls first|last]; then the table's key.
        limit: the most elements.
        cap: like limit, and the field is an object with items, count and truncated.
        key_by: the column by whose value each element is found; the field is a map.
        recurse: more rows of the table below each row, level by level.
    """

    model_config = ConfigDict(json_schema_extra={"allOf": [
        _exactly_one("on", "through"), _exactly_one("fields", "values"), _NOT_BOTH,
    ]})  # fmt: skip

    many: TableText
    fields: Entries | None = None
    values: Name | None = None
    key_by: Name | None = None
    recurse: Recurse | None = None

    @model_validator(mode="after")
    def _fields_or_values(self) -> ManyField:
        if (self.fields is None) == (self.values is None):
            raise ValueError("write either 'fields' or 'values'")
        if self.recurse is not None and self.through is not None:
            raise ValueError("'recurse' joins the table to itself: use 'on', not 'through'")
        if self.recurse is not None and self.values is not None:
            raise ValueError("'recurse' nests rows in the objects above: write 'fields', not 'values'")
        if self.values is not None and any(step.fields is not None for step in self.join_path):
            raise ValueError("'through.fields' cannot be used with plain 'values'; use 'fields'")
        if self.key_by is not None and (self.limit is not None or self.cap is not None):
            raise ValueError("a map contains all rows: 'limit' and 'cap' cannot be used with 'key_by'")
        return self


class AggregateField(_Joined):
    """One value over rows of another table.

    Attributes:
        count: number of rows of schema.table, or of values of schema.table.column that are not NULL.
        sum: of schema.table.column.
        avg: of schema.table.column.
        min: of schema.table.column.
        max: of schema.table.column.
        count_distinct: of schema.table.column.
        collect: the values of schema.table.column that are not NULL, as an array.
        first: the value of schema.table.column in the first row by order_by.
        last: the value of schema.table.column in the last row by order_by.
        on: the table's columns: the parent's columns.
        through: a link table, or a list of several, between the parent and the table.
        where: an SQL condition over the table's rows.
        order_by: of collect, first and last: column [asc|desc] [nulls first|last]; then the table's key.
        limit: of collect: the most values.
        cap: of collect: like limit, and the field is an object with items, count and truncated.
    """

    model_config = ConfigDict(json_schema_extra={"allOf": [
        _exactly_one(*AGGREGATES), _exactly_one("on", "through"), _NOT_BOTH,
    ]})  # fmt: skip

    count: str | None = None
    sum: str | None = None
    avg: str | None = None
    min: str | None = None
    max: str | None = None
    count_distinct: str | None = None
    collect: str | None = None
    first: str | None = None
    last: str | None = None

    @property
    def function(self) -> str:
        """The function among `AGGREGATES` that the field uses."""
        return next(name for name in AGGREGATES if getattr(self, name) is not None)

    @property
    def target(self) -> tuple[TableName, str | None]:
        """The table, and the column if the field names a column."""
        return parse_target(getattr(self, self.function))

    @model_validator(mode="after")
    def _target_fits(self) -> AggregateField:
        function = self.function
        _, column = self.target
        if column is None and function != "count":
            raise ValueError(f"{function} needs a column (expected schema.table.column)")
        if function not in {"collect", "first", "last"} and self.order_by is not None:
            raise ValueError(f"'order_by' cannot be used with {function}")
        if function != "collect" and (self.limit is not None or self.cap is not None):
            raise ValueError(f"'limit' and 'cap' cannot be used with {function}")
        if any(step.fields is not None for step in self.join_path):
            raise ValueError("'through.fields' cannot be used with an aggregate")
        return self


_MODELS: Final[dict[str, type[Section]]] = {
    "column": ColumnField, "sql": SqlField, "object": ObjectField, "one": OneField, "many": ManyField,
    **dict.fromkeys(AGGREGATES, AggregateField),
}  # fmt: skip
_TAGS: Final = {verb: f"<{model.__name__}>" for verb, model in _MODELS.items()}

FieldSpec: TypeAlias = Annotated[
    Annotated[
        Annotated[ColumnField, Tag("<ColumnField>")]
        | Annotated[SqlField, Tag("<SqlField>")]
        | Annotated[ObjectField, Tag("<ObjectField>")]
        | Annotated[OneField, Tag("<OneField>")]
        | Annotated[ManyField, Tag("<ManyField>")]
        | Annotated[AggregateField, Tag("<AggregateField>")],
        Discriminator(_verb_tag),
    ],
    BeforeValidator(_one_verb),
]
Entry: TypeAlias = Annotated[
    Annotated[
        Annotated[Name, Tag("<name>")]
        | Annotated[
            dict[FieldName, FieldSpec],
            Field(json_schema_extra={"minProperties": 1, "maxProperties": 1, "additionalProperties": False}),
            Tag("<field>"),
        ],
        Discriminator(_entry_tag),
    ],
    BeforeValidator(_one_name),
]
Entries: TypeAlias = Annotated[list[Entry], Field(min_length=1)]

for _model in (ObjectField, Through, OneField, ManyField, AggregateField):
    _model.model_rebuild()


class Definition(Section):
    """A whole document file.

    Attributes:
        document: the name; the table is gold.<name>.
        root: the table whose rows have documents, as schema.table.
        where: an SQL condition over the root's rows; a row that fails it has no document.
        fields: of the document.
    """

    OWN: ClassVar = frozenset({"_commit_lsn", "_content_hash", "_key"})
    OWN_PREFIX: ClassVar = "_deltasmelt_"

    document: Annotated[
        str,
        in_the_form(NAME, "a letter, then letters, digits and _ (at most 100)"),
        Field(json_schema_extra={"pattern": f"^{NAME}$"}),
    ]
    root: TableText
    where: Snippet | None = None
    fields: Entries

    @property
    def root_table(self) -> TableName:
        """The table whose rows have documents."""
        return TableName.parse(self.root)


def entry_name(entry: str | dict[str, Any]) -> str:
    """Return the name of the field that an entry defines."""
    return entry if isinstance(entry, str) else next(iter(entry))


def through_paths(spec: ManyField | AggregateField) -> list[tuple[tuple[str | int, ...], Through]]:
    """Return the link tables, each with its path below the field in the file."""
    if isinstance(spec.through, list):
        return [(("through", index), step) for index, step in enumerate(spec.through)]
    return [(("through",), step) for step in spec.join_path]
