"""`smelt` and ``python -m pipelines``: the command from its first moment on.

Loading the command line's modules takes a fraction of a second. Until then nothing can handle an
interruption: Ctrl-C would print a traceback. So it just ends the process meanwhile, as by default.
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
