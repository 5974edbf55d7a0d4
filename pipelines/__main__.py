"""`smelt` and ``python -m pipelines``: the command from its first moment on.

Loading what reads the command line takes a fraction of a second, and nothing there could tell what an
interruption is: Ctrl-C would print a traceback. Until then it just ends the process, as it does any other.
"""

from __future__ import annotations

import signal
import threading


def main() -> None:
    """Load the command, then run it."""
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pipelines.cli import main as run  # noqa: PLC0415 - not before the line above

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
