"""Search for texts in every file of a local lake: rows, dictionaries, footers, statistics, logs, checkpoints.

A Parquet file is searched twice. Its bytes show footers, statistics and everything else that is not
compressed; its decoded columns show all values, at any depth. Every other file is searched by its bytes. A
log entry holds statistics as JSON within JSON, so each text is also searched in its escaped spellings.
Statistics may have only the begin of a value, so the begin of a long text is a text of its own.

The cost hardly depends on the number of texts: one pass over the bytes compares the hash of each position's
four bytes with the texts' begins, and only few positions need a closer look. Of some ten thousand different
begins on, these positions decide: 8 MB of random letters took 0.03 CPU s with 10 texts, 0.16 with 10,000, and
1.5 with 100,000. Files are read in pieces,
Parquet files by row group and column.

A value may be a word that Delta or the pipeline also uses: the name of a column or of an operation. So of a
log entry only fields that come from rows count (`_VALUES`), and of a Parquet file not the names of columns.

The search knows texts alone. Numbers and times, which files hold in binary form, are no texts: callers prove
their removal by the rows.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.parquet import file_system

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyarrow.fs import FileInfo

SHORTEST: Final = 6
"""Least number of characters of a searched text; shorter texts stand in unrelated values, too."""
_LONGEST: Final = 200
"""Number of characters by which a longer text is searched."""
_IN_STATISTICS: Final = 32
"""Number of characters of a text that Delta and Parquet keep in statistics at least."""
_WITHOUT_LETTERS: Final = 12
"""Least length of a searched text without letters: short numbers stand in logs as sizes and times."""
_INNER: Final = re.compile(r'[{}()\[\]",\\]+')
_PIECE: Final = 1 << 20
"""Number of bytes that are read and searched at once."""
_BITS: Final = 20
_FACTOR: Final = np.uint32(2654435761)
_VALUES: Final = frozenset(
    {
        "stats",
        "stats_parsed",
        "partitionValues",
        "partitionValues_parsed",
        "predicate",
        "userMetadata",
        "path",
    }
)
"""Fields of a log entry that come from rows; all others have words of Delta, schema or pipeline."""
_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"
"""Entry of a Parquet footer in which Spark repeats the schema."""
_KINDS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
UNREADABLE: Final = ""
"""Stands for the unknown texts of a Parquet file that Arrow cannot decode."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A file that holds some of the texts."""

    path: str
    texts: frozenset[str]


def searchable(texts: Iterable[str]) -> set[str]:
    """Return the texts that can be searched for, with the parts of arrays, composites and JSON. Pure."""
    found = set()
    for text in texts:
        for part in (text, *_parts(text)):
            plain = part.strip()
            if len(plain) >= (SHORTEST if re.search(r"[^\W\d_]", plain) else _WITHOUT_LETTERS):
                found |= {plain[:_LONGEST], plain[:_IN_STATISTICS]}
    return found


def _parts(text: str) -> Iterator[str]:
    """Yield the texts in an array, a composite or JSON; names of JSON fields are no values."""
    if text[:1] in set('{(["'):
        try:
            yield from _strings(json.loads(text))
        except (ValueError, RecursionError):
            yield from _INNER.split(text)


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, without the names of fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def values_of(actions: Any) -> bytes:
    """Return the values in actions of a log that come from rows, without names of columns. Pure."""
    return "\0".join(_from_rows(actions)).encode()


def _from_rows(value: Any) -> Iterator[str]:
    if isinstance(value, list | dict):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if name not in _VALUES:
                yield from _from_rows(item)
            elif isinstance(item, str) and item[:1] == "{":  # statistics are JSON within JSON
                yield from _strings(json.loads(item))
            else:
                yield from _strings(item)


