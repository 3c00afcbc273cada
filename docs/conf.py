"""The site: `make docs` makes it of the pages, as they are, and of the docstrings.

The pages are plain Markdown that reads as well in a repository. So no page has a directive for its
menu: the menu is what docs/index.md and docs/adr/README.md list.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from sphinx.application import Sphinx

ROOT_PAGE = "docs/index"
DECISIONS = "docs/adr/README"

project = "Holdfast"
author = "the authors of Holdfast"
html_title = "Holdfast"
root_doc = ROOT_PAGE
include_patterns = ["*.md", "docs/*.md", "docs/adr/*.md", "docs/how-to/*.md"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4  # as in a repository: `queue.md#options`
default_role = "code"
nitpicky = False  # types of others are not here to be linked to

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True

html_theme = "furo"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
html_additional_pages = {"index": "redirect.html"}
templates_path = ["."]
html_theme_options = {"navigation_with_keys": True}

_ROW = re.compile(r"^(\w[\w, ]*?) {2,}(\S.*)$")


def _menu(app: Sphinx, name: str, source: list[str]) -> None:
    """Add what a page lists to the menu: the links of each section, or of its table."""
    if name not in (ROOT_PAGE, DECISIONS):
        return
    folder = PurePosixPath(name).parent
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE):
        heading, _, text = section.partition("\n")
        found = re.findall(r"^(?:- |\| )\[([^\]]+)\]\(([^)#]+)\.md\)", text, re.MULTILINE)
        if name == DECISIONS:
            found = [(None, page) for _, page in found]
        entries = [
            f"{title} <{_from(folder, page)}>" if title else _from(folder, page)
            for title, page in found
        ]
        if entries:
            caption = heading if name == ROOT_PAGE else "Decisions"
            lines = [
                "",
                "```{toctree}",
                ":hidden:",
                f":caption: {caption}",
                "",
                *entries,
                "```",
                "",
            ]
            source[0] += "\n".join(lines)


def _from(folder: PurePosixPath, page: str) -> str:
    return f"/{page.removeprefix('../')}" if page.startswith("../") else f"/{folder / page}"


def _arguments(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Make a list of a table of arguments: lines of a name, two spaces or more, and what it is."""
    shown: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        rows = paragraph.splitlines()
        if rows and _ROW.match(rows[0]):
            for row in rows:
                named = _ROW.match(row)
                shown += [f"``{named[1]}``", f"    {named[2]}"] if named else [f"    {row.strip()}"]
        elif rows and rows[0].startswith(" "):  # a drawing, or code
            shown += ["::", "", *rows]
        else:
            shown += rows
        shown.append("")
    lines[:] = shown


def setup(app: Sphinx) -> None:
    """Tell Sphinx about the two functions above."""
    app.connect("source-read", _menu)
    app.connect("autodoc-process-docstring", _arguments)
