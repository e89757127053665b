"""Rewrite links that leave docs/, so that the same pages work in the repository and on the site."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)(#[^)]*)?\)")
_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to pages of the top folder at their copies; show other files by their path, without a link."""
    return _OUTSIDE.sub(_inside, markdown) if "](../" in markdown else markdown


def _inside(match: re.Match[str]) -> str:
    path, anchor = match[1], match[2] or ""
    return f"]({_PAGES[path]}{anchor})" if path in _PAGES else f"](#){{title='{path} in the repository'}}"
