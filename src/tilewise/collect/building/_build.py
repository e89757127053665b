"""The build of many instances: in parallel, each from the cache or by its recipe.

A cache entry is a folder named by its key, with the library, its log and a record. It appears at once, by renaming, so
a killed build leaves whole entries only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from tilewise.collect.building._checkout import Checkout
from tilewise.collect.building._compiler import Compiler, kill_running, run_command
from tilewise.collect.building._recipe import Recipe, instances_by_name
from tilewise.errors import ConfigError, LibraryError
from tilewise.files import locked, replace_folder, write_bytes, write_text
from tilewise.kernels.ck import AnyInstance, LibraryRecord, get_instance_string, sha256_of

_FORMAT = 1  # of cache entries: goes up when recipes change in a way that their commands do not show
_SCRATCH = ".build-"


@dataclass(frozen=True)
class BuildSettings:
    """The means and limits of a build.

    Attributes:
        checkout: the sources.
        compiler: the compiler.
        arch: the arch to build for.
        cache: folder of finished libraries, by the contents that they depend on.
        jobs: kernels that are built at the same time; None for one per core.
        timeout_s: seconds that each command may take.
    """

    checkout: Checkout
    compiler: Compiler
    arch: str
    cache: Path
    jobs: int | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Built:
    """The end of one instance's build.

    Attributes:
        name: the kernel's name.
        path: its library; None if it failed.
        log: its log.
        from_cache: whether it had been built before.
        error: why it failed; "" if it did not.
    """

    name: str
    path: Path | None
    log: Path
    from_cache: bool = False
    error: str = ""


@dataclass(frozen=True)
class BuildReport:
    """The end of all builds, in the order of the instances."""

    built: tuple[Built, ...]

    @property
    def failed(self) -> tuple[Built, ...]:
        """Those that failed."""
        return tuple(b for b in self.built if b.path is None)

    def require_all(self) -> None:
        """Check that every instance was built.

        Raises:
            LibraryError: some were not; the message names the first, its reason and its log.
        """
        if self.failed:
            first = self.failed[0]
            raise LibraryError(
                f"{len(self.failed)} of {len(self.built)} kernels were not built, e.g. {first.name}: {first.error}; "
                f"see {first.log}; the same command builds the rest"
            )


def build_libraries(
    instances: Sequence[AnyInstance],
    settings: BuildSettings,
    output: Path,
    on_built: Callable[[Built, int, int], None] = lambda built, done, total: None,
) -> BuildReport:
    """Build a library for each instance, with its log and record beside it; libraries in the cache are copied.

    Args:
        instances: CK Tile's instances, each with a name of its own.
        settings: the means.
        output: folder of the libraries, ``NAME.so``; logs are in its folder ``logs``.
        on_built: called with each result as it is known, the number done, and the total.

    Raises:
        ConfigError: the checkout lacks a file, the compiler does not build for the arch, or another build uses the
            cache.
        KernelError: an instance cannot be built, or two have one name.
    """
    recipes = {name: Recipe(i, settings.arch) for name, i in instances_by_name(instances).items()}
    for recipe in recipes.values():
        settings.checkout.binding(recipe.binding)
        settings.checkout.generator(recipe.instance.op)
    settings.compiler.require_arch(settings.arch)
    _ = settings.checkout.digest  # computed before threads ask for it
    output.mkdir(parents=True, exist_ok=True)
    settings.cache.mkdir(parents=True, exist_ok=True)
    try:
        with locked(settings.cache / "lock", wait=False):
            for left in settings.cache.glob(f"{_SCRATCH}*"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            return _build_all(recipes, settings, output, on_built)
    except BlockingIOError as e:
        raise ConfigError(f"another build uses {settings.cache}; wait for it, or give another ck.cache") from e


def _build_all(
    recipes: dict[str, Recipe], settings: BuildSettings, output: Path, on_built: Callable[[Built, int, int], None]
) -> BuildReport:
    results: dict[str, Built] = {}
    with ThreadPoolExecutor(settings.jobs or os.cpu_count() or 1) as pool:
        running = [pool.submit(_Job(name, recipe, settings, output).run) for name, recipe in recipes.items()]
        try:
            for future in as_completed(running):
                built = future.result()
                results[built.name] = built
                on_built(built, len(results), len(recipes))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kill_running()
            raise
    return BuildReport(tuple(results[name] for name in recipes))


@dataclass(frozen=True)
class _Job:
    """The build of one library."""

    name: str
    recipe: Recipe
    settings: BuildSettings
    output: Path

    def run(self) -> Built:
        """Copy the library from the cache, or build it first."""
        log, entry = self.output / "logs" / f"{self.name}.log", self.settings.cache / self.key
        cached = _is_whole(entry)
        if not cached and (error := self._build(entry, log)):
            return Built(self.name, None, log, error=error)
        write_bytes(log, (entry / "log.txt").read_bytes())
        write_text(self.output / f"{self.name}.json", (entry / "record.json").read_text())
        library = self.output / f"{self.name}.so"
        write_bytes(library, (entry / "library.so").read_bytes())
        return Built(self.name, library, log, from_cache=cached)

    @property
    def key(self) -> str:
        """SHA-256 of all that the library depends on: instance, arch, sources, compiler and commands."""
        settings = self.settings
        parts = {
            "format": _FORMAT,
            "instance": get_instance_string(self.recipe.instance),
            "arch": settings.arch,
            "checkout": settings.checkout.digest,
            "compiler": settings.compiler.version,
            "commands": self._commands_in_general(),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _commands_in_general(self) -> list[str]:
        """Return the commands with names in place of this machine's folders."""
        checkout, recipe, folder = self.settings.checkout, self.recipe, Path("FOLDER")
        commands = (
            recipe.generate(checkout, folder)[1:],
            recipe.compile("COMPILER", checkout, folder / "header.hpp", folder),
            recipe.link("COMPILER", checkout, folder),
        )
        return [text.replace(str(checkout.root), "CHECKOUT") for command in commands for text in command]

    def _build(self, entry: Path, log: Path) -> str:
        """Build the library into a cache entry; return why it failed, or ""."""
        scratch = Path(mkdtemp(prefix=_SCRATCH, dir=self.settings.cache))
        lines: list[str] = []
        try:
            error = self._run_commands(scratch, lines)
            if not error:
                self._keep(scratch, entry, lines)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if error:
            write_text(log, "".join(lines))
        return error

    def _run_commands(self, scratch: Path, lines: list[str]) -> str:
        checkout, recipe, compiler = self.settings.checkout, self.recipe, self.settings.compiler.path
        generated = scratch / "generated"
        generated.mkdir()
        error = self._run(recipe.generate(checkout, generated), lines)
        if error:
            return f"the generator failed: {error}"
        try:
            include = recipe.included(recipe.header(generated))
        except LibraryError as e:
            return str(e)
        steps = (recipe.compile(compiler, checkout, include, scratch), recipe.link(compiler, checkout, scratch))
        for step, command in zip(("compiling", "linking"), steps, strict=True):
            if error := self._run(command, lines):
                return f"{step} failed: {error}"
        return "" if (scratch / "library.so").is_file() else "the linker wrote no library"

    def _run(self, command: list[str], lines: list[str]) -> str:
        done = run_command(command, self.settings.timeout_s)
        lines.append(f"$ {' '.join(command)}\n{done.output}\n")
        return done.reason() if done.failed else ""

    def _keep(self, scratch: Path, entry: Path, lines: list[str]) -> None:
        library = scratch / "library.so"
        record = LibraryRecord(
            kernel=self.name,
            instance=get_instance_string(self.recipe.instance),
            arch=self.settings.arch,
            sha256=sha256_of(library),
            compiler=self.settings.compiler.version.partition("\n")[0],
        )
        with replace_folder(entry) as folder:
            shutil.move(library, folder / "library.so")
            (folder / "log.txt").write_text("".join(lines))
            (folder / "record.json").write_text(record.dumps())


def _is_whole(entry: Path) -> bool:
    """Return whether a cache entry holds the library that its record describes."""
    try:
        record = LibraryRecord.loads((entry / "record.json").read_text(), entry)
        return (entry / "log.txt").is_file() and sha256_of(entry / "library.so") == record.sha256
    except (OSError, LibraryError):
        return False
