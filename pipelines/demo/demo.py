"""`smelt demo`: carry a live shop on its own PostgreSQL through every layer, and print a summary.

The demo is the product itself: the same supervisor as `smelt run`, a pipeline file in the demo's folder for
every other command, the same quality run. Only the server and the shop's workload belong to the demo alone.

The demo starts from scratch each time: the demo empties the folder of an earlier demo (known by its marker
file), and refuses any other non-empty folder. Any end of the demo removes the embedded server and its data.
On a given server, the demo creates a new database and drops the database at the end. The lake stays, and can
be read without a server.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.pipelines.demo.show import show
from deltasmelt.pipelines.demo.summary import print_summary
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import Failure, without_secrets
from deltasmelt.pipelines.terminal.interrupts import terminable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_MARKER: Final = ".smelt-demo"
_DSN: Final = "SMELT_DEMO_DSN"
_PLACEHOLDER: Final = "${SMELT_DEMO_DSN:-postgresql://postgres@127.0.0.1:5432/shop}"


def run_demo(output: Output, *, folder: Path, seconds: float, rate: float, dsn: str | None = None) -> None:
    """Run the demo.

    Raises:
        SmeltError: the reason for the demo's end.
        Failure: the lake does not equal the source.
    """
    folder = folder.expanduser().absolute()
    start = time.monotonic()
    empty_folder(folder, output)
    with terminable(), shop_database(output, dsn) as shop:
        pipeline = _write_files(folder, shop)
        summary = show(pipeline, shop, output, seconds=seconds, rate=rate)
    print_summary(summary, pipeline, output, seconds=time.monotonic() - start)
    if not summary.equal:
        raise Failure("the lake does not equal the source: this is a bug, please report it")


@contextmanager
def shop_database(output: Output, dsn: str | None) -> Iterator[str]:
    """Create and fill the shop's database, yield its DSN, and drop the database at the end.

    Raises:
        ConfigurationError: the given server is unusable.
    """
    if dsn is None:
        output.report("starting an embedded PostgreSQL 16 …")
        with EmbeddedServer(reach="socket") as server:
            _seed(server.dsn(), "shop")
            yield server.dsn("shop")
        return
    name = f"smelt_demo_{uuid.uuid4().hex[:8]}"
    output.report(f"creating the database {name} on your server; the demo drops it at the end")
    try:
        _seed(dsn, name)
    except psycopg.Error as error:
        raise ConfigurationError(
            without_secrets(str(error)).strip(),
            code="demo-dsn",
            where="--dsn",
            remedy="use a server with wal_level=logical and a role that may create databases and replicate",
        ) from None
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        _drop(dsn, name)


def _seed(dsn: str, database: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"'.encode())
    with psycopg.connect(dsn, dbname=database, autocommit=True) as connection:
        connection.execute((conf_folder() / "demo" / "shop.sql").read_bytes())


def _drop(dsn: str, database: str) -> None:
    """Drop the demo's database and slot; nothing else on the server changes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(50):  # the walsender needs a moment to notice that the reader is gone
            busy = connection.execute(
                "SELECT 1 FROM pg_replication_slots WHERE database = %s AND active", [database]
            ).fetchone()
            if busy is None:
                break
            time.sleep(0.1)
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            [database],
        )
        connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)'.encode())


def empty_folder(folder: Path, output: Output) -> None:
    """Make the demo's folder, or empty the folder of an earlier demo.

    Raises:
        ConfigurationError: the folder holds files of no demo.
        DefiniteError: another demo runs in the folder.
    """
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise ConfigurationError(
                "the folder is not empty, and no demo created it",
                code="demo-folder",
                where=str(folder),
                remedy="choose another folder with --folder",
            )
        with lake_lock(Lake(path=str(folder / "lake")), ("bronze",), command="smelt demo"):
            output.report(f"removing the files of an earlier demo in {folder}")
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()


def _write_files(folder: Path, dsn: str) -> Pipeline:
    """Write the pipeline file, documents and expectations into the demo's folder."""
    source = conf_folder() / "demo"
    for name in ("documents", "expectations"):
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
    # The file has the address without the password; only the demo's own processes get the password.
    public = {key: value for key, value in conninfo_to_dict(dsn).items() if key != "password"}
    text = (source / "pipeline.yml").read_text(encoding="utf-8")
    text = text.replace(_PLACEHOLDER, f'"${{{_DSN}:-{make_conninfo("", **public)}}}"')
    if public["dbname"] != "shop":  # slots belong to the whole server: use an unused name
        text = text.replace("smelt_shop", str(public["dbname"]))
    (folder / "pipeline.yml").write_text(text, encoding="utf-8")
    os.environ[_DSN] = dsn
    os.environ.setdefault("SMELT_LOGS", str(folder / "logs"))
    return load_pipeline(folder / "pipeline.yml")
