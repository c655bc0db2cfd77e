"""The pages hold together: every link leads somewhere, and the index names every page."""

import re
import tokenize
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


RULES = ROOT / "docs" / "replication.md"
_RULE = re.compile(r"\b[BCEFILOR]\d{1,2}\b")  # as B5


def comments(source: Path) -> str:
    """The comments and strings of a module."""
    with source.open("rb") as file:
        tokens = tokenize.tokenize(file.readline)
        return " ".join(
            it.string for it in tokens if it.type in (tokenize.COMMENT, tokenize.STRING)
        )


def test_every_rule_that_the_code_names_has_a_heading() -> None:
    headings = re.findall(r"^### (\w+): ", RULES.read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    named = {
        (rule, source.name)
        for folder in ("broker", "kafka", "metadata", "replication", "storage")
        for source in (ROOT / "src" / "penstock" / folder).rglob("*.py")
        for rule in _RULE.findall(comments(source))
    }
    assert named
    assert {(rule, name) for rule, name in named if rule not in headings} == set()
