"""A new file in an object store, sent by one request where it is small.

Arrow's stream to a store starts a multipart upload, sends a part and completes it: three requests, whatever
the size. Most commits of the stream are of some KiB. So what is written is held in memory up to a size, and
put when the file is closed. Only a file that outgrows that is sent in parts.

Nothing of a file that is held is in the store before it is closed. Its name is used by nobody else, so the
put needs no condition, and may be repeated where its answer was lost.
"""

from __future__ import annotations

from functools import partial

from bronze.lake import objects


class Upload:
    """A file that is being written to a store, as Arrow's writers take it.

    Args:
        uri: location of the table.
        name: of the file, below it; new.
        held: bytes up to which it is put by one request; also of a larger file's parts.

    Raises:
        OSError: from each method: the store cannot be reached, or refuses.
    """

    def __init__(self, uri: str, name: str, held: int) -> None:
        self._held = held
        self._size = 0
        self.closed = False
        self._failures = partial(objects.as_os_error, f"{name} was not written")
        with self._failures():
            self._file = objects.open_writer(uri, name, held)

    def write(self, data: bytes) -> int:
        """Take the next bytes."""
        self._size += len(data)  # before: a write that fails may have begun to send parts
        with self._failures():
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Bytes that were written."""
        return self._size

    def flush(self) -> None:
        """Nothing: a store shows a file when it is whole."""

    def close(self) -> None:
        """The file is whole, and is in the store when this returns."""
        if not self.closed:
            self.closed = True
            with self._failures():
                self._file.close()

    def give_up(self) -> None:
        """Send nothing of a file that is held; one of which parts were sent is there then, to be removed.

        Parts of which no file was made would stay in the store, unseen.
        """
        if self._size >= self._held:
            self.close()
        self.closed = True
