"""Examples can be pasted into a shell as they are: in the help, in errors and on the pages."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewise import cli
from tilewise.cli._verbs import VERBS
from tilewise.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
SOURCES = sorted(Path(cli.__file__).parent.rglob("*.py"))
_QUOTED = re.compile(r"(?<!\w)'[^'\n]*'|\"[^\"\n]*\"")  # no apostrophes
_BARE = re.compile(r"(?<![\w.])(?:\w+\.)*\w+=(?:\{|\[(?!ACTION))\S*")  # the shell would expand its braces or brackets


def bare_words(text: str) -> list[str]:
    """Return the overrides in a command that a shell would not pass on as they are."""
    return _BARE.findall(_QUOTED.sub("''", text))


def commands(page: Path) -> Iterator[str]:
    """Yield the blocks for a shell, and the commands within lines."""
    blocks = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
    text = page.read_text()
    for kind, block in blocks.findall(text):
        if kind in ("sh", "bash"):
            yield block
    yield from re.findall(r"`((?:tilewise|dvc|mlflow|make) [^`\n]+)`", blocks.sub("", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_pages_commands(page: Path) -> None:
    for command in commands(page):
        assert bare_words(re.sub(r"#.*", "", command)) == []
        if "\n" in command:
            subprocess.run(["bash", "-n"], input=command, text=True, check=True)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert bare_words(capsys.readouterr().out) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_errors_and_other_texts(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert bare_words(node.value) == [], f"{path.name}:{node.lineno}"


def test_what_counts_as_bare() -> None:
    assert bare_words("tilewise select problem={N:1} 'a=[1,2]' b=[1]") == ["problem={N:1}", "b=[1]"]
