"""Reading the YAML files that a user edits: YAML 1.2, a line for every node, strict models, helpful errors.

The file is composed into nodes, and plain values are built from the nodes here, because only nodes know
their lines. So every later complaint (a wrong type found by pydantic, an unknown column found against the
catalog) can say ``file:line``. YAML 1.2's core schema decides what a plain word is: ``on``, ``no``, ``yes``
are text, dates are text. Expanded ``${ENV}`` values stay text, so that a password of digits does not become
a number; pydantic turns text into numbers where a field wants one.

No value that came from the environment or from a store of secrets appears in a message: where a validator
repeats it, its ``${…}`` is put in its place. All problems of a file are told at once (up to `MAX_PROBLEMS`),
as a compiler does.

A file may come from somebody who means harm. No tag is ever acted upon: one that is not of the core schema is
refused, also where it would make an object of Python. Size, depth and what aliases multiply are bounded; a
file beyond a bound is refused with one message, before anything is built of it.
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
Secrets: TypeAlias = Callable[[str], str]
"""Gives the value of ``scope/key``; raises `LookupError`, which says why there is none."""

MAX_BYTES: Final = 1 << 20
"""Of a file; reading that much takes some seconds, and what people write has some thousand bytes."""
MAX_DEPTH: Final = 100
"""Of collections in collections; thirty nested tables of a document take about that."""
_MAX_NODES: Final = 100_000
_MAX_DIGITS: Final = 400
"""Of a number: more than any number of ours can have, and fewer than Python refuses to read."""
_VARIABLE: Final = re.compile(
    r"\$(?:\$(?=\{)"
    r"|\{secret:(?P<secret>[A-Za-z0-9_.@-]{1,128}/[A-Za-z0-9_.-]{1,128})\}"
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<bad>\{[^}]*\}?))"
)
_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(
    _TAG + name
    for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "merge", "value")
)
"""Those of the core schema, and those that the library gives to plain words which are text here."""
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_DECIMAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL: Final = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file's plain values and where each stands.

    Attributes:
        path: the file as it was named; messages repeat it.
        data: dicts, lists and scalars.
        values: line (from 1) of the value at a path of keys and indexes.
        keys: line of the key that leads to a path; the item's own line in a list.
        expanded: at a path, the texts that came from elsewhere, each with what stood there.
        text: the file's own, before anything is expanded.
    """

    path: Path
    data: Any
    values: Mapping[YamlPath, int] = field(default_factory=dict)
    keys: Mapping[YamlPath, int] = field(default_factory=dict)
    expanded: Mapping[YamlPath, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def line(self, path: Sequence[PathStep], *, key: bool = False) -> int:
        """Line of the value (or key) at `path`; of the nearest thing around it where there is none."""
        place = tuple(path)
        lines = self.keys if key else self.values
        while place:
            if place in lines:
                return lines[place]
            lines = self.values
            place = place[:-1]
        return self.values.get((), 1)

    def where(self, path: Sequence[PathStep], *, key: bool = False) -> str:
        """``file:line`` of the value (or key) at `path`."""
        return f"{self.path}:{self.line(path, key=key)}"

    def at(self, path: Sequence[PathStep]) -> Any:
        """The value at `path`.

        Raises:
            LookupError: there is none.
        """
        value = self.data
        for step in path:
            value = value[step]
        return value


def read_yaml(path: Path, *, expand_env: bool = False, secrets: Secrets | None = None) -> YamlFile:
    """Read one YAML document.

    Args:
        path: the file.
        expand_env: replace ``${NAME}`` and ``${NAME:-default}`` in values; ``$${`` is a literal ``${``.
        secrets: where ``${secret:scope/key}`` comes from, which is then replaced, too.

    Raises:
        ConfigurationError: not readable, not YAML, a key twice, a variable not set; with its line. Or it is
            larger or deeper than any such file has to be. Or a secret cannot be had.
    """
    try:
        with path.open("rb") as file:
            found = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigurationError("the file does not exist", code="file-missing", where=str(path)) from None
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}", code="file-unreadable", where=str(path)
        ) from None
    if len(found) > MAX_BYTES:
        raise ConfigurationError(
            f"the file is larger than {MAX_BYTES >> 20} MiB", code="yaml-content", where=str(path)
        )
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = found[: error.start].count(b"\n") + 1
        raise ConfigurationError("not UTF-8 text", code="yaml-syntax", where=f"{path}:{line}") from None
    return parse_yaml(
        text.replace("\r\n", "\n").replace("\r", "\n"), path, expand_env=expand_env, secrets=secrets
    )


