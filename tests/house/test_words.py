"""The pages say each thing once: few words outside the lab, each page has a place, and begins with its purpose.

The lab is the measured history, the section of that name in mkdocs.yml. Blocks of code, and the blocks that a command
fills, are not counted: other tests run the first and compare the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from house.sources import PAGES

ROOT = Path(__file__).parents[2]
DOCS = [page for page in PAGES if page.parent.name == "docs"]
MOST_WORDS = 25_000
MOST_LINES_OF_THE_README = 120
_GENERATED = re.compile(r"<!-- begin (.*?) -->.*?<!-- end \1 -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def words(text: str) -> int:
    """Count the words of a page, without code and generated blocks."""
    return sum(bool(re.search(r"\w", part)) for part in _CODE.sub("", _GENERATED.sub("", text)).split())


@cache
def sections() -> dict[str, list[str]]:
    """Return the pages of each part of the site, in their order."""
    text = (ROOT / "mkdocs.yml").read_text()
    nav: list[dict[str, Any]] = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    return {name: list(_pages(part)) for entry in nav for name, part in entry.items()}


def _pages(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _pages(inner)


def test_words_outside_the_lab() -> None:
    counts = {page.name: words(page.read_text()) for page in DOCS if page.name not in sections()["Lab"]}
    longest = sorted(counts.items(), key=lambda item: -item[1])[:5]
    assert sum(counts.values()) <= MOST_WORDS, f"the longest: {longest}; move what was measured to the lab"


def test_the_parts_have_their_order_and_every_page_has_a_place() -> None:
    assert list(sections()) == ["Start", "How-to", "Reference", "Explanation", "Lab"]
    placed = [page for pages in sections().values() for page in pages]
    assert len(placed) == len(set(placed))
    assert {page.name for page in DOCS} <= set(placed)


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_a_page_begins_with_its_purpose(page: Path) -> None:
    title, first = [line for line in page.read_text().splitlines() if line.strip()][:2]
    assert re.match(r"# \S", title)
    assert re.match(r"[A-Z`@*\[\w]", first), "a sentence that says what the page is for comes first"
    assert not first.startswith(("|", "```", "#", "- "))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_THE_README


def test_what_counts_as_a_word() -> None:
    assert words("# A title\n\n| a | - |\n```sh\nmake test\n```\n<!-- begin x -->\n1 2\n<!-- end x -->\nlast.") == 4
