"""Hostile YAML: one clear message for each kind of file within short time, and no code runs."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.config.yaml_file import MAX_BYTES, MAX_DEPTH
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.gold.language.document import load_document
from deltasmelt.pipelines.quality.suite_files import load_suite
from deltasmelt.pipelines.settings import load_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READERS: Final[dict[str, Callable[[Path], object]]] = {
    "pipeline": load_pipeline, "document": load_document, "suite": load_suite,
}  # fmt: skip
LAUGHS: Final = "a0: &a0 [x, x]\n" + "".join(
    f"a{each}: &a{each} [{', '.join([f'*a{each - 1}'] * 10)}]\n" for each in range(1, 12)
)
TOO_DEEP: Final = f"nested more than {MAX_DEPTH} levels deep"
HOSTILE: Final = {
    "billion laughs": (LAUGHS, "aliases expand to more than 100,000 values"),
    "deep lists": ("[" * 100_000, TOO_DEEP),
    "deep mappings": ("{" * 100_000, TOO_DEEP),
    "deep blocks": ("".join(" " * each + "a:\n" for each in range(400)), TOO_DEEP),
    "deep dashes": ("- " * 5000 + "x", TOO_DEEP),
    "an alias of itself": ("a: &x [*x]", "an alias that contains itself"),
    "an object": ("a: !!python/object/apply:os.system ['touch ran']", "unknown tag !!python/object/apply"),
    "a name": ("a: !!python/name:os.system", "unknown tag !!python/name:os.system"),
    "a tag as a key": ("!!python/name:os.system a: 1", "unknown tag !!python/name:os.system"),
    "a renamed tag": (
        "%TAG ! tag:yaml.org,2002:python/\n---\na: !object/apply:os.system ['touch ran']",
        "unknown tag !!python/object/apply",
    ),
    "a tag of one's own": ("a: !include {file: /etc/passwd}", "unknown tag !include"),
    "bytes": ("a: !!binary aGVsbG8=", "unknown tag !!binary"),
    "a long number": ("a: " + "9" * 5000, "a number of 5,000 digits"),
    "half of a character": ('a: "\\ud800"', "an incomplete character"),
}


@pytest.fixture(params=sorted(READERS))
def read(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return READERS[request.param]


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_hostile_file_is_rejected_with_single_message(
    read: Callable[[Path], object], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, message = HOSTILE[kind]
    file = tmp_path / "hostile.yml"
    file.write_text(text, encoding="utf-8")
    began = time.monotonic()
    with pytest.raises(ConfigurationError) as caught:
        read(file)
    assert time.monotonic() - began < 20, "0.6 s on an idle machine"
    assert message in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
    assert caught.value.code == "yaml-content"
    assert f"{file}:" in str(caught.value.where)
    assert not (tmp_path / "ran").exists()


def test_oversized_file_is_not_read(read: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "huge.yml"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 34)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigurationError, match="larger than 1 MiB") as caught:
            read(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()
    assert caught.value.code == "yaml-content"


def test_what_people_write_is_far_from_the_bounds(tmp_path: Path) -> None:
    fields = "[id]"
    for _ in range(24):
        fields = f"[id, {{child: {{one: public.t, on: {{id: id}}, fields: {fields}}}}}]"
    file = tmp_path / "deep.yml"
    file.write_text(f"document: deep\nroot: public.t\nfields: {fields}\n", encoding="utf-8")
    assert load_document(file).name == "deep"


def test_reused_anchor_is_valid_yaml_without_output(tmp_path: Path) -> None:
    file = tmp_path / "anchors.yml"
    file.write_text("document: &x d\nroot: &x public.t\nfields: [id]\n", encoding="utf-8")
    assert load_document(file).name == "d"
