"""Read and check a document file on its own; `gold.tree` resolves the document against silver."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.config.problems import Problem, problems_error
from deltasmelt.bronze.config.validation import validate
from deltasmelt.bronze.config.yaml_file import YamlFile, read_yaml
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.identifiers import folded
from deltasmelt.gold.language.model import (
    Definition,
    ManyField,
    ObjectField,
    OneField,
    entry_name,
    through_paths,
)
from deltasmelt.gold.language.notation import FIELD_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Document:
    """A document's definition and file; the file knows line numbers."""

    definition: Definition
    file: YamlFile

    @property
    def name(self) -> str:
        """Name of the document and of its gold table."""
        return self.definition.document

    @property
    def digest(self) -> str:
        """SHA-256 of the definition: equal for equal meaning, whatever the file's layout and comments."""
        text = self.definition.model_dump_json(exclude_none=True)
        return hashlib.sha256(text.encode()).hexdigest()


def load_document(path: Path) -> Document:
    """Read one document file.

    Raises:
        ConfigurationError: ``file:line: …`` for each problem.
    """
    return parse_document(read_yaml(path))


def parse_document(file: YamlFile) -> Document:
    """Return the document in a file already read; raise the errors of `load_document`."""
    document = Document(validate(Definition, file), file)
    problems = list(_name_clashes(document))
    if problems:
        raise problems_error(file.path, problems, code="document-invalid")
    return document


def load_documents(
    paths: Iterable[Path], errors: dict[str, ConfigurationError] | None = None
) -> list[Document]:
    """Read document files; refuse two documents whose names are equal or differ only in case.

    `errors` collects the error of each unreadable document, by the document's name, or by the file's name if
    the file gives none. The function then returns the other documents.

    Raises:
        ConfigurationError: ``file:line: …`` for each problem of the first file with problems.
    """
    documents: dict[str, Document] = {}
    for path in paths:
        try:
            document = load_document(path)
            first = documents.setdefault(document.name.lower(), document)
            if first is not document:
                also = first.file.where(("document",))
                message = f"document {document.name!r} is defined twice (also at {also})"
                problem = Problem(document.file.line(("document",)), message)
                raise problems_error(path, [problem], code="document-invalid")
        except ConfigurationError as error:
            if errors is None:
                raise
            name = _name_in(path)
            # Several files with one name give one error that names each file.
            errors[name] = _both(errors[name], error) if name in errors else error
    # Gold cannot know which of two definitions with one name the user means.
    unclear = {name.lower() for name in errors or ()}
    return [document for name, document in documents.items() if name not in unclear]


def _both(first: ConfigurationError, second: ConfigurationError) -> ConfigurationError:
    """Return one error for two files with one document name: gold records errors of documents by name."""
    message = f"{first.message}\n{second.where}: {second.message}"
    return ConfigurationError(
        message, code=first.code, where=first.where, remedy=first.remedy or second.remedy
    )


def _name_in(path: Path) -> str:
    """Return the name of the document in a wrong file; the file's name if the file gives none."""
    try:
        content = read_yaml(path).data
    except ConfigurationError:
        return path.name
    name = content.get("document") if isinstance(content, dict) else None
    return name if isinstance(name, str) and name else path.name


def output_names(entry: str | dict[str, Any]) -> list[str]:
    """Return the names that an entry puts into the object: its own, or the names of a flattened row."""
    spec = None if isinstance(entry, str) else entry[entry_name(entry)]
    if not (isinstance(spec, OneField) and spec.flatten):
        return [entry_name(entry)]
    return [spec.prefix + name for inner in spec.fields for name in output_names(inner)]


def _name_clashes(document: Document) -> Iterator[Problem]:
    """Report names that occur twice in an object; names with a mere difference in case clash too."""
    definition, file = document.definition, document.file
    for index, entry in enumerate(definition.fields):
        for name in output_names(entry):
            if folded(name) in Definition.OWN or folded(name).startswith(Definition.OWN_PREFIX):
                message = f"{name!r} is the name of a column of every gold table; choose another name"
                yield Problem(file.line(("fields", index)), message)
    yield from _clashes(definition.fields, ("fields",), file, {})


def _clashes(
    entries: list[Any], path: tuple[str | int, ...], file: YamlFile, first_lines: dict[str, int]
) -> Iterator[Problem]:
    for index, entry in enumerate(entries):
        place = (*path, index)
        line = file.line(place)
        for output in output_names(entry):
            if folded(output) in first_lines:
                first = first_lines[folded(output)]
                yield Problem(line, f"field {output!r} occurs twice in one object (first at line {first})")
            first_lines.setdefault(folded(output), line)
        name = entry_name(entry)
        if isinstance(entry, dict):
            yield from _inner_clashes(entry[name], (*place, name), file)
        elif not FIELD_NAME.fullmatch(name):
            yield Problem(line, f"{name!r} cannot be the name of a field; set a name: {{column: {name!r}}}")


def _inner_clashes(spec: Any, path: tuple[str | int, ...], file: YamlFile) -> Iterator[Problem]:
    if isinstance(spec, ObjectField):
        yield from _clashes(spec.object, (*path, "object"), file, {})
    elif isinstance(spec, OneField | ManyField) and spec.fields is not None:
        lines: dict[str, int] = {}
        if spec.recurse is not None:
            lines[folded(str(path[-1]))] = file.line((*path, "recurse"), key=True)
        yield from _clashes(spec.fields, (*path, "fields"), file, lines)
        for place, step in through_paths(spec) if isinstance(spec, ManyField) else ():
            yield from _clashes(step.fields or [], (*path, *place, "fields"), file, lines)
