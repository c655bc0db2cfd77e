"""The pages hold together: every link leads somewhere, and the index names every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links(page: Path) -> set[Path]:
    """What the page points to in this repository."""
    found = _LINK.findall(page.read_text())
    return {(page.parent / link).resolve() for link in found if ":" not in link}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not link.exists()] == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    parts = ("benchmarks/README.md", "pipeline.md")  # they name the pages of their own directories
    named = links(index).union(*(links(ROOT / "docs" / part) for part in parts))
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index}
    assert pages - named == set()
