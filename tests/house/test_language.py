"""Prose is plain: docstrings begin with a verb or a noun, and phrases that a newcomer must decipher do not occur."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from house.sources import PAGES, PYTHON, C, folders, name_of, tree_of

BANNED = re.compile(
    r"\b(is|are|was|were) none\b|\bof before\b|\banew\b|\bnobody\b|\bturn by turn\b|\bone of before\b"
    r"|\bwho(ever)? asks\b",
    re.IGNORECASE,
)
NOUN_CLAUSE = re.compile(r"(What|Who|Whether|Where|That|Which|How)\b")
WHAT_PER_1000_WORDS = 1.0


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text


def _messages(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of errors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            texts = [n.value for n in ast.walk(node.exc) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
            yield "".join(texts)


def _comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#! ")


@cache
def _prose(file: Path) -> tuple[str, ...]:
    if file == Path(__file__):  # names the phrases
        return ()
    source = file.read_text()
    if file.suffix == ".py":
        return (*_docstrings(tree_of(file)), *_comments(source), *_messages(tree_of(file)))
    if file.suffix == ".md":
        return (re.sub(r"```.*?```", "", source, flags=re.DOTALL),)
    return tuple(re.findall(r"/\*.*?\*/|//[^\n]*", source, flags=re.DOTALL))


@pytest.mark.long
@pytest.mark.parametrize("folder", folders([*PYTHON, *C, *PAGES]), ids=name_of)
def test_no_phrase_needs_deciphering(folder: Path) -> None:
    files = [file for file in (*PYTHON, *C, *PAGES) if file.parent == folder]
    found = [(file.name, m[0]) for file in files for text in _prose(file) for m in BANNED.finditer(text)]
    assert found == []


@pytest.mark.parametrize("folder", folders(PYTHON), ids=name_of)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: Path) -> None:
    texts = [(f.name, text) for f in PYTHON if f.parent == folder for text in _docstrings(tree_of(f))]
    assert [(name, text.splitlines()[0]) for name, text in texts if NOUN_CLAUSE.match(text)] == []


@pytest.mark.long
@pytest.mark.parametrize("folder", folders([*PYTHON, *C]), ids=name_of)
def test_what_is_rare(folder: Path) -> None:
    texts = [text for file in (*PYTHON, *C) if file.parent == folder for text in _prose(file)]
    words = [word for text in texts for word in re.findall(r"[A-Za-z']+", text)]
    count = sum(word.lower() == "what" for word in words)
    assert count <= max(1.0, WHAT_PER_1000_WORDS * len(words) / 1000)
