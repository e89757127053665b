"""A bounded dictionary of the most recently used values, read without a lock."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `capacity` values by key; the least recently used are dropped, half of the capacity at a time.

    It consists of two dictionaries. New and reused values go into :attr:`young`; when that is full it becomes the old
    dictionary, and the previous old one is dropped. Readers may look into :attr:`young` directly, without a lock or a
    write. Threads may share an instance; a race between them may drop a value early.
    """

    __slots__ = ("_half", "_old", "young")

    def __init__(self, capacity: int) -> None:
        self._half = capacity // 2
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value and count this as a use, or return None."""
        value = self.young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value, which must not be None."""
        young = self.young
        if len(young) >= self._half:
            self._old = young
            self.young = young = {}
        if self._half:
            young[key] = value

    def clear(self) -> None:
        """Drop all values."""
        self.young, self._old = {}, {}

    def __iter__(self) -> Iterator[K]:
        """Iterate over the present keys, each once."""
        return iter({**self._old, **self.young})

    def __len__(self) -> int:
        return len(self.young) + len(self._old)