def parse_yaml(
    text: str, path: Path, *, expand_env: bool = False, secrets: Secrets | None = None
) -> YamlFile:
    """As `read_yaml`, from text; `path` is what messages name.

    Raises:
        ConfigurationError: see `read_yaml`.
    """
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


def _syntax_error(error: MarkedYAMLError, path: Path) -> ConfigurationError:
    mark = error.problem_mark or error.context_mark
    where = str(path) if mark is None else f"{path}:{mark.line + 1}"
    message = " ".join(str(error.problem or error.context or "not valid YAML").split())
    if "'\\t'" in message:
        message = "a tab where YAML allows only spaces"
    return ConfigurationError(message, code="yaml-syntax", where=where)


def _content_error(path: Path, line: int, message: str) -> ConfigurationError:
    return ConfigurationError(message, code="yaml-content", where=f"{path}:{line}")


def _secret_error(path: Path, line: int, secret: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the secret {secret} cannot be read: {why}",
        code="secret-unreadable",
        where=f"{path}:{line}",
        remedy="correct scope and key, and let who runs this read the scope; outside of Databricks take the "
        "value from the environment: ${NAME}",
    )


class _BeyondBoundError(Exception):
    """The file is of a kind that nobody writes; nothing else that is wrong with it is looked for."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _TooDeepError(_BeyondBoundError):
    """Collections in collections, beyond `MAX_DEPTH`."""


class _TooManyError(_BeyondBoundError):
    """More values than `_MAX_NODES`, which only aliases of aliases can make."""


class _BoundedComposer(Composer):
    """Makes nodes of events, which the library does by recursion, down to a depth."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False  # YAML allows them; a warning would be printed amid our output
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As the library's, one level deeper."""
        if self._depth > MAX_DEPTH:
            line = self.parser.peek_event().start_mark.line + 1
            raise _TooDeepError(f"nested more than {MAX_DEPTH} levels deep", line)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Builder:
    """Turns nodes into plain values, noting lines and what is wrong."""

    def __init__(self, *, expand_env: bool, secrets: Secrets | None) -> None:
        self.values: dict[YamlPath, int] = {}
        self.keys: dict[YamlPath, int] = {}
        self.expanded: dict[YamlPath, tuple[tuple[str, str], ...]] = {}
        self.problems: list[Problem] = []
        self.withheld: list[tuple[int, str, str]] = []
        """Of secrets that cannot be had: line, name and reason."""
        self._secrets = secrets
        self._expand_env = expand_env
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: Node, path: YamlPath) -> Any:
        line = node.start_mark.line + 1
        self.values[path] = line
        self._count += 1
        if self._count > _MAX_NODES:
            raise _TooManyError(f"its aliases make more than {_MAX_NODES:,} values of it", line)
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
        """Whether a node's tag says no more than what its text is; another one is a problem."""
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
                self.problems.append(Problem(line, f"key {key!r} stands twice (first at line {first})"))
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
            self.problems.append(Problem(line, "half of a character (a surrogate), which no text may hold"))
            return None
        if self._expand_env and "$" in text:
            expanded = self._expand(text, path, line)
            if expanded != text:
                return expanded
        if node.style is not None or str(node.tag) == _TAG + "str":
            return text
        if len(text) > _MAX_DIGITS and (_INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text)):
            self.problems.append(Problem(line, f"a number of {len(text):,} digits (put text in quotes)"))
            return None
        return _plain(text)

    def _expand(self, text: str, path: YamlPath, line: int) -> str:
        taken: list[tuple[str, str]] = []

        def value(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if match["secret"] is not None and self._secrets is not None:
                taken.append((self._secret(match["secret"], line), match[0]))
                return taken[-1][0]
            if name is None and match["bad"] is None and match["secret"] is None:
                return "$"  # "$${" stands for "${"
            if name is None:
                self.problems.append(Problem(line, f"a malformed ${{…}} (expected {self._expected()})"))
                return ""
            found = os.environ.get(name)
            if found is None and default is None:
                self.problems.append(Problem(line, f"environment variable {name} is not set"))
                return ""
            if not found and default is not None:
                return default
            taken.append((found or "", match[0]))
            return found or ""

        expanded = _VARIABLE.sub(value, text)
        if taken:
            self.expanded[path] = tuple(taken)
        return expanded

    def _secret(self, name: str, line: int) -> str:
        assert self._secrets is not None  # noqa: S101 - asked before
        if self.withheld:  # asking again would take as long, and say the same
            return ""
        try:
            return self._secrets(name)
        except LookupError as error:
            self.withheld.append((line, name, str(error)))
            return ""

    def _expected(self) -> str:
        known = "${NAME} or ${NAME:-default}"
        return known if self._secrets is None else f"{known} or ${{secret:scope/key}}"


def _plain(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text
