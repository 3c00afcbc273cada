"""Every relative link leads to a file and a heading, every page can be found, no picture is big."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import DOCS, PAGES, ROOT, anchors, name_of, prose

INDEXES = (DOCS / "index.md", DOCS / "adr" / "README.md")
MAX_PICTURE_BYTES = 150_000


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{name_of(page)}: {link}"
        assert target.is_file(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(target), f"{name_of(page)}: {link}"


def test_every_page_is_in_an_index() -> None:
    listed = {
        (index.parent / link.partition("#")[0]).resolve()
        for index in INDEXES
        for link in links(index)
    }
    assert [name_of(page) for page in PAGES if page not in {*listed, INDEXES[0]}] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_two_headings_of_a_page_make_the_same_anchor(page: Path) -> None:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    assert len(anchors(page)) == len(headings)


def test_pictures_are_small() -> None:
    pictures = list(DOCS.rglob("*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < MAX_PICTURE_BYTES, name_of(picture)
