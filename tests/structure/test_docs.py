"""The pages in markdown: links lead somewhere, prose is wrapped, the front page is short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .allowed import ROOT
from .walk import Tree

WIDTH, FRONT_PAGE_WORDS = 100, 1450
TOPS = [ROOT / folder for folder in Tree(ROOT).folders if "/" not in folder]
PAGES = sorted([*ROOT.glob("*.md"), *(page for top in TOPS for page in top.rglob("*.md"))])


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_width(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    if "assets" not in page.parts:  # model cards, as the programs write them
        lines = [line for line in prose(page).splitlines() if not line.startswith("|")]
        assert [line for line in lines if len(line) > WIDTH] == []


def test_the_front_page_is_short() -> None:
    words = (ROOT / "README.md").read_text().split()
    assert sum(bool(word.strip("|-")) for word in words) <= FRONT_PAGE_WORDS  # no lines of tables
