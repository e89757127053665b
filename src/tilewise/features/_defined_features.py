"""The features, costs and drivers of ops of the user's own, derived from their definition.

A configuration's column counts as a tile of a size if its name says so: ``BLOCK_M``, ``BLOCK_SIZE_M``, ``TILE_M``,
``BM`` or ``MBLOCK`` is a tile of ``M``; ``BLOCK``, which names no size, may be a tile of each. The definition's own
expressions say the rest.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import combinations
from operator import mul
from typing import ClassVar

import numpy as np

from tilewise.errors import ConfigError
from tilewise.features._block_inputs import LATENCY_CLOCKS, LAUNCH_CLOCKS, UNIT_BYTES_PER_CLOCK, alignment, log2
from tilewise.features._feature_table import Feature, FeatureTable, Inputs, Role, Term
from tilewise.kernels import Array
from tilewise.ops import NOMINAL_FLOPS, OpDefinition

MOST_TILES = 32  # pairs of a size and a tile
MOST_BLOCKS = 6  # pairs of tiles
_TEXT_CODES = 1 << 20
_TILE = re.compile(r"block|tile")

Compute = Callable[["DefinedInputs"], Array]


@dataclass(frozen=True)
class Tile:
    """A column of configurations that may be the tile of a size; `named` if its name says so."""

    size: str
    column: str
    named: bool

    @property
    def name(self) -> str:
        """The beginning of its features' names."""
        return f"{self.size}_by_{self.column}"


def tiles_of(definition: OpDefinition) -> tuple[Tile, ...]:
    """Return the tiles among a definition's columns, at most :data:`MOST_TILES`."""
    found: list[Tile] = []
    for column, kind in definition.config:
        sizes = [size for size in definition.sizes if kind == "int" and _is_tile_of(column.lower(), size.lower())]
        if sizes:
            found.append(Tile(max(sizes, key=len), column, named=True))
        elif kind == "int" and _TILE.search(column.lower()):
            found += [Tile(size, column, named=False) for size in definition.sizes]
    return tuple(found[:MOST_TILES])


def _is_tile_of(column: str, size: str) -> bool:
    """Return whether a column's name is that of a size with ``block``, ``tile`` or ``b`` beside it."""
    if column in (f"b{size}", f"{size}block"):
        return True
    begins, ends = column.removesuffix(size), column.endswith(size)
    return ends and bool(_TILE.search(begins)) and (begins.endswith("_") or begins in ("block", "tile"))


