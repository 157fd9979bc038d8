"""Settings of the documentation site; `make site` builds it. The pages are the Markdown files of the repository."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]

from normscale import __version__  # noqa: E402

project = "normscale"
author = "the normscale authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_extension"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # site_extension writes a notebook as Markdown
root_doc = "docs/index"
include_patterns = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "docs/*.md",
    "docs/howto/*.md",
    "docs/notebooks/*.ipynb",
]
exclude_patterns = [".*", "build", "dist", "docs/results", "run", "runs", "site", "src", "tests", "tools"]

myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False
highlight_language = "text"  # a block without a language is a command and what it prints
suppress_warnings = ["myst.header", "ref.python"]  # a page may skip a level; (n, n_classes) is a shape, not a name

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": "name, title, paper, cost, parameters, settings",  # the cards have them
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = "normscale"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
