"""What was used last, bounded, and read without a lock: the way of a decision that was made before."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by key; those that were not used for longest go, half of the room at a time.

    Two dictionaries: what is new or used again comes into the young one; when that is full it becomes the old one, and
    what was old is dropped. A reader may look into :attr:`young` directly: no lock, nothing to write. Threads may share
    it; where two race, one value may be dropped early.
    """

    __slots__ = ("_half", "_old", "young")

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value, which counts as a use; None where there is none."""
        value = self.young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, which must not be None."""
        young = self.young
        if len(young) >= self._half:
            self._old = young
            self.young = young = {}
        if self._half:
            young[key] = value

    def __iter__(self) -> Iterator[K]:
        """The keys as they are now, each once."""
        return iter({**self._old, **self.young})

    def __len__(self) -> int:
        return len(self.young) + len(self._old)
