"""The documents in the pages are valid: each fits the demo's tables."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from pydantic import SecretStr

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.gold.language.document import parse_document
from deltasmelt.gold.tree.check import checked_tree
from deltasmelt.pipelines.init.catalog import read_catalog
from deltasmelt.pipelines.private import conf_folder
from tests.docs.blocks import ROOT, blocks

DOCS = ROOT / "docs"


def yaml_of(page: str) -> list[str]:
    return [block.text for block in blocks(DOCS / page) if block.language == "yaml"]


def documents() -> dict[str, str]:
    """Return the whole documents of each page; the guide's steps form one document."""
    by_page = {
        f"{page}, {number}": block
        for page in ("gold.md", "gold-compared.md")
        for number, block in enumerate(yaml_of(page))
        if re.search("^document:", block, re.MULTILINE)
    }
    return {**by_page, "gold-guide.md": "".join(yaml_of("gold-guide.md"))}


@pytest.mark.postgres
def test_every_documented_document_fits_demo_tables(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute((conf_folder() / "demo" / "shop.sql").read_bytes())
    source = SourceSettings(dsn=SecretStr(database), slot="smelt", publication="smelt")
    with connect(source, application_name="test") as server:
        catalog = {described.name: described.table for described in read_catalog(server, source).described}
    texts = documents()
    assert len(texts) == 3
    for name, text in texts.items():
        document = parse_document(parse_yaml(text, Path(name)))
        assert checked_tree(document, catalog)[1] == [], name


def test_architecture_map_names_existing_files_and_functions() -> None:
    page = (DOCS / "architecture.md").read_text().split("## Where is")[1].split("##")[0]
    rows = re.findall(r"^\| [^|]+\| `([a-z_/]+\.py)` \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(rows) >= 15
    for file, names in rows:
        text = (DOCS.parent / file).read_text()
        for name in re.findall("`(\\w+)`", names):
            assert re.search(rf"^(def|class) {name}\b|^{name}\b", text, re.MULTILINE), (file, name)
