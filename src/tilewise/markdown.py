"""Tables in Markdown, and pages with generated blocks, so that no figure in the documentation is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tilewise.errors import UsageError

_BLOCK = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Return a pipe table. The first `words` columns are aligned left, the others right."""
    rule = ["---" if i < words else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Replace the content of each block ``<!-- begin NAME -->`` ... ``<!-- end NAME -->`` that `blocks` names.

    Args:
        text: The page.
        blocks: New content by block name.

    Returns:
        The page with the new content.

    Raises:
        UsageError: The page lacks one of the blocks.
    """
    present = {match["name"] for match in _BLOCK.finditer(text)}
    if missing := sorted(set(blocks) - present):
        name = missing[0]
        raise UsageError(f"the page has no block {name}; add `<!-- begin {name} -->` and `<!-- end {name} -->`")

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{match[1]}{blocks[name].rstrip()}\n{match[3]}" if name in blocks else match[0]

    return _BLOCK.sub(replacement, text)
