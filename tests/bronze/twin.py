"""A server whose files are copied and later restored: a restored disk, a clone, or a standby that lagged."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Literal

import psycopg

from tests.fix_postgres import CopiedServer

if TYPE_CHECKING:
    from pathlib import Path


class Twin:
    """A server, and a copy of its files from one moment that can replace the server.

    Args:
        folder: parent folder of the copy.
        version: major version of PostgreSQL.

    Attributes:
        server: the server that currently answers.
    """

    def __init__(self, folder: Path, version: Literal[16, 18] = 16) -> None:
        self.server = CopiedServer(version=version)
        self._copy = folder / "copy"
        self.server.start()

    def copy(self, *, running: bool = False) -> None:
        """Copy the server's files, either while the server is stopped or while it runs."""
        if running:
            self._copy_while_running()
            return
        self.server.stop()
        self._replace(self._copy, self.server.data)
        self.server.start()

    def _copy_while_running(self) -> None:
        """Copy the files with `pg_backup_start`, including the slots."""
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_backup_start('twin', true)")
            self._replace(self._copy, self.server.data)
            row = connection.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        assert row is not None
        wal = self.server.data / "pg_wal"
        for segment in wal.iterdir():  # what the server wrote while it was copied
            if segment.is_file():
                subprocess.run(["cp", "-a", str(segment), str(self._copy / "pg_wal")], check=True)
        label = self._copy / "backup_label"
        label.write_text(row[0])
        shutil.chown(label, self.server.data.stat().st_uid, self.server.data.stat().st_gid)
        (self._copy / "postmaster.pid").unlink(missing_ok=True)

    def put_back(self, *, promoted: bool = False) -> None:
        """Replace the server by the copy at the same address, unchanged or promoted from a standby."""
        self.server.stop("immediate")
        self._replace(self.server.data, self._copy)
        if promoted:
            signal_file = self.server.data / "standby.signal"
            signal_file.touch()
            shutil.chown(signal_file, self._copy.stat().st_uid, self._copy.stat().st_gid)
        self.server.start()
        if promoted:
            with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
                connection.execute("SELECT pg_promote(true)")

    def _replace(self, target: Path, source: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
