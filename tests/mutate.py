"""Small damages to a file's bytes: as a broken disk, a killed writer, an editor or a bad merge does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["set", "delete", "insert", "duplicate", "truncate"]
KINDS: tuple[Kind, ...] = ("set", "delete", "insert", "duplicate", "truncate")

# Bytes that formats give a meaning to, and words that numbers turn into
TOKENS = (
    *(bytes([b]) for b in b'{}[]",:\\\n\r\0-+.eE0 9x_\xff\xc3'),
    *(b"nan", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"99999999999999999999", b"null", b"true", b'""', b"\r\n"),
    *(b"Shape 1: M=1", b'"results": [', b'{"name": ', b"PAR1", b"\x1f\x8b", b'"', b",,", b"{" * 50),
    *(b"9" * 5000, b"[" * 3000, b"\\ud800", b"true,", b"[null]", b"-", b"\xe2\x80\xa8", b"\x1c"),
)


@dataclass(frozen=True)
class Damage:
    """One change: `at` and `length` are parts of the content, so that they fit any; `token` is inserted."""

    kind: Kind
    at: float
    length: int
    token: bytes

    def apply(self, content: bytes) -> bytes:
        """Return the changed content."""
        at = int(self.at * len(content))
        end = min(len(content), at + self.length)
        if self.kind == "set":
            return content[:at] + self.token + content[at + len(self.token) :]
        if self.kind == "delete":
            return content[:at] + content[end:]
        if self.kind == "insert":
            return content[:at] + self.token + content[at:]
        if self.kind == "duplicate":
            return content[:end] + content[at:end] + content[end:]
        return content[:at]


def damaged(content: bytes, damages: Sequence[Damage]) -> bytes:
    """Return the content after all changes."""
    for damage in damages:
        content = damage.apply(content)
    return content


def random_damages(rng: random.Random) -> list[Damage]:
    """Return one to four damages; equal generators give equal ones."""
    return [
        Damage(
            rng.choices(KINDS, (4, 3, 3, 2, 1))[0],
            rng.random(),
            rng.choice([1, 1, 2, 5, 30, 200]),
            rng.choice(TOKENS) if rng.random() < 0.7 else rng.randbytes(rng.choice([1, 1, 2, 8])),
        )
        for _ in range(rng.choice([1, 1, 1, 2, 4]))
    ]
