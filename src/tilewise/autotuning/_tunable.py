"""Functions with a list of configurations: each call runs with the configuration that is fastest for its key.

A remembered key costs two look-ups: one for the form of the call, one for the key.
"""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING

from tilewise.autotuning._call import Call
from tilewise.autotuning._call_forms import Argument, CallForm, Signature, Values
from tilewise.autotuning._chooser import Choice, Chooser
from tilewise.autotuning._configurations import Configuration
from tilewise.autotuning._measure_call import Bench
from tilewise.autotuning.op import Advisers, Statements
from tilewise.autotuning.records import TunedEntry, TunedKey, python_function, source_hash
from tilewise.errors import KernelError, UsageError, one_line

if TYPE_CHECKING:
    from tilewise.autotuning.op import KernelOp

_log = logging.getLogger(__name__)
_MOST_KEYS = 1 << 16  # remembered in memory; then all are looked up again
MakeInputs = Callable[..., tuple[Values, Mapping[str, Argument]]]
DrawKey = Callable[[random.Random], dict[str, int | str]]
_MOST_DRAWS = 20  # per key that is asked for, as small spaces repeat
_NOTHING: Mapping[str, Argument] = {}
_RETRY_S = 1.0  # before a choice that holds for the moment is reconsidered


@dataclass(frozen=True)
class Remembered:
    """A choice that holds for the moment."""

    configuration: Configuration
    until: float


