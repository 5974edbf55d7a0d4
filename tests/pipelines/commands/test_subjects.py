"""Keys of `smelt forget` at a real server: refused values, live rows, spellings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError
from deltasmelt.bronze.rules import hashed
from deltasmelt.bronze.shapes import PgType
from deltasmelt.pipelines.commands.subjects import subjects_of
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

if TYPE_CHECKING:
    from pathlib import Path

HASH_KEY = "a-key-of-hashes-in-this-lake"
TIME = PgType("base", "timestamptz")
PRICE = PgType("base", "numeric", typmod=524294)
SHAPES = [
    relation("codes", (("code", PgType("base", "varchar", typmod=9)),), ["code"], relation_id=1),
    relation("prices", (("price", PRICE), ("n", INT)), ["price", "n"], relation_id=2),
    relation("odd", (("a%b", TEXT),), ["a%b"], relation_id=3),
    relation("gone", (("id", INT),), ["id"], relation_id=4),
    relation("hidden", (("id", INT),), ["id"], relation_id=5),
    relation("paid", (("paid", PRICE), ("at", TIME)), ["paid", "at"], relation_id=6),
    relation("heirs", (("id", INT),), ["id"], relation_id=7),
]
CATALOG = {str(name): table for name, table in silver_catalog(SHAPES, SilverSettings()).items()}
STATEMENTS = """
CREATE TABLE codes (code varchar(5) PRIMARY KEY);
INSERT INTO codes VALUES ('ABCDE');
CREATE TABLE prices (price numeric(8,2), n int, PRIMARY KEY (price, n));
INSERT INTO prices VALUES (10.01, 1);
CREATE DOMAIN amount AS numeric(8,2);
CREATE TABLE paid (paid amount, at timestamptz, PRIMARY KEY (paid, at));
CREATE TABLE heirs (id int PRIMARY KEY);
CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (heirs);
INSERT INTO heir VALUES (1);
CREATE DOMAIN "text%s" AS text CHECK (VALUE <> 'refused');
CREATE TABLE odd ("a%b" "text%s" PRIMARY KEY);
INSERT INTO odd VALUES ('lives');
CREATE TABLE hidden (id int PRIMARY KEY);
INSERT INTO hidden VALUES (1);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY nobody ON hidden USING (false);
"""


@pytest.mark.postgres
@pytest.mark.parametrize("dsn", [16], indirect=True)
def test_keys_at_the_source(dsn: str, role: tuple[str, str], tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(STATEMENTS.encode())
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource:\n  dsn: '{dsn}'\n  slot: s\n  publication: p\n"
        f"  hash_key: {HASH_KEY}\n  columns: {{public.codes: {{code: hash}}}}\nlake: {{path: ./lake}}\n"
    )
    pipeline = load_pipeline(file)

    def code(table: str, *values: str) -> str:
        with pytest.raises(SmeltError) as raised:
            subjects_of(pipeline, CATALOG[f"public.{table}"], values)
        assert isinstance(raised.value, DefiniteError | ConfigurationError)
        return raised.value.code

    # A cast would cut or round the value, and name another row.
    assert code("codes", "ABCDEFG") == "erasure-key"
    assert code("prices", "10.005", "1") == "erasure-key"
    assert code("prices", "word", "1") == "erasure-key"
    assert code("odd", "refused") == "erasure-key"
    assert code("codes", "ABCDE") == "erasure-alive"
    assert code("prices", "10.01", "1") == "erasure-alive"
    assert code("prices", "10.01", "01") == "erasure-key"
    assert code("paid", "10.005", "2026-01-01 00:00:00+00") == "erasure-key"
    assert code("paid", "10.01", "2026-01-01 00:00:00.1234567+00") == "erasure-key"
    assert code("odd", "lives") == "erasure-alive"
    assert code("prices", "1.00", "1", "10.01", "1") == "erasure-alive"

    def found(table: str, *values: str) -> Any:
        return subjects_of(pipeline, CATALOG[f"public.{table}"], values)

    clear, hidden = ("XYZ",), (hashed("XYZ", HASH_KEY.encode()),)
    codes = found("codes", "XYZ")
    assert (codes.keys, codes.others, codes.clear) == ((hidden,), {clear}, {"XYZ"})
    prices = found("prices", "7.50", "2", "8.00", "3", "7.50", "2")
    assert prices.keys == (("7.50", "2"), ("8.00", "3"))
    assert len(prices.others) == 6  # one of two columns hashed, or both
    assert found("odd", "dead").keys == (("dead",),)
    assert found("heirs", "1").keys == (("1",),)  # only a table that inherits has the row
    # A policy hides the living row from the role.
    name, policed = role
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"GRANT SELECT ON hidden TO {name}".encode())
    file.write_text(file.read_text().replace(dsn, policed))
    pipeline = load_pipeline(file)
    assert code("hidden", "1") == "row-level-security"
    # The source has dropped the table.
    assert code("gone", "42") == "erasure-table"
