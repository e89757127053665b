"""Commands on the pages are accepted as they stand: verbs, actions, keys and values exist, and so do make's targets.

Each command of tilewise is composed with all checks of its keys; only the verb's work is left out, which would need
data, GPUs and hours. Words in capitals stand for files, folders and names.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import own_op
from cli.test_examples import PAGES, ROOT, commands
from synthetic import CONV
from tilewise.cli._request import parse
from tilewise.cli.compose import compose
from tilewise.cli.main import main
from tilewise.errors import TilewiseError
from tilewise.ops import OpDefinition

MAKE = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
_SWEPT = re.compile(r"=([^,\[{]+),.*")  # a sweep's values, of which the first composes
_TO_BE_ADDED = ("sm100",)  # archs that a page adds
_TARGET = re.compile(r"target=(?:TARGET|NAME)\b")


_OF_THE_TUTORIAL = OpDefinition("scale_rows", (("rows", "int"), ("columns", "int")), (("BLOCK", "int"),))


@pytest.fixture(autouse=True)
def _ops_of_pages() -> Iterator[None]:
    """Make known the ops that pages define before they name them."""
    with own_op.registered(_OF_THE_TUTORIAL):
        yield


def simple_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in a block, without comments, assignments and redirections."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        if "<<" in line or line.lstrip().startswith("#"):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a command of several lines, which bash checks
            continue
        part: list[str] = []
        for word in [*words, ";"]:
            if word in ("&&", "||", "|", ";", "&") or word.endswith(";"):
                part += [word[:-1]] if len(word) > 1 and word.endswith(";") else []
                while part and _ASSIGNMENT.fullmatch(part[0]):
                    part = part[1:]
                if part:
                    yield [w for w in part if not w.startswith((">", "2>"))]
                part = []
            else:
                part.append(word)


def words_of(page: Path, program: str) -> list[list[str]]:
    """Return the distinct commands of a program on a page."""
    found = {}
    for block in commands(page):
        for words in simple_commands(block):
            name = words[0].rpartition("/")[2]
            if name == program and not any("..." in w or "…" in w for w in words):
                found[tuple(words)] = words
    return list(found.values())


def _filled(word: str) -> str:
    """Return a word with names in place of placeholders, as a shell would hand it on."""
    word = _TARGET.sub(f"target={CONV}", word)
    return word.replace("arch=NAME", "arch=sm90").replace("$HOME", "/home/user")


def _id(path: Path) -> str:
    return path.stem


@pytest.fixture(autouse=True)
def _own_op() -> Iterator[None]:
    """Make the pages' own op, my_matmul, known, as a project's conf/op does."""
    with own_op.registered():
        yield


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_tilewise_takes_the_commands_of_a_page(page: Path) -> None:
    refused = []
    for words in words_of(page, "tilewise"):
        told = [_filled(word) for word in words[1:] if not word.isupper() or word == "VERB"]
        is_synopsis = not told or told[0] == "VERB" or told[-1].startswith("[")
        if is_synopsis or told[0] in ("completion", "--version") or any(new in " ".join(told) for new in _TO_BE_ADDED):
            continue
        if "-m" in told:
            told = [_SWEPT.sub(r"=\1", word) for word in told if word != "-m"]
        try:
            compose(parse(told).overrides)
        except TilewiseError as e:
            refused.append(f"{shlex.join(words)}: {e}")
    assert refused == []


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_make_has_the_targets_of_a_page(page: Path) -> None:
    named = {w for words in words_of(page, "make") for w in words[1:] if re.fullmatch(r"[a-z][a-z-]*", w)}
    assert named <= MAKE


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_python_finds_the_modules_of_a_page(page: Path) -> None:
    missing = []
    for words in (w for program in ("python", "python3") for w in words_of(page, program)):
        if len(words) > 2 and words[1] == "-m" and words[2].startswith(("tilewise", "benchmarks")):
            missing += [words[2]] if importlib.util.find_spec(words[2]) is None else []
    assert missing == []


def test_the_commands_are_found() -> None:
    text = "A=1 tilewise train \\\n  seed=1 && tilewise select 'problem={M:1}' > out   # comment\nmake test"
    assert list(simple_commands(text)) == [
        ["tilewise", "train", "seed=1"],
        ["tilewise", "select", "problem={M:1}", "out"],
        ["make", "test"],
    ]
    assert sum(len(words_of(page, "tilewise")) for page in PAGES) > 100
    assert main(["train", "seeed=1", "--cfg"]) == 2
