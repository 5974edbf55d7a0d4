"""The reader of a user's YAML files: YAML 1.2, a line for every node, strict models, helpful errors.

The library composes the file into nodes, and this module builds plain values from the nodes, because only
nodes know their lines. Every later error (a wrong type from pydantic, an unknown column from the catalog) can
therefore name ``file:line``. One error reports all problems of a file (up to `MAX_PROBLEMS`), as a compiler
does.

YAML 1.2's core schema decides the type of a plain word: ``on``, ``no``, ``yes`` and dates are text. No
message contains a value from the environment or from a secret store: if a validator repeats such a value, the
message contains ``${…}`` instead.

A file may have a hostile author. A tag outside the core schema is refused. Size, depth and the multiplication
by aliases are bounded. A file beyond a bound is refused with one message, before any value is built from the
file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from deltasmelt.bronze.config.problems import Problem, problems_error
from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


PathStep: TypeAlias = str | int
YamlPath: TypeAlias = tuple[PathStep, ...]
# Function that returns the value of ``scope/key``, or raises `LookupError` with the reason.
Secrets: TypeAlias = Callable[[str], str]

# Greatest size of a file; reading this much takes some seconds, and people write some thousand bytes.
MAX_BYTES: Final = 1 << 20
# Greatest depth of nested collections; thirty nested tables of a document take about a hundred levels.
MAX_DEPTH: Final = 100
_MAX_NODES: Final = 100_000
# Greatest count of a number's digits: more than a meaningful number has, and fewer than Python refuses.
_MAX_DIGITS: Final = 400
_VARIABLE: Final = re.compile(
    r"\$(?:\$(?=\{)"
    r"|\{secret:(?P<secret>[A-Za-z0-9_.@-]{1,128}/[A-Za-z0-9_.-]{1,128})\}"
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<bad>\{[^}]*\}?))"
)
_TAG: Final = "tag:yaml.org,2002:"
# Tags of the core schema, and tags that the library gives to plain words that are text in this reader.
_TAGS: Final = frozenset(
    _TAG + name
    for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "merge", "value")
)
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_DECIMAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL: Final = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file's plain values, each with its line."""

    # the path as the caller named the file; messages repeat it
    path: Path
    # the values as dicts, lists and scalars
    data: Any
    # line (from 1) of the value at a path of keys and indexes
    values: Mapping[YamlPath, int] = field(default_factory=dict)
    # line of the key that leads to a path; in a list, the line of the item
    keys: Mapping[YamlPath, int] = field(default_factory=dict)
    # at a path, each text from outside of the file, with the placeholder that it replaced
    expanded: Mapping[YamlPath, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    # the file's own text, before any expansion
    text: str = field(default="", repr=False)

    def line(self, path: Sequence[PathStep], *, key: bool = False) -> int:
        """Return the line of the value (or key) at `path`; if missing, of the nearest node around."""
        place = tuple(path)
        lines = self.keys if key else self.values
        while place:
            if place in lines:
                return lines[place]
            lines = self.values
            place = place[:-1]
        return self.values.get((), 1)

    def where(self, path: Sequence[PathStep], *, key: bool = False) -> str:
        """Return ``file:line`` of the value (or key) at `path`."""
        return f"{self.path}:{self.line(path, key=key)}"

    def at(self, path: Sequence[PathStep]) -> Any:
        """Return the value at `path`; raise LookupError if no value has this path."""
        value = self.data
        for step in path:
            value = value[step]
        return value


def read_yaml(path: Path, *, expand_env: bool = False, secrets: Secrets | None = None) -> YamlFile:
    """Read a file with a single YAML document.

    Args:
        expand_env: replace ``${NAME}`` and ``${NAME:-default}`` in values; ``$${`` is a literal ``${``.
        secrets: the source of ``${secret:scope/key}``, which is then replaced, too.

    Raises:
        ConfigurationError: with the line: the file is not readable, not YAML, too large or too deep, has a
            duplicate key, or names an unset variable or a secret that cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigurationError("the file does not exist", code="file-missing", where=str(path)) from None
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}", code="file-unreadable", where=str(path)
        ) from None
    if len(content) > MAX_BYTES:
        raise ConfigurationError(
            f"the file is larger than {MAX_BYTES >> 20} MiB", code="yaml-content", where=str(path)
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigurationError("not UTF-8 text", code="yaml-syntax", where=f"{path}:{line}") from None
    return parse_yaml(
        text.replace("\r\n", "\n").replace("\r", "\n"), path, expand_env=expand_env, secrets=secrets
    )


def parse_yaml(
    text: str, path: Path, *, expand_env: bool = False, secrets: Secrets | None = None
) -> YamlFile:
    """Parse the text of a file like `read_yaml`; messages name `path`."""
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _BoundedComposer
    try:
        root: Node | None = reader.compose(text)
    except _TooDeepError as error:
        raise _content_error(path, error.line, str(error)) from None
    except MarkedYAMLError as error:
        raise _syntax_error(error, path) from None
    except YAMLError as error:
        raise ConfigurationError(str(error), code="yaml-syntax", where=str(path)) from None
    builder = _Builder(expand_env=expand_env, secrets=secrets)
    try:
        data = None if root is None else builder.build(root, ())
    except _TooManyError as error:
        raise _content_error(path, error.line, str(error)) from None
    if builder.problems:
        raise problems_error(path, builder.problems, code="yaml-content")
    if builder.withheld:
        raise _secret_error(path, *builder.withheld[0])
    return YamlFile(path, data, builder.values, builder.keys, builder.expanded, text)


_OPEN: Final = re.compile(r"expected ',' or '([}\]])', but got ")


def _syntax_error(error: MarkedYAMLError, path: Path) -> ConfigurationError:
    mark = error.problem_mark or error.context_mark
    place = str(path) if mark is None else f"{path}:{mark.line + 1}"
    message = " ".join(str(error.problem or error.context or "not valid YAML").split())
    if "'\\t'" in message:
        message = "a tab where YAML allows only spaces"
    elif (bracket := _OPEN.match(message)) is not None:
        opening = {"}": "{", "]": "["}[bracket[1]]
        message = f"{message}: is a {opening} of this line or an earlier line not closed?"
    return ConfigurationError(message, code="yaml-syntax", where=place)


def _content_error(path: Path, line: int, message: str) -> ConfigurationError:
    return ConfigurationError(message, code="yaml-content", where=f"{path}:{line}")


def _secret_error(path: Path, line: int, secret: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the secret {secret} cannot be read: {why}",
        code="secret-unreadable",
        where=f"{path}:{line}",
        remedy="correct scope and key, and allow the user or service principal of this run to read the "
        "scope; outside Databricks use an environment variable: ${NAME}",
    )


class _BeyondBoundError(Exception):
    """The file is larger than any real file; the reader searches for no further problem."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _TooDeepError(_BeyondBoundError):
    """Nested collections deeper than `MAX_DEPTH`."""


class _TooManyError(_BeyondBoundError):
    """More values than `_MAX_NODES`, which only aliases of aliases can make."""


class _BoundedComposer(Composer):
    """Composer of nodes from events with a bounded depth; the library composes by recursion."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False  # YAML allows duplicate anchors
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node like the library, one level deeper."""
        if self._depth > MAX_DEPTH:
            line = self.parser.peek_event().start_mark.line + 1
            raise _TooDeepError(f"nested more than {MAX_DEPTH} levels deep", line)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Builder:
    """Builder of plain values from nodes, with lines and problems."""

    def __init__(self, *, expand_env: bool, secrets: Secrets | None) -> None:
        self.values: dict[YamlPath, int] = {}
        self.keys: dict[YamlPath, int] = {}
        self.expanded: dict[YamlPath, tuple[tuple[str, str], ...]] = {}
        self.problems: list[Problem] = []
        # Unreadable secrets: line, name and reason.
        self.withheld: list[tuple[int, str, str]] = []
        self._secrets = secrets
        self._expand_env = expand_env
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: Node, path: YamlPath) -> Any:
        line = node.start_mark.line + 1
        self.values[path] = line
        self._count += 1
        if self._count > _MAX_NODES:
            raise _TooManyError(f"aliases expand to more than {_MAX_NODES:,} values", line)
        if id(node) in self._open:
            self.problems.append(Problem(line, "an alias that contains itself"))
            return None
        if not self._is_plain(node, line):
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node, path, line)
        self._open.add(id(node))
        try:
            return self._mapping(node, path) if isinstance(node, MappingNode) else self._sequence(node, path)
        finally:
            self._open.discard(id(node))

    def _is_plain(self, node: Node, line: int) -> bool:
        """Check whether a node's tag is one of `_TAGS`; record any other tag as a problem."""
        tag = str(node.tag)
        if tag in _TAGS:
            return True
        self.problems.append(Problem(line, f"unknown tag {tag.replace(_TAG, '!!')}"))
        return False

    def _mapping(self, node: MappingNode, path: YamlPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self.problems.append(Problem(line, "a key must be a plain word"))
                continue
            if not self._is_plain(key_node, line):
                continue
            key = str(key_node.value)
            if key in built:
                first = self.keys[*path, key]
                self.problems.append(Problem(line, f"key {key!r} occurs twice (first at line {first})"))
                continue
            self.keys[*path, key] = line
            built[key] = self.build(value_node, (*path, key))
        return built

    def _sequence(self, node: Node, path: YamlPath) -> list[Any]:
        assert isinstance(node, SequenceNode)  # noqa: S101 - the third and last kind of node
        items = []
        for index, item in enumerate(node.value):
            self.keys[*path, index] = item.start_mark.line + 1
            items.append(self.build(item, (*path, index)))
        return items

    def _scalar(self, node: ScalarNode, path: YamlPath, line: int) -> Any:
        text = str(node.value)
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            self.problems.append(
                Problem(line, ("an incomplete character (a surrogate), which is not valid in text"))
            )
            return None
        if self._expand_env and "$" in text:
            expanded = self._expand(text, path, line)
            # Expanded values stay text, so that a password of digits does not become a number. Pydantic
            # converts text to numbers for fields with numbers.
            if expanded != text:
                return expanded
        if node.style is not None or str(node.tag) == _TAG + "str":
            return text
        if len(text) > _MAX_DIGITS and (_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text)):
            self.problems.append(Problem(line, f"a number of {len(text):,} digits (put text in quotes)"))
            return None
        return _plain(text)

    def _expand(self, text: str, path: YamlPath, line: int) -> str:
        values: list[tuple[str, str]] = []

        def value(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if match["secret"] is not None and self._secrets is not None:
                values.append((self._secret(match["secret"], line), match[0]))
                return values[-1][0]
            if name is None and match["bad"] is None and match["secret"] is None:
                return "$"  # "$${" stands for "${"
            if name is None:
                self.problems.append(Problem(line, f"a malformed ${{…}} (expected {self._expected()})"))
                return ""
            variable = os.environ.get(name)
            if variable is None and default is None:
                self.problems.append(Problem(line, f"environment variable {name} is not set"))
                return ""
            if not variable and default is not None:
                return default
            values.append((variable or "", match[0]))
            return variable or ""

        expanded = _VARIABLE.sub(value, text)
        if values:
            self.expanded[path] = tuple(values)
        return expanded

    def _secret(self, name: str, line: int) -> str:
        assert self._secrets is not None  # noqa: S101 - asked before
        if self.withheld:  # a second attempt would take as long, and fail alike
            return ""
        try:
            return self._secrets(name)
        except LookupError as error:
            self.withheld.append((line, name, str(error)))
            return ""

    def _expected(self) -> str:
        forms = "${NAME} or ${NAME:-default}"
        return forms if self._secrets is None else f"{forms} or ${{secret:scope/key}}"


def _plain(text: str) -> Any:
    """Return a plain scalar by YAML 1.2's core schema."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text
