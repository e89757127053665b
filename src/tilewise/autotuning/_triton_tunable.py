"""Triton kernels with a list of configurations: launched as ``kernel[grid](...)``, like those of ``triton.autotune``.

Triton itself is not imported: its kernels are known by their attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewise.autotuning._call_forms import Argument, Values
from tilewise.autotuning._chooser import Choice
from tilewise.autotuning._configurations import Configuration
from tilewise.autotuning._tunable import Tunable
from tilewise.errors import UsageError


def is_triton_kernel(function: object) -> bool:
    """Return whether an object is launched like a Triton kernel: ``triton.jit`` and ``triton.heuristics`` make them."""
    return all(hasattr(function, name) for name in ("run", "arg_names", "fn"))


class TritonTunable(Tunable):
    """A Triton kernel with a list of configurations; see :class:`Tunable`."""

    def __getitem__(self, grid: Argument) -> Callable[..., Argument]:
        """Return a function that launches the kernel on a grid."""
        run, choose, on_grid = self.fn.run, self._configuration, {"grid": grid, "warmup": False}

        def launch(*args: Argument, **kwargs: Argument) -> Argument:
            chosen = choose(args, kwargs, on_grid)
            if chosen.pre_hook is not None:
                chosen.pre_hook(self._all(chosen, args, kwargs))
            return run(*args, grid=grid, warmup=False, **kwargs, **chosen.arguments)

        return launch

    def run(self, *args: Argument, grid: Argument, warmup: bool = False, **kwargs: Argument) -> Argument:
        """Launch the kernel; decorators above this one call it."""
        return self.warmup(*args, grid=grid, **kwargs) if warmup else self[grid](*args, **kwargs)

    def warmup(self, *args: Argument, grid: Argument, **kwargs: Argument) -> list[Argument]:
        """Compile every configuration for a call, without running it."""
        return [self.fn.warmup(*args, grid=grid, **kwargs, **c.arguments) for c in self.configurations]

    def choose(self, *args: Argument, grid: Argument, **kwargs: Argument) -> Choice:
        """Return the configuration for a launch and the reason for it; nothing is remembered in memory."""
        form, launch = self._form((*args, *kwargs.values()), kwargs), {"grid": grid, "warmup": False}
        return self._chooser.choose(self._call(form, args, kwargs, launch))

    def __call__(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Refuse a call without a grid.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.name} is a Triton kernel: launch it with {self.name}[grid](...)")

    def _all(self, chosen: Configuration, args: Values, kwargs: Mapping[str, Argument]) -> dict[str, Argument]:
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **chosen.arguments}

    def _launch(self, configuration: Configuration, args: Values, kwargs: Mapping[str, Argument]) -> object:
        return self.fn.run(*args, **{"warmup": False, **kwargs}, **configuration.arguments)
