"""A pipeline of two tables and a document with a lake in an object store, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.object_store import lake_text
from tests.pipelines.processes import ROOT, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

DOCUMENT: Final = """
document: customer
root: public.customers
fields:
  - id
  - name
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, total]}
"""
_JOB: Final = """
import json, sys
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.cli import main
from deltasmelt.pipelines.spark.session import spark_session
root, options, settings = map(json.loads, sys.argv[1:])
spark = spark_session(settings, lake=in_store(root, options))
for line in sys.stdin:
    try:
        main(json.loads(line))
        code = 0
    except SystemExit as end:
        code = end.code
    print(f"\\n{code} is how it ended", flush=True)
"""
"""A program that runs commands in turn in a single process and session, like the tasks of a job."""


def pipeline_in(
    folder: Path, database: str, slot: str, options: Mapping[str, str], *, more: str = ""
) -> Path:
    """Write the pipeline file, with leases of four seconds."""
    (folder / "customer.yml").write_text(DOCUMENT)
    file = folder / "shop.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {slot}, publication: smelt}}\n"
        f"{lake_text('s3://lake/shop', options, lease=4)}gold: {{documents: [customer.yml]}}\n{more}"
    )
    return file


def smelt(folder: Path, *arguments: str | Path) -> str:
    """Return the output of a command that must succeed."""
    with Command(*arguments, folder=folder) as command:
        assert command.wait() == 0, command.text()
        return command.text()


@contextmanager
def job(options: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[Callable[..., str]]:
    """Start a process for commands; yield a function that runs a command and returns its output."""
    arguments_json = map(json.dumps, ("s3://lake/shop", dict(options), dict(settings)))
    pipe, output = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        [sys.executable, "-c", _JOB, *arguments_json],
        stdin=pipe,
        stdout=pipe,
        stderr=output,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, heard = process.stdin, process.stdout

        def run(*arguments: str | Path) -> str:
            requests.write(json.dumps([str(argument) for argument in arguments]) + "\n")
            requests.flush()
            text = ""
            for line in heard:
                if line.endswith(" is how it ended\n"):
                    assert line.startswith("0 "), text
                    return text
                text += line
            raise AssertionError(text)

        try:
            yield run
        finally:
            process.kill()