class DefinedInputs(Inputs):
    """Intermediates of an op of the user's own."""

    definition: ClassVar[OpDefinition]

    @cached_property
    def columns(self) -> dict[str, Array]:
        """All columns of problem and configuration, by name."""
        return {**vars(self.p), **vars(self.k)}

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles of the configurations."""
        return tiles_of(self.definition)

    def formula(self, field: str) -> Array:
        """Return the value of one of the definition's expressions."""
        return self.definition.formulas[field](self.columns)

    @cached_property
    def flops(self) -> Array:
        """Floating-point operations, or a nominal number."""
        return self.formula("flops") if self.definition.flops else NOMINAL_FLOPS

    @cached_property
    def work(self) -> Array:
        """A measure of the problem's size: its FLOPs, or the product of its sizes."""
        if self.definition.flops:
            return self.flops * 1.0
        return reduce(mul, (np.maximum(self.columns[size], 1) * 1.0 for size in self.definition.sizes))

    def count(self, tile: Tile) -> Array:
        """Return the number of tiles along a size, at least 1: (rows,)."""
        size, width = np.maximum(self.columns[tile.size], 1), np.maximum(self.columns[tile.column], 1)
        return -(-size // width)

    def fill(self, tile: Tile) -> Array:
        """Return the useful share of the tiles along a size: (rows,)."""
        return self.columns[tile.size] / (self.count(tile) * np.maximum(self.columns[tile.column], 1))

    @cached_property
    def padded_work(self) -> Array:
        """The work with the padding of all tiles whose size is certain."""
        return reduce(lambda work, tile: work / np.maximum(self.fill(tile), 1e-3), self._named, self.work)

    @cached_property
    def _named(self) -> tuple[Tile, ...]:
        return tuple(tile for tile in self.tiles if tile.named)

    @cached_property
    def steps(self) -> Array:
        """The number of tiles of all sizes together."""
        return self.product(self._named)

    def product(self, tiles: tuple[Tile, ...]) -> Array:
        """Return the product of the numbers of some tiles, as floats."""
        return reduce(mul, (self.count(tile) * 1.0 for tile in tiles), 1.0)

    def waves(self, programs: Compute) -> Array:
        """Return a number of programs relative to the compute units."""
        return np.maximum(programs(self) * 1.0, 1.0) / self.arch.compute_units

    def steps_in_turn(self, programs: Compute) -> Array:
        """Return the tiles that one compute unit takes one after another, at least 1 for each wave."""
        each = np.maximum(self.steps / np.maximum(programs(self) * 1.0, 1.0), 1.0)
        return np.ceil(self.waves(programs)) * each

    def area(self, a: Tile, b: Tile) -> Array:
        """Return the elements of a block with two tiles as its sides."""
        return self.columns[a.column] * 1.0 * self.columns[b.column]


@cache
def defined_table(definition: OpDefinition) -> FeatureTable:
    """Return the features of an op of the user's own.

    Raises:
        ConfigError: an own feature has the name of a derived one.
    """
    inputs = type(f"Inputs_{definition.name}", (DefinedInputs,), {"definition": definition})
    features = tuple(_features(definition))
    names = [feature.name for feature in features]
    for name, _ in definition.features:
        if names.count(name) > 1:
            raise ConfigError(f"op {definition.name}: features: {name} is the name of a derived feature; rename it")
    costs, drivers = tuple(_costs(definition)), tuple(_drivers(definition))
    return FeatureTable(definition.name, features, inputs, costs, drivers, definition)


def _features(definition: OpDefinition) -> Iterator[Feature]:
    yield from _problem_features(definition)
    for name, kind in definition.config:
        yield Feature(name, "", f"configuration's {name}, {kind}", "kernel", _of_column(name, kind))
    for tile in tiles_of(definition):
        yield Feature(
            f"{tile.name}_log2", "", f"log2 of ceil({tile.size} / {tile.column})", "interaction", _count_log2(tile)
        )
        yield Feature(
            f"{tile.name}_fill", "", f"useful share of tiles of {tile.column} along {tile.size}", "interaction",
            _fill(tile),
        )  # fmt: skip
    for a, b in _blocks(definition):
        yield Feature(f"{a.column}_{b.column}_log2", "", f"log2 of {a.column} x {b.column}", "kernel", _area_log2(a, b))
    for grid, programs in _grids(definition).items():
        yield Feature(f"{grid}_log2", "", f"log2 of the programs ({grid})", "interaction", _programs_log2(programs))
        yield Feature(f"{grid}_steps_log2", "", f"log2 of tiles in turn ({grid})", "interaction", _turns_log2(programs))
        yield Feature(f"{grid}_waves", "", f"waves of programs ({grid}), rounded up", "interaction", _waves(programs))
        yield Feature(f"{grid}_wave_fill", "", f"useful share of waves ({grid})", "interaction", _wave_fill(programs))
    for name, text in definition.features:
        field = f"features.{name}"
        yield Feature(name, "", f"own: {text}", _role(definition, field), _own(field))


def _problem_features(definition: OpDefinition) -> Iterator[Feature]:
    for name, kind in definition.problem:
        if kind == "int":
            yield Feature(f"{name}_log2", "", f"log2 of {name}", "problem", _size_log2(name))
            yield Feature(
                f"{name}_alignment", "", f"largest power of two that divides {name}, at most 256", "problem",
                _alignment(name),
            )  # fmt: skip
        elif kind == "bool":
            yield Feature(name, "", f"flag {name}", "problem", _of_problem(name))
        else:
            for i, value in enumerate(kind):
                yield Feature(f"{name}_is_{i}", "", f"{name} is {value}", "problem", _equals(name, value))
    if definition.flops:
        yield Feature("flops_log2", "", f"log2 of {definition.flops}", "problem", lambda i: log2(i.flops * 1.0))
    if definition.bytes:
        yield Feature("bytes_log2", "", f"log2 of {definition.bytes}", "problem", _bytes_log2)


def _grids(definition: OpDefinition) -> dict[str, Compute]:
    """Return the possible numbers of programs by name: the stated one, or products of the tiles' numbers.

    A loop in a program takes the tiles of one size, and nothing tells of which, so each product lacks one at most.
    """
    if definition.programs:
        return {"programs": lambda i: i.formula("programs")}
    tiles = tiles_of(definition)
    sizes = [tile.size for tile in tiles]
    if not tiles or not all(tile.named for tile in tiles) or len(set(sizes)) < len(sizes):
        return {}
    chosen = [c for n in {len(tiles), max(1, len(tiles) - 1)} for c in combinations(tiles, n)]
    splits = tuple(name for name, kind in definition.config if kind == "int" and "split" in name.lower())
    return {"grid_" + "_".join(tile.size for tile in some): _product(some, splits) for some in chosen}


def _blocks(definition: OpDefinition) -> tuple[tuple[Tile, Tile], ...]:
    """Return the pairs of tiles of different sizes: the sides of blocks that a program loads or stores."""
    named = [tile for tile in tiles_of(definition) if tile.named]
    return tuple((a, b) for a, b in combinations(named, 2) if a.size != b.size)[:MOST_BLOCKS]


def _costs(definition: OpDefinition) -> Iterator[Term]:
    """Yield costs in clocks, up to factors that are fitted to measurements."""
    yield Term("launch", "one launch", lambda i: LAUNCH_CLOCKS)
    yield Term("work", "padded work of all compute units", lambda i: i.padded_work / i.arch.compute_units)
    if any(tile.named for tile in tiles_of(definition)):
        yield Term("steps", "tiles of all compute units", lambda i: i.steps * LATENCY_CLOCKS / i.arch.compute_units)
    for a, b in _blocks(definition):
        yield Term(f"{a.column}_{b.column}", f"blocks of {a.column} x {b.column}, of all tiles", _loaded(a, b))
        yield Term(f"{a.column}_{b.column}_once", f"blocks of {a.column} x {b.column}, each once", _stored(a, b))
    for name, programs in _grids(definition).items():
        yield Term(f"{name}_waves", f"padded work of the busiest unit ({name})", _busiest(programs))
        yield Term(f"{name}_steps", f"tiles in turn ({name})", _turns(programs))
    if definition.bytes:
        yield Term("memory", f"{definition.bytes} from memory", _dram_clocks)


def _drivers(definition: OpDefinition) -> Iterator[Term]:
    for size in definition.sizes:
        yield Term(size, f"log2 of {size}", _size_log2(size))
        yield Term(f"{size}_alignment", f"log2 of the largest power of two in {size}, at most 4", _alignment_log2(size))
    for tile in tiles_of(definition):
        if tile.named:
            yield Term(f"{tile.name}_fill", f"useful share of tiles of {tile.column} along {tile.size}", _fill(tile))
    for name, programs in _grids(definition).items():
        yield Term(f"{name}_wave_fill", f"useful share of waves ({name})", _wave_fill(programs))
        yield Term(f"{name}_few_waves", f"waves, at most 4 ({name})", _few_waves(programs))


def _role(definition: OpDefinition, field: str) -> Role:
    names = definition.formulas[field].names
    of_problem, of_kernel = names & set(definition.problem_names), names & set(definition.config_names)
    return "interaction" if of_problem and of_kernel else "problem" if of_problem else "kernel"


# ---- formulas -------------------------------------------------------------------------------------------------------


def _of_column(name: str, kind: str) -> Compute:
    return (lambda i: _codes(getattr(i.k, name))) if kind == "str" else (lambda i: getattr(i.k, name) * 1.0)


def _codes(texts: Array) -> Array:
    """Return a number for each text, the same in every pool."""
    return np.array([zlib.crc32(text.encode()) % _TEXT_CODES for text in np.asarray(texts).astype(str).tolist()]) * 1.0


def _of_problem(name: str) -> Compute:
    return lambda i: getattr(i.p, name) * 1.0


def _size_log2(name: str) -> Compute:
    return lambda i: log2(np.maximum(getattr(i.p, name), 1) * 1.0)


def _alignment(name: str) -> Compute:
    return lambda i: alignment(getattr(i.p, name), 256) * 1.0


def _alignment_log2(name: str) -> Compute:
    return lambda i: log2(np.maximum(alignment(getattr(i.p, name)), 1) * 1.0)


def _equals(name: str, value: str) -> Compute:
    return lambda i: (getattr(i.p, name) == value) * 1.0


def _bytes_log2(i: DefinedInputs) -> Array:
    return log2(i.formula("bytes") * 1.0)


def _dram_clocks(i: DefinedInputs) -> Array:
    return i.formula("bytes") * (i.arch.clock_mhz / (i.arch.dram_gb_s * 1e3))


def _count_log2(tile: Tile) -> Compute:
    return lambda i: log2(i.count(tile) * 1.0)


def _fill(tile: Tile) -> Compute:
    return lambda i: i.fill(tile)


def _product(tiles: tuple[Tile, ...], splits: tuple[str, ...]) -> Compute:
    return lambda i: reduce(mul, (np.maximum(i.columns[name], 1) * 1.0 for name in splits), i.product(tiles))


def _area_log2(a: Tile, b: Tile) -> Compute:
    return lambda i: log2(i.area(a, b))


def _loaded(a: Tile, b: Tile) -> Compute:
    return lambda i: i.steps * i.area(a, b) / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)


def _stored(a: Tile, b: Tile) -> Compute:
    return lambda i: i.count(a) * i.count(b) * i.area(a, b) / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)


def _turns(programs: Compute) -> Compute:
    return lambda i: i.steps_in_turn(programs) * LATENCY_CLOCKS


def _turns_log2(programs: Compute) -> Compute:
    return lambda i: log2(i.steps_in_turn(programs))


def _few_waves(programs: Compute) -> Compute:
    return lambda i: np.minimum(i.waves(programs), 4.0)


def _programs_log2(programs: Compute) -> Compute:
    return lambda i: log2(np.maximum(programs(i) * 1.0, 1.0))


def _waves(programs: Compute) -> Compute:
    return lambda i: np.ceil(i.waves(programs))


def _wave_fill(programs: Compute) -> Compute:
    return lambda i: i.waves(programs) / np.ceil(i.waves(programs))


def _busiest(programs: Compute) -> Compute:
    return lambda i: np.ceil(i.waves(programs)) * i.padded_work / np.maximum(programs(i) * 1.0, 1.0)


def _own(field: str) -> Compute:
    return lambda i: i.formula(field) * 1.0
