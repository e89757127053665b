"""A reader under fuzz: an intact file, the check of the reader's guarantees on any bytes, and damages that reach deep.

Two kinds of damage exist. Those of bytes (:mod:`mutate`) come from disks, editors and merges. Those of structure
replace, remove, repeat or nest a value of a JSON file, as a hostile or careless author does, and a seal (a checksum in
the file) is then made right again, so that the damage reaches the code behind it.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutate import Damage, damaged, random_damages

Outcome = str  # "read" or "refused"

# Values that break a careless reader: of another type, out of range, without end, or with a meaning elsewhere
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), 2**31, 2**53 + 1, 2**63, 2**64,
    -(2**63) - 1, 10**30, "", "a", "0", "nan", "\0", "\ud800", "é", "../../etc/passwd", "%s%n{0}", "x" * 5000, [], [[]],
    {}, {"": None}, [None], [0], ["a"], [True], [[0, 0]],
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A reader and its guarantees.

    Attributes:
        sample: Returns the intact file.
        read: Reads content in a folder of its own and returns the outcome; raises if a guarantee is broken.
        lines: True for a file of JSON lines, False for one JSON document, None for another format.
        seal: Writes a JSON value as text, with a checksum that is right.
    """

    sample: Callable[[], bytes]
    read: Callable[[bytes, Path], Outcome]
    lines: bool | None = None
    seal: Callable[[Any], str] = json.dumps

    def check(self, damages: list[Damage], folder: Path) -> Outcome:
        """Read the damaged file."""
        return self.read(damaged(self.sample(), damages), folder)

    def variant(self, rng: random.Random) -> bytes:
        """Return the intact file with a random damage."""
        return self.mutate(self.sample(), rng)

    def mutate(self, content: bytes, rng: random.Random) -> bytes:
        """Return `content` with another damage: of its structure, if it has one, or of its bytes."""
        if self.lines is None or rng.random() < 0.3:
            return damaged(content, random_damages(rng))
        try:
            text = content.decode()
            documents = text.splitlines() if self.lines else [text]
            at = rng.randrange(len(documents))
            value, _ = json.JSONDecoder().raw_decode(documents[at])
            documents[at] = self.seal(changed_value(value, rng))
        except (ValueError, RecursionError):
            return damaged(content, random_damages(rng))
        if self.lines and rng.random() < 0.1:
            documents.insert(rng.randrange(len(documents)), documents[at])
        return ("\n".join(documents) + "\n").encode(errors="surrogatepass")


def refused(error: Exception, where: str) -> Outcome:
    """Check that an error says where the fault is; return the outcome."""
    if where not in str(error):
        raise AssertionError(f"an error must name {where}") from error
    return "refused"


def changed_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value after one to three changes anywhere in it."""
    holder = [value]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        container, key = rng.choice(_level(holder, rng))
        _change(container, key, rng)
    return holder[0]


def _level(holder: list[Any], rng: random.Random) -> list[tuple[Any, Any]]:
    """Return the places of one level, each level as likely as another, or a pool's kernels would take all changes."""
    levels: list[list[tuple[Any, Any]]] = [list(_places(holder))]
    while below := [place for container, key in levels[-1] for place in _places(container[key])]:
        levels.append(below)
    return rng.choice(levels)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from ((value, key) for key in value)
    elif isinstance(value, list):
        yield from ((value, i) for i in range(len(value)))


def _change(container: Any, key: Any, rng: random.Random) -> None:
    old, kind = container[key], rng.randrange(8)
    if kind == 0 and not (isinstance(container, list) and len(container) == 1):
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[rng.choice(("", "unknown", "__class__", str(key) + "_"))] = container.pop(key)
    elif kind == 2 and isinstance(container, list):
        container.insert(key, copy.deepcopy(old))
    elif kind == 3:
        for _ in range(rng.choice((1, 30, 100))):
            old = [old]
        container[key] = old
    elif kind == 4 and type(old) in (int, float):
        container[key] = rng.choice((-old, old + 1, old * 2**32, old * 0.5 if abs(old) < 2**64 else -1, str(old)))
    else:
        container[key] = copy.deepcopy(rng.choice(HOSTILE))
