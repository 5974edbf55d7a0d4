"""`smelt` and ``python -m deltasmelt``: the command from its first moment on.

Loading the command line's modules takes a fraction of a second. Meanwhile nothing can handle an interruption:
Ctrl-C would print a traceback. So an interruption just ends the process meanwhile, as by default.

The first process of a container has no default handlers: the kernel drops an unhandled signal. Without a
handler, a container stopped in its first second would run until SIGKILL.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading


def main() -> None:
    """Load the command, then run it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    in_main_thread = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if in_main_thread:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deltasmelt.pipelines.cli import main as run  # noqa: PLC0415 - not before the line above

    if in_main_thread:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise the interpreter's end first collects garbage among the objects of all loaded libraries, for up
    # to a second.
    atexit.register(gc.freeze)
    run()


def _end(number: int, _: object) -> None:
    """End the process, as the default handler does in any other process."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
