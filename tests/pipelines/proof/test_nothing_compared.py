"""An empty comparison is no success: the message names the requested and the existing tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.verify.verify import Verification
from deltasmelt.pipelines.commands.comparing import Verified, documents_like
from deltasmelt.pipelines.proof.against_source import Proof
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.verify.compare import TableComparison
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from pathlib import Path


def pipeline_file(folder: Path, dsn: str, more: str = "") -> Path:
    """Write a pipeline file and a lake of two tables and a document, recorded from a different database."""
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: s, publication: s, tables: [public.*]}}\n"
        f"lake: {{path: ./lake}}\n{more}"
    )
    control = ControlTables(load_pipeline(file).lake_address())
    control.record_cut(Cut("silver", Lsn(1), None, {"orders": 1, "customers": 1}))
    control.record_cut(Cut("gold", Lsn(1), None, {"customer": 1}))
    return file


@pytest.mark.postgres
def test_a_database_without_a_table_of_the_pipeline(database: str, tmp_path: Path) -> None:
    process = smelt_here("verify", pipeline_file(tmp_path, database), folder=tmp_path)
    assert process.returncode == 1
    assert "nothing to compare: no table matches source.tables (public.*)" in process.stderr
    assert "silver has customers, orders" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_pattern_of_documents_that_matches_none(tmp_path: Path) -> None:
    (tmp_path / "d.yml").write_text("document: customer\nroot: public.customers\nfields: [id]\n")
    pipeline = load_pipeline(pipeline_file(tmp_path, "dbname=x", "gold: {documents: [d.yml]}\n"))
    assert documents_like(pipeline, "c*") == ["customer"]
    with pytest.raises(ConfigurationError, match=r"no document matches 'x\*'[\s\S]*available: customer"):
        documents_like(pipeline, "x*")
    pipeline = load_pipeline(pipeline_file(tmp_path, "dbname=x"))
    with pytest.raises(ConfigurationError, match=r"no document matches '\*'[\s\S]*available: none"):
        documents_like(pipeline, "*")


def test_a_sample_without_rows_and_documents() -> None:
    table = TableComparison("orders", "public.orders", 1, 0, 0, {}, ())
    document = Verification("customer", 1, 1, 0, {}, ())
    assert Verified(Proof(compared=[table]), [document], sample=None).problems() == []
    (problem,) = Verified(Proof(compared=[table]), [document], sample=0.1).problems()
    assert problem.startswith("nothing was compared: ")
    items = TableComparison("items", "public.items", 1, 1, 1, {}, ())
    assert Verified(Proof(compared=[table, items]), [], sample=0.1).holds
