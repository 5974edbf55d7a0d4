"""Makes an idle stream reach a wanted position: by asking, then by a message of our own in the log.

The server says how far it has read only now and then, and on an idle server its log may end exactly where it
is wanted to pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.postgres.connection import connect, translated
from bronze.postgres.heartbeat import write_heartbeat

if TYPE_CHECKING:
    from bronze.config.sections import SourceSettings
    from bronze.stream.receiver import Receiver

_FIRST_SECONDS: Final = 0.01
_DOUBLINGS: Final = 16
"""Bound of the growth of waits: a server that decodes for hours is pushed a million times."""


class Nudge:
    """What was done so far to make one session's stream go on.

    The first waits are short. A server with nothing to send answers in a millisecond, and a job that finds
    nothing to do ends that much earlier.

    Args:
        source: the server.
        receiver: of the stream.
    """

    def __init__(self, source: SourceSettings, receiver: Receiver) -> None:
        self._source = source
        self._receiver = receiver
        self._pushes = 0

    @property
    def patience(self) -> float:
        """Seconds to wait for something to come before the next push."""
        return min(self._source.timing.target_poll, _FIRST_SECONDS * 2.0 ** min(self._pushes, _DOUBLINGS))

    def push(self) -> None:
        """Ask for a keepalive; at the third time write a message, once.

        Raises:
            SmeltError: the server cannot be asked.
        """
        self._pushes += 1
        if self._pushes == 3:  # asked twice in vain
            patience = self._source.timing.watch_answer
            with connect(self._source, patience=patience) as connection, translated(self._source):
                write_heartbeat(connection, "until")
        self._receiver.ask()
