"""Hardware profiles: the figures of a GPU that features and kernel rules need, read from ``conf/arch/<name>.yaml``.

To add an arch, add one YAML file; each figure in it names its source.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self

from tilewise.conf_files import conf_file, conf_options
from tilewise.errors import ConfigError

# Figures that only features of several archs read. Saved profiles of other models lack them, so that these stay as they
# were.
LATER_FIGURES = ("chiplets", "simds_per_unit", "l1_bytes", "l3_bytes")
_OPTIONAL = {"backend", "warp_tiles", *LATER_FIGURES}
# Types of a figure by its annotation, with their name in errors. YAML reads some numbers as texts, e.g. 1e9.
_KINDS: dict[str, tuple[type | UnionType, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "Mapping": (Mapping, "a mapping such as {bf16: 989.5}"),
}
DEFAULT_BACKEND = "triton"  # omitted from saved profiles: models and plans of the first format have no backend key


@dataclass(frozen=True)
class HardwareProfile:
    """Figures of one GPU. Sizes in bytes, clocks in MHz, bandwidth in GB/s, dense peaks in TFLOPS per dtype.

    Attributes:
        backend: the backend that makes its kernels (see :mod:`tilewise.kernels`).
        warp_tiles: by dtype, each (m, n, k) that CK Tile computes with one matrix instruction or a chain of them;
            empty where they are unknown.
        chiplets: dies with compute units (XCDs on AMD's archs).
        simds_per_unit: vector units (partitions) of a compute unit.
        l1_bytes: vector data cache of a compute unit; on NVIDIA's archs shared memory included.
        l3_bytes: last-level cache behind L2. 0 in these four: unknown, or the arch has none.
    """

    name: str
    vendor: str
    device: str
    compute_units: int
    warp_size: int
    clock_mhz: int
    shared_memory_bytes: int
    shared_memory_unit_bytes: int
    registers: int
    max_threads: int
    max_blocks: int
    l2_bytes: int
    dram_bytes: int
    dram_gb_s: float
    peak_tflops: Mapping[str, float]
    backend: str = DEFAULT_BACKEND
    warp_tiles: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    chiplets: int = field(default=0, compare=False)
    simds_per_unit: int = field(default=0, compare=False)
    l1_bytes: int = field(default=0, compare=False)
    l3_bytes: int = field(default=0, compare=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "hardware profile") -> Self:
        """Build a profile from a mapping with exactly the fields above; those with a default may be absent.

        Args:
            values: the figures by name.
            source: names the mapping in errors, e.g. the path of its file.

        Raises:
            ConfigError: a figure is missing, unknown, of the wrong type or not positive; names `source` and the key.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: a hardware profile must be a mapping of figures, got {values!r:.60}")
        known = {f.name: f for f in dataclasses.fields(cls)}
        for key in sorted((set(known) ^ set(values)) - _OPTIONAL, key=str):
            if key in known:
                raise ConfigError(f"{source}: {key!r} is missing; add it, conf/arch/sm90.yaml shows its unit")
            raise ConfigError(f"{source}: {key!r} is not a figure of a hardware profile; known are {', '.join(known)}")
        for key, value in values.items():
            types, type_name = _KINDS[str(known[key].type).partition("[")[0]]
            if not isinstance(value, types) and not isinstance(value, bool):
                raise ConfigError(f"{source}: {key!r} must be {type_name}, got {value!r}")
            figures = value.values() if isinstance(value, Mapping) else [value]
            if any(isinstance(v, bool) or (isinstance(v, int | float) and not 0 < v < math.inf) for v in figures):
                raise ConfigError(f"{source}: {key!r} must be positive and finite, got {value!r}")
        return cls(**{**values, "peak_tflops": dict(values["peak_tflops"])})

    def to_dict(self, with_later: bool = False) -> dict[str, Any]:
        """Return the profile as plain data, the inverse of :meth:`from_dict` but for :data:`LATER_FIGURES`.

        Args:
            with_later: whether to include those of :data:`LATER_FIGURES` that are known.
        """
        values = dataclasses.asdict(self)
        for name in LATER_FIGURES:
            if not with_later or not values[name]:
                del values[name]
        if self.backend == DEFAULT_BACKEND:
            del values["backend"]
        if not self.warp_tiles:
            del values["warp_tiles"]
        return values

    def peak(self, dtype: str) -> float:
        """Return the peak TFLOPS of the matrix units for `dtype`.

        Raises:
            ConfigError: the profile has no figure for this dtype.
        """
        if dtype not in self.peak_tflops:
            file = f"conf/arch/{self.name}.yaml"
            raise ConfigError(f"arch {self.name} has no peak_tflops for {dtype!r}; add it to {file}")
        return self.peak_tflops[dtype]


def known_archs() -> tuple[str, ...]:
    """Return the sorted names of the archs that have a profile."""
    return conf_options("arch")


def load_arch(name: str) -> HardwareProfile:
    """Read ``conf/arch/<name>.yaml``, of the project or as shipped.

    Raises:
        ConfigError: the file does not exist or cannot be read, or a figure in it is wrong.
    """
    path = conf_file("arch", name)
    if path is None:
        known = ", ".join(known_archs())
        raise ConfigError(f"arch {name!r} is unknown; known are {known}, or add conf/arch/{name}.yaml")
    return _read(path.resolve(), name)


@cache
def _read(path: Path, name: str) -> HardwareProfile:
    import yaml  # imported here: the runtime reads its profile from the model's folder and needs no YAML

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{path}: must be a readable YAML file: {' '.join(str(e).split())}") from e
    profile = HardwareProfile.from_dict(values, source=str(path))
    if profile.name != name:
        raise ConfigError(f"{path}: 'name' must be {name!r}, as in the file's name, got {profile.name!r}")
    return profile
