"""Tables in Markdown, and pages whose figures a command fills in, so that none is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tilewise.errors import UsageError

_BLOCK = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A pipe table; the first `words` columns are flush left, the others flush right."""
    rule = ["---" if i < words else "---:" for i in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with new content in each ``<!-- begin NAME -->`` ... ``<!-- end NAME -->`` that `blocks` names.

    Raises:
        UsageError: the page has no such block.
    """
    there = {match["name"] for match in _BLOCK.finditer(text)}
    if missing := sorted(set(blocks) - there):
        raise UsageError(f"the page has no block {missing[0]}: it needs `<!-- begin {missing[0]} -->` and its end")

    def filled(match: re.Match[str]) -> str:
        name = match["name"]
        return f"{match[1]}{blocks[name].rstrip()}\n{match[3]}" if name in blocks else match[0]

    return _BLOCK.sub(filled, text)
