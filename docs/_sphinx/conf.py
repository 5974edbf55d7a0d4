"""Configure the site of `make docs`: MyST reads the pages, Furo shows pages, Sphinx searches them offline.

The pages are plain Markdown, as a code host shows Markdown. This file adds the parts that only the site
needs, while Sphinx reads the pages. A link out of `docs/` becomes the file's name, because a reader may use
the built site offline. `offline` ends the build if a page would load anything from a foreign host.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.sql import PostgresLexer
from sphinx.highlighting import lexers

sys.path.insert(0, str(Path(__file__).parent))
from contents import with_navigation
from home import with_readme
from offline import foreign_resources, without_outward_links

lexers["sql"] = PostgresLexer()  # the standard lexer fails at $$

project = "deltasmelt"
author = "the authors of deltasmelt"
extensions = ["myst_parser"]
myst_heading_anchors = 3
root_doc = "index"
exclude_patterns = ["_sphinx", "film"]
highlight_language = "none"
nitpicky = True

html_theme = "furo"
html_title = "deltasmelt"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_baseurl = ""
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#9a5320", "color-brand-content": "#9a5320"},
    "dark_css_variables": {"color-brand-primary": "#e0a066", "color-brand-content": "#e0a066"},
}

_ERRORS = "errors/README"
_ROOT = Path(__file__).parents[2]


def _read(_app: Any, name: str, source: list[str]) -> None:
    """Give pages their contents, the home its text; name files outside of `docs/` without a link."""
    text = source[0]
    if name == root_doc:
        text = with_readme(text, (_ROOT / "README.md").read_text(encoding="utf-8"))
    text = with_navigation(text)
    if name == _ERRORS:
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n[a-z]*\n```\n"
    source[0] = without_outward_links(name, text)


def _stay_offline(app: Any, failure: Exception | None) -> None:
    """End the build if a page loads something from a foreign host.

    Raises:
        SystemExit: names the pages and the addresses that the pages load.
    """
    if failure is None and (found := foreign_resources(Path(app.outdir))):
        raise SystemExit("the site must load nothing from elsewhere:\n" + "\n".join(found))


def setup(app: Any) -> None:
    """Connect both functions to the build."""
    app.connect("source-read", _read)
    app.connect("build-finished", _stay_offline)
