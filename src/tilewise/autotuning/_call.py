"""A call of a tuned function, and what surrounds its launches while it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewise.autotuning._call_forms import Argument
from tilewise.autotuning._configurations import Configuration
from tilewise.autotuning.records import TunedKey

PreHook = Callable[..., object]  # (arguments by name, reset_only=False)
PostHook = Callable[..., object]  # (arguments by name, exception=None or the launch's)


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        positional: positional arguments by parameter.
        keywords: all keyword arguments, such as a launch's grid.
        named: all arguments by parameter.
        key: identifies calls that share a configuration; None if a value of the key cannot be kept in a file.
        launch: runs the call with a configuration.
    """

    positional: Mapping[str, Argument]
    keywords: Mapping[str, Argument]
    named: Mapping[str, Argument]
    key: TunedKey | None
    launch: Callable[[Configuration], object]

    def arguments(self, configuration: Configuration) -> dict[str, Argument]:
        """Return all arguments by name, with those of the configuration."""
        return {**self.named, **configuration.arguments}

    @property
    def on_gpu(self) -> bool:
        """Return whether an argument lies in a GPU's memory."""
        return any(_on_gpu(value) or _on_gpu(getattr(value, "base", None)) for value in self.named.values())


def _on_gpu(value: object) -> bool:
    return bool(getattr(value, "is_cuda", False)) or hasattr(value, "__cuda_array_interface__")


@dataclass(frozen=True)
class Hooks:
    """Actions around the launches of a measurement. They lie outside the timed window.

    Attributes:
        reset_to_zero: parameters whose tensors are filled with zero before each launch.
        restore_value: parameters whose tensors get their values back after each launch.
        pre_hook: called before each launch with all arguments, and at the end with ``reset_only=True``.
        post_hook: called after each launch with all arguments and ``exception``.
    """

    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] = ()
    pre_hook: PreHook | None = None
    post_hook: PostHook | None = None

    def __bool__(self) -> bool:
        return bool(self.reset_to_zero or self.restore_value or self.pre_hook or self.post_hook)

    @contextmanager
    def measuring(self, named: Mapping[str, Argument]) -> Iterator[Mapping[str, Argument]]:
        """Yield copies of the tensors to restore; at the end leave all tensors as a first launch expects them."""
        copies = {name: named[name].clone() for name in self.restore_value}
        try:
            yield copies
        finally:
            self._restore(named, copies)
            if self.pre_hook is not None:
                self.pre_hook(dict(named), reset_only=True)
            self._reset(named)

    def before(self, arguments: dict[str, Argument]) -> None:
        """Prepare a launch."""
        if self.pre_hook is not None:
            self.pre_hook(arguments)
        else:
            self._reset(arguments)

    def after(
        self, arguments: dict[str, Argument], copies: Mapping[str, Argument], error: Exception | None = None
    ) -> None:
        """Clean up after a launch."""
        if self.post_hook is not None:
            self.post_hook(arguments, exception=error)
        else:
            self._restore(arguments, copies)

    def _reset(self, named: Mapping[str, Argument]) -> None:
        for name in self.reset_to_zero:
            named[name].zero_()

    def _restore(self, named: Mapping[str, Argument], copies: Mapping[str, Argument]) -> None:
        for name, copy in copies.items():
            named[name].copy_(copy)
