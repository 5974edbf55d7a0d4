"""`smelt` and ``python -m deltasmelt``: the command from its first moment on.

Loading the command line's modules takes a fraction of a second. Until then nothing can handle an
interruption: Ctrl-C would print a traceback. So it just ends the process meanwhile, as by default.

The first process of a container has no defaults: the kernel drops a signal that it does not handle. Without
a handler of ours, a container that is stopped in its first second would run until it is killed.
"""

from __future__ import annotations

import os
import signal
import threading


def main() -> None:
    """Load the command, then run it."""
    ours = threading.current_thread() is threading.main_thread()
    if ours and os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deltasmelt.pipelines.cli import main as run  # noqa: PLC0415 - not before the line above

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _end(number: int, _: object) -> None:
    """What the default does to any other process."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