def spellings(text: str) -> set[bytes]:
    r"""Return the bytes of a text in files: as UTF-8, in JSON, in JSON within JSON, and a bytea's bytes."""
    forms = {text}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=plain)[1:-1] for form in forms for plain in (True, False)}
    found = {form.encode() for form in forms}
    if text.startswith(r"\x"):
        with suppress(ValueError):
            found.add(bytes.fromhex(text[2 : len(text) // 2 * 2]))
    return {form for form in found if len(form) >= SHORTEST}


class Search:
    """A search for texts."""

    def __init__(self, texts: Collection[str]) -> None:
        # by first bytes and length, the texts of the forms
        self._forms: dict[bytes, dict[int, dict[bytes, str]]] = defaultdict(lambda: defaultdict(dict))
        for text in texts:
            for form in spellings(text):
                self._forms[form[:SHORTEST]][len(form)][form] = text
        self._begins = np.zeros(1 << _BITS, np.bool_)
        for begin in self._forms:
            self._begins[_hashes(begin[:4], 0)] = True
        self._longest = max((size for sizes in self._forms.values() for size in sizes), default=SHORTEST)

    def in_bytes(self, data: bytes | memoryview | pa.Buffer) -> set[str]:
        """Return the texts in bytes."""
        view, found = memoryview(data).cast("B"), set[str]()
        for start in range(0, len(view), _PIECE):
            piece = bytes(view[start : start + _PIECE + self._longest])
            for offset in range(4):
                for word in np.flatnonzero(self._begins[_hashes(piece, offset)]).tolist():
                    position = 4 * word + offset
                    for size, forms in self._forms.get(piece[position : position + SHORTEST], {}).items():
                        text = forms.get(piece[position : position + size])
                        found |= set() if text is None else {text}
        return found

    def in_file(self, root: str, path: str) -> set[str]:
        """Return the texts in a file: in its bytes and, for Parquet, in its values; see `UNREADABLE`.

        A file that another process has removed holds none.

        Raises:
            OSError: the file cannot be read.
        """
        in_log = "_delta_log" in PurePosixPath(path).parts
        try:
            found = perform(Effect.READ_FILE, f"{root}/{path}", lambda: self._in_pieces(root, path))
            if path.endswith(".parquet"):
                return self._in_parquet(root, path, found, in_log=in_log)
            if found and in_log:
                with file_system(root).open_input_file(path) as file, suppress(ValueError):
                    lines = file.readall().splitlines()
                    return self.in_bytes(values_of([json.loads(line) for line in lines]))
        except FileNotFoundError:
            return set()
        return found

    def _in_pieces(self, root: str, path: str) -> set[str]:
        found, before = set[str](), b""
        with file_system(root).open_input_file(path) as file:
            while piece := file.read(_PIECE):
                found |= self.in_bytes(before + piece)
                before = (before + piece)[-self._longest :]
        return found

    def _in_parquet(self, root: str, path: str, in_bytes: set[str], *, in_log: bool) -> set[str]:
        """Return the texts in values, and those in other bytes that are no names of columns."""
        values, words = set[str](), set[str]()
        try:
            with file_system(root).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
                footer = parquet.schema_arrow
                paths = [parquet.schema.column(index).path for index in range(len(parquet.schema))]
                words |= self.in_bytes("\n".join(paths).encode())
                words |= self.in_bytes((footer.metadata or {}).get(_SCHEMA, b""))
                for group in range(parquet.num_row_groups):
                    for name in footer.names:
                        column = parquet.read_row_group(group, [name])
                        found = {text for array in column[0].chunks for text in self._in_array(array)}
                        if found and in_log:
                            words |= found
                            actions = column.to_pylist(maps_as_pydicts="lossy")
                            found = self.in_bytes(values_of(actions))
                        values |= found
        except FileNotFoundError:
            raise
        except (OSError, ValueError, pa.ArrowException):  # a damaged page is an OSError
            return in_bytes | {UNREADABLE}
        return values | (in_bytes - words)

    def _in_array(self, array: pa.Array) -> set[str]:
        """Return the texts in the values of an array; two neighbours in a buffer are no text."""
        found = set()
        for part in _texts_in(array):
            for text in self.in_bytes(part.buffers()[-1] or b""):
                if any(pc.any(pc.match_substring(part, form)).as_py() for form in _fitting(text, part.type)):
                    found.add(text)
        return found

    def in_lake(self, root: str, *, leaving_out: Collection[str] = ()) -> Iterator[Trace]:
        """Yield the files below a lake's root that hold texts; `leaving_out` has paths below the root."""
        for file in _files(root):
            path = PurePosixPath(file.path).as_posix()
            if file.is_file and path not in leaving_out:
                found = self.in_file(root, path)
                if found:
                    yield Trace(path, frozenset(found))


def size_of(root: str) -> int:
    """Return the bytes that a search of a lake reads at least."""
    return sum(file.size or 0 for file in _files(root))


def _files(root: str) -> list[FileInfo]:
    list_files = partial(file_system(root).get_file_info, FileSelector("", recursive=True))
    return list(perform(Effect.LIST_FILES, root, list_files))


def _hashes(data: bytes, offset: int) -> np.ndarray:
    """Return a hash of each four bytes, from an offset on."""
    words = np.frombuffer(data, "<u4", max(len(data) - offset, 0) // 4, min(offset, len(data)))
    hashes: np.ndarray = (words * _FACTOR) >> np.uint32(32 - _BITS)
    return hashes


def _fitting(text: str, kind: pa.DataType) -> Iterable[str | bytes]:
    forms = spellings(text)
    return forms if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind) else _decoded(forms)


def _decoded(forms: Iterable[bytes]) -> Iterator[str]:
    for form in forms:
        with suppress(UnicodeDecodeError):
            yield form.decode()


def _texts_in(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays with all texts and bytes of a column, at any depth."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield from _texts_in(array.dictionary)
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _texts_in(child)
    elif pa.types.is_map(kind):
        yield from _texts_in(array.keys)
        yield from _texts_in(array.items)
    elif pa.types.is_nested(kind):
        yield from _texts_in(array.flatten())
    elif any(is_kind(kind) for is_kind in _KINDS):
        yield array
