"""Write a committed notebook as a page of the site: text, code, and the outputs of its last execution."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mkdocs_gen_files


def write_page(notebook: Path, page: str) -> None:
    """Write a notebook as a Markdown page, and its pictures beside it."""
    cells = json.loads(notebook.read_text())["cells"]
    parts = [part for number, cell in enumerate(cells) for part in _cell(cell, page.removesuffix(".md"), number)]
    parts.append("The notebook itself is `docs/notebooks/train.ipynb`; a test executes it.")
    with mkdocs_gen_files.open(page, "w") as file:
        file.write("\n\n".join(parts) + "\n")


def _cell(cell: dict[str, Any], stem: str, number: int) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source.replace("](../", "](")  # pages lie one folder above the notebook
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield from _output(output.get("data", {}), f"{stem}-{number}.png")


def _output(data: dict[str, Any], picture: str) -> Iterator[str]:
    if "image/png" in data:
        with mkdocs_gen_files.open(picture, "wb") as file:
            file.write(base64.b64decode(data["image/png"]))
        yield f"![{Path(picture).stem}]({Path(picture).name})"
    elif "text/html" in data:
        yield "".join(data["text/html"])
    elif "text/plain" in data:
        yield f"```text\n{''.join(data['text/plain'])}\n```"
