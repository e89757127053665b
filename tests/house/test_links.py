"""Links of the pages lead to files and headings that exist, in the repository and on the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"])
_LINK = re.compile(r"\]\(([^)\s]*)\)")
_GENERATED = ("reference/",)  # pages that only the site has


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs form them."""
    return frozenset(_slug(line.lstrip("# ")) for line in _prose(page).splitlines() if line.startswith("#"))


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(_prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:") or path.startswith(_GENERATED):
            continue
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_missing_page_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One thing\n[x](b.md) [y](#one-thing) [z](#another)\n```\n[in code](c.md)\n```\n")
    assert broken(tmp_path / "a.md") == ["b.md", "#another"]
