"""Show the README's quick start, guarantees and comparison on the site's home, without a second copy.

`docs/index.md` has one paragraph after `<!-- the README, from "A" up to "B" -->`. A code host shows the
paragraph, which links to the README. The site shows the README's sections from heading A up to heading B in
the paragraph's place.
"""

from __future__ import annotations

import re
from typing import Final

_PLACE: Final = re.compile(
    r'^<!-- the README, from "([^"]+)" up to "([^"]+)" -->\n\n?(?:.+\n)+', re.MULTILINE
)
_LINK: Final = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


def with_readme(index: str, readme: str) -> str:
    """Return the home's Markdown with the README's sections.

    Raises:
        ValueError: the home names no sections, or the README lacks one of them.
    """
    place = _PLACE.search(index)
    if place is None:
        raise ValueError("docs/index.md does not say which sections of the README belong to the home")
    begin, end = (readme.index(f"\n## {heading}\n") for heading in place.groups())
    shown = _LINK.sub(lambda found: f"]({_from_docs(found[1])})", readme[begin:end])
    return index[: place.start()] + shown.strip() + "\n" + index[place.end() :]


def _from_docs(target: str) -> str:
    """Return a link's target relative to `docs/` instead of the repository's root."""
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