class Tunable:
    """A callable with a list of configurations, passed to it as keyword arguments.

    Args:
        function: the callable.
        key: names of the parameters whose values decide which configuration is fastest.
        chooser: chooses for a new key.
        stated: describes the calls to a model.
        model: a folder or an alias of the registry; None for no model.

    Attributes:
        fn: the callable.
        configurations: all configurations, the default first.
        name: in caches, tables and models.
        stated: describes the calls to a model.
    """

    def __init__(
        self, function: Argument, key: Sequence[str], chooser: Chooser, stated: Statements, model: str | None = None
    ) -> None:  # fmt: skip
        self.fn, self.keys = function, list(key)
        self._chooser, self.name = chooser, chooser.kernel
        chooser.adviser, chooser.remake = Advisers(lambda: self.op, model, self._warn), self._remake
        self.configurations = chooser.configurations
        plain = python_function(function)
        parameters = getattr(function, "arg_names", None) or list(inspect.signature(function).parameters)
        self._signature = Signature.of(plain or function, parameters, key)
        self.arg_names = list(parameters)
        self._forms: dict[Values, CallForm] = {}
        self._chosen: dict[Values, Configuration] = {}
        self._for_now: dict[Values, Remembered] = {}
        self._warned: set[str] = set()
        self.stated = stated
        self._last: Configuration | None = None
        self._make_inputs: MakeInputs | None = None
        self._draw_key: DrawKey | None = None
        self._lock = threading.Lock()
        update_wrapper(self, plain or function, updated=())
        for missing in [name for name in key if name not in parameters]:
            self._warn(f"key {missing!r} is not a parameter and is left out; there are {', '.join(parameters)}")

    def __call__(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Call the function with the configuration for this call's key."""
        return self.fn(*args, **kwargs, **self._configuration(args, kwargs).arguments)

    @property
    def bench(self) -> Bench:
        """The settings of measuring."""
        return self._chooser.bench

    @property
    def configs(self) -> list[object]:
        """The configurations as the user listed them."""
        return [c.given for c in self.configurations]

    @property
    def best_config(self) -> object:
        """The configuration of the last call, as the user listed it; None before the first call."""
        return None if self._last is None else self._last.given

    @cached_property
    def base_fn(self) -> Argument:
        """The Python function within all decorators."""
        return python_function(self.fn) or self.fn

    def inputs(self, make: MakeInputs) -> MakeInputs:
        """Register a function that makes the arguments of a call, as a decorator; measuring without calls needs it.

        Args:
            make: takes the key's values by name; returns the positional and the keyword arguments (with a grid).
        """
        self._make_inputs = make
        return make

    def sampler(self, draw: DrawKey) -> DrawKey:
        """Register a function that draws a legal key, as a decorator; ``tilewise collect`` measures such keys.

        Args:
            draw: takes a ``random.Random``; returns the key's values by name.
        """
        self._draw_key = draw
        return draw

    @property
    def has_sampler(self) -> bool:
        """Return whether keys can be drawn; see :meth:`sampler`."""
        return self._draw_key is not None

    def draw_keys(self, count: int, seed: int) -> list[dict[str, int | str]]:
        """Return different keys of the sampler, at most `count`.

        Raises:
            UsageError: no function draws keys; see :meth:`sampler`.
        """
        if self._draw_key is None:
            raise UsageError(f"{self.name}: define a sampler of keys with @{self.name}.sampler, or name a problem set")
        source, found = random.Random(seed), dict[tuple[object, ...], dict[str, int | str]]()
        for _ in range(_MOST_DRAWS * count):
            key = self._draw_key(source)
            found.setdefault(tuple(key.values()), key)
            if len(found) == count:
                break
        return list(found.values())

    def call_for(self, **key: Argument) -> Call:
        """Return a call with this key.

        Raises:
            UsageError: no function makes the arguments; see :meth:`inputs`.
        """
        if self._make_inputs is None:
            raise UsageError(f"{self.name}: define its inputs with @{self.name}.inputs to measure it without calls")
        args, kwargs = self._make_inputs(**key)
        launch = {name: value for name, value in kwargs.items() if name not in self._signature.parameters}
        passed = {name: value for name, value in kwargs.items() if name not in launch}
        return self._call(self._form((*args, *passed.values()), passed), args, passed, launch)

    def _remake(self, key: TunedKey) -> Call | None:
        return None if self._make_inputs is None else self.call_for(**key.sizes)

    def choose_for(self, call: Call) -> Choice:
        """Return the configuration for a call of :meth:`call_for` and the reason for it."""
        return self._chooser.choose(call)

    def measure(self, **key: Argument) -> TunedEntry:
        """Measure every configuration for a key, and return the record without keeping it.

        Raises:
            UsageError: see :meth:`call_for`.
        """
        return self._chooser.measure(self.call_for(**key))

    @cached_property
    def op(self) -> KernelOp:
        """The kernel as an op, known to this process.

        Raises:
            UsageError: it cannot be one; see :meth:`KernelOp.of`.
        """
        from tilewise.autotuning.op import KernelOp

        return KernelOp.of(self, self.code)

    @cached_property
    def code(self) -> str:
        """Hash of the function's code and of all that it uses, taken at the first call."""
        return source_hash(self.base_fn)

    def choose(self, *args: Argument, **kwargs: Argument) -> Choice:
        """Return the configuration for a call and the reason for it; nothing is remembered in memory."""
        values = (*args, *kwargs.values())
        return self._chooser.choose(self._call(self._form(values, kwargs), args, kwargs, _NOTHING))

    def forget(self) -> None:
        """Forget the choices in memory, as after merging another machine's cache."""
        with self._lock:
            self._chosen, self._for_now = {}, {}

    def _configuration(
        self, args: Values, kwargs: Mapping[str, Argument], launch: Mapping[str, Argument] = _NOTHING
    ) -> Configuration:
        """Return the configuration of a call.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            launch: further keyword arguments that are no part of the key, such as the grid.
        """
        values = (*args, *kwargs.values()) if kwargs else args
        try:
            chosen = self._chosen[self._forms[(*map(type, values), *kwargs)].key(values)]
        except (KeyError, TypeError):  # a new form or key, or a key that cannot be looked up
            chosen = self._find(args, kwargs, launch)
        self._last = chosen
        return chosen

    def _find(self, args: Values, kwargs: Mapping[str, Argument], launch: Mapping[str, Argument]) -> Configuration:
        """Choose for a key that is not remembered."""
        values = (*args, *kwargs.values())
        form = self._form(values, kwargs)
        key = form.key(values)
        try:
            hash(key)
        except TypeError as e:
            self._warn(f"a value of the key cannot be looked up, so the first configuration runs: {one_line(e)}")
            return self.configurations[0]
        known, now = self._for_now.get(key), time.monotonic()
        if known is not None and now < known.until:
            return known.configuration
        try:
            choice = self._chooser.choose(self._call(form, args, kwargs, launch), again=known is not None)
        except (UsageError, TimeoutError, OSError) as e:
            if isinstance(e, KernelError):
                raise
            self._warn(f"the first configuration runs: {one_line(e)}")
            choice = Choice(self.configurations[0], "default", lasting=False)
        with self._lock:
            if choice.lasting:
                if len(self._chosen) >= _MOST_KEYS:
                    self._chosen = {}
                self._chosen[key] = choice.configuration
                self._for_now.pop(key, None)
            else:
                until = 0.0 if choice.why == "model" else now + _RETRY_S  # a model is asked how sure it is
                self._for_now[key] = Remembered(choice.configuration, until)
        return choice.configuration

    def _form(self, values: Values, kwargs: Mapping[str, Argument]) -> CallForm:
        passed = (*map(type, values), *kwargs)
        form = self._forms.get(passed)
        if form is None:
            form = self._forms[passed] = CallForm(self._signature, values, tuple(kwargs))
        return form

    def _call(
        self, form: CallForm, args: Values, kwargs: Mapping[str, Argument], launch: Mapping[str, Argument]
    ) -> Call:  # fmt: skip
        values = (*args, *kwargs.values())
        positional = dict(zip(self._signature.parameters, args, strict=False))
        named = positional | {n: v for n, v in kwargs.items() if n in self._signature.parameters}
        clash = named.keys() & self.configurations[0].arguments.keys()
        if clash:
            raise KernelError(
                f"{self.name}: {', '.join(sorted(clash))}: must not be passed by the call, as the configurations set it"
            )
        every = {**kwargs, **launch}
        return Call(positional, every, named, self._tuned_key(form, values), lambda c: self._launch(c, args, every))

    def _launch(self, configuration: Configuration, args: Values, kwargs: Mapping[str, Argument]) -> object:
        return self.fn(*args, **kwargs, **configuration.arguments)

    def _tuned_key(self, form: CallForm, values: Values) -> TunedKey | None:
        """Return the key as plain data; None, with a warning, if a value is neither a whole number nor a text."""
        sizes: dict[str, int | str] = {}
        for name, value in zip(self._signature.key, form.key(values), strict=False):
            if isinstance(value, str):
                sizes[name] = value
            elif hasattr(value, "__index__"):
                sizes[name] = int(value)
            else:
                self._warn(
                    f"the key {name!r} must be a whole number or a text, got {value!r:.60}; such calls are tuned, but "
                    "neither kept in the cache nor decided by a model"
                )
                return None
        return TunedKey(sizes, form.dtypes(values))

    def _warn(self, message: str) -> None:
        """Log a warning once."""
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: %s", self.name, message)
