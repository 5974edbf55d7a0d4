"""A pipeline of two tables and a document with a lake in an object store, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

from tests.object_store import lake_text
from tests.pipelines.processes import ROOT, Command

if TYPE_CHECKING:
    from collections.abc import Mapping
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
spark = spark_session(settings, lake=in_store(root, options), brief=True)
spark.range(1).count()
print("\\n0 is how it ended", flush=True)
for line in sys.stdin:
    word, *others = json.loads(line)
    try:
        if word == "append":
            rows = spark.sql("SELECT '%s' AS who, %s AS number" % (others[1], others[2]))
            rows.write.format("delta").mode("append").save(others[0])
        else:
            main([word, *others])
        code = 0
    except SystemExit as end:
        code = end.code
    print(f"\\n{code} is how it ended", flush=True)
"""
"""A program that runs commands in turn in a single process and session, like the tasks of a job.

The command ``append TABLE WHO NUMBER`` is the test's own: a commit of one row.
"""


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


class Job:
    """A process with a session for commands on the lake in a store.

    Args:
        options: the store's options.
        settings: settings of the session.
    """

    def __init__(self, options: Mapping[str, str], settings: Mapping[str, str]) -> None:
        arguments = map(json.dumps, ("s3://lake/shop", dict(options), dict(settings)))
        pipe, output = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(
            [sys.executable, "-c", _JOB, *arguments],
            stdin=pipe, stdout=pipe, stderr=output, cwd=ROOT, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.answer()
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # closes the pipes
            self.process.kill()

    def begin(self, *arguments: str | Path) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Wait for the end of a command, which must succeed; return the command's output."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            if line.endswith(" is how it ended\n"):
                assert line.startswith("0 "), text
                return text
            text += line
        raise AssertionError(text)

    def run(self, *arguments: str | Path) -> str:
        """Return the output of a command that must succeed."""
        self.begin(*arguments)
        return self.answer()
