"""The command `smelt`: whose packages these are, then `pipelines`.

It lies outside of `pipelines`, because a foreign package of that name would be imported in its place.
"""

from __future__ import annotations

from _deltasmelt.ours import exit_unless_ours


def main() -> None:
    """Run the command; one message where a foreign package is in the way."""
    exit_unless_ours()
    from pipelines.__main__ import main as run  # noqa: PLC0415 - not before the look

    run()
