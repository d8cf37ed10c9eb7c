"""The documentation site: `make docs` builds it into build/docs.

Sphinx reads from the root of the repository, so that a relative link which works on GitHub works on the site. The pages
are plain Markdown. The menu is made from docs/index.md: a link in one of its lists is a page of the menu.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import api_pages  # noqa: E402  # found by the path above

import partialsgd  # noqa: E402  # found by the path above

project = "partialsgd"
author = "The partialsgd authors"
version = release = partialsgd.__version__
root_doc = "docs/index"
include_patterns = ["docs/**", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"]
extensions = ["myst_nb", "sphinx.ext.autodoc"]
templates_path: list[str] = []

html_theme = "furo"
html_title = f"partialsgd {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_redirect"]
html_show_sourcelink = False
html_show_copyright = False  # the licence is in the repository

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"  # the notebooks are stored with their outputs; tests/test_notebooks.py runs them

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
add_module_names = False
autodoc_preserve_defaults = True  # "method=Method()" and not the value of each rule
maximum_signature_line_length = 88  # longer signatures have a line for each argument

LINK = re.compile(r"^- \[([^\]]+)\]\(([^)#\s]+)\)", re.MULTILINE)
OTHER_PAGES = "Guides"
"""The section of the menu that takes the pages of docs/ which docs/index.md does not name."""


def pages_of(listing: str) -> dict[str, str]:
    """The files that the list of a section links to, from the root of the repository, with the text of the link."""
    return {str((ROOT / "docs" / link).resolve().relative_to(ROOT)): text for text, link in LINK.findall(listing)}


def unnamed_pages(sections: dict[str, dict[str, str]]) -> list[str]:
    """The pages of docs/ that are in no section."""
    everything = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/notebooks/*.ipynb")]
    named = {"docs/index.md", *(page for pages in sections.values() for page in pages)}
    return sorted({str(page.relative_to(ROOT)) for page in everything} - named)


def menu(index: str) -> str:
    """One hidden toctree for each section of docs/index.md, with the pages that the section links to."""
    sections = {part.partition("\n")[0]: pages_of(part) for part in index.split("\n## ")[1:]}
    toctrees = []
    for caption, pages in sections.items():
        entries = [f"{text} </{page}>" for page, text in pages.items()]
        entries += [f"/{page}" for page in unnamed_pages(sections) if caption == OTHER_PAGES]
        toctrees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]))
    return "\n".join(toctrees)


def add_menu(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append what only the site needs; on GitHub these pages are complete without it."""
    if docname == "docs/index":
        source[0] += "\n" + menu(source[0])
    elif docname == "docs/methods/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    elif docname == "docs/api":
        source[0] += "\n" + api_pages.listing()


def pages_with_menus(app: Sphinx, env: object, added: object, changed: object, removed: object) -> list[str]:
    """The pages that are read again in every build: what `add_menu` appends depends on other files."""
    return ["docs/index", "docs/methods/README", "docs/api"]


def markdown_to_rst(line: str) -> str:
    """Docstrings mark code with single backticks, as in Markdown; reStructuredText wants two, and an escape for |x|."""
    text_and_code = line.split("`")
    text_and_code[::2] = [text.replace("|", "\\|") for text in text_and_code[::2]]
    return "``".join(text_and_code)


def rewrite_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = [markdown_to_rst(line) for line in lines]


def setup(app: Sphinx) -> None:
    api_pages.write(ROOT / "docs" / "api")
    app.connect("env-get-outdated", pages_with_menus)
    app.connect("source-read", add_menu)
    app.connect("autodoc-process-docstring", rewrite_docstring)
