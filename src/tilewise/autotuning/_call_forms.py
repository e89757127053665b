"""Keys of calls: the values of the key's parameters and the element types of the tensors.

A key is read at every launch, so the places of its parts are found once per form of call (the types of the arguments
and the names of the keyword arguments). Reading it then takes about half a microsecond.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TypeAlias

from tilewise.files import Plain

Argument: TypeAlias = Plain  # of a user's function: arguments have no common type
Values = tuple[object, ...]
_dtype_of = attrgetter("dtype")


@dataclass(frozen=True)
class Signature:
    """The parameters of a tuned function.

    Attributes:
        parameters: their names, in order.
        defaults: of the parameters that have one.
        key: names of the parameters whose values decide which configuration is fastest.
    """

    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    key: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., object], parameters: Sequence[str], key: Sequence[str]) -> Signature:
        """Return the signature of a Python function.

        Args:
            function: gives the defaults; for a Triton kernel, the function that was decorated.
            parameters: names of the parameters.
            key: as for :attr:`Signature.key`; names that are no parameters are left out.
        """
        known = inspect.signature(function).parameters
        defaults = {n: p.default for n, p in known.items() if p.default is not inspect.Parameter.empty}
        return cls(tuple(parameters), defaults, tuple(name for name in key if name in parameters))


class CallForm:
    """Reader of the keys of all calls that pass arguments of the same types in the same way.

    Args:
        signature: of the function.
        values: of one such call: its positional arguments, then its keyword arguments.
        keywords: names of the keyword arguments.
    """

    __slots__ = ("_defaults", "_sizes", "_tensors", "names")

    def __init__(self, signature: Signature, values: Values, keywords: Sequence[str]) -> None:
        positional = len(values) - len(keywords)
        self.names = (*signature.parameters[:positional], *keywords)
        places = {name: place for place, name in enumerate(self.names) if name in signature.parameters}
        absent = [name for name in signature.key if name not in places]
        self._defaults = tuple(signature.defaults.get(name) for name in absent)
        with_defaults = places | {name: len(values) + i for i, name in enumerate(absent)}
        self._sizes = _picker([with_defaults[name] for name in signature.key])
        others = [
            n for n in signature.parameters if n in places and n not in signature.key
        ]  # NumPy's integers are keys
        self._tensors = _picker([places[n] for n in others if hasattr(values[places[n]], "dtype")])

    def key(self, values: Values) -> Values:
        """Return the key of a call: the values of the key's parameters, then the element type of each tensor."""
        known = values + self._defaults if self._defaults else values
        return (*self._sizes(known), *map(_dtype_of, self._tensors(values)))

    def named(self, values: Values) -> dict[str, object]:
        """Return the arguments by name."""
        return dict(zip(self.names, values, strict=False))

    def dtypes(self, values: Values) -> tuple[str, ...]:
        """Return the names of the tensors' element types, in the order of the parameters."""
        return tuple(str(_dtype_of(value)).removeprefix("torch.") for value in self._tensors(values))


def _picker(places: Sequence[int]) -> Callable[[Values], Values]:
    if not places:
        return lambda values: ()
    if len(places) == 1:
        (only,) = places
        return lambda values: (values[only],)
    return itemgetter(*places)
