"""Hardware profiles: the figures of an arch that features and rules need, read from ``conf/arch/<name>.yaml``.

Adding an arch is adding one YAML file; each figure there carries its source.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

from tilewise.errors import ConfigError

_OPTIONAL = {"backend", "warp_tiles"}
# What a figure's annotation stands for. YAML takes some numbers for texts: 1e9, for one.
_KINDS: dict[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "Mapping": (Mapping, "a mapping such as {bf16: 989.5}"),
}
_FIRST_BACKEND = "triton"  # left out where a profile is kept: models and plans from before there were two name none


@dataclass(frozen=True)
class HardwareProfile:
    """What one GPU offers. Sizes in bytes, clocks in MHz, bandwidth in GB/s, peaks in TFLOPS per dtype (dense).

    `backend` names who makes its kernels (see :mod:`tilewise.kernels.backends`); `warp_tiles` are, per dtype, the
    (m, n, k) that CK Tile computes with one matrix instruction or a chain of them, where they are known.
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
    backend: str = _FIRST_BACKEND
    warp_tiles: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], *, source: str = "hardware profile") -> Self:
        """Build from a mapping with exactly the fields above; `backend` and `warp_tiles` may be absent.

        Raises:
            ConfigError: a figure is missing, unknown, of the wrong kind or not positive; names `source` and the key.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: a hardware profile has keys and values, got {values!r:.60}")
        known = {f.name: f for f in dataclasses.fields(cls)}
        for key in sorted((set(known) ^ set(values)) - _OPTIONAL, key=str):
            fault = "missing" if key in known else "no figure of a hardware profile"
            raise ConfigError(f"{source}: {key!r} is {fault}")
        for key, value in values.items():
            kinds, what = _KINDS[str(known[key].type).partition("[")[0]]
            if not isinstance(value, kinds) and not isinstance(value, bool):
                raise ConfigError(f"{source}: {key!r} must be {what}, got {value!r}")
            figures = value.values() if isinstance(value, Mapping) else [value]
            if any(isinstance(v, bool) or (isinstance(v, int | float) and v <= 0) for v in figures):
                raise ConfigError(f"{source}: {key!r} must be positive, got {value!r}")
        return cls(**{**values, "peak_tflops": dict(values["peak_tflops"])})

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain data, the inverse of :meth:`from_dict`."""
        values = dataclasses.asdict(self)
        if self.backend == _FIRST_BACKEND:
            del values["backend"]
        if not self.warp_tiles:
            del values["warp_tiles"]
        return values

    def peak(self, dtype: str) -> float:
        """Peak TFLOPS of the matrix units for `dtype`.

        Raises:
            ConfigError: the profile has no figure for it.
        """
        if dtype not in self.peak_tflops:
            file = f"conf/arch/{self.name}.yaml"
            raise ConfigError(f"arch {self.name} has no peak_tflops for {dtype!r}; add it to {file}")
        return self.peak_tflops[dtype]


def conf_dir() -> Path:
    """The folder of the Hydra configuration: ``TILEWISE_CONF``, else the installed package's, else the repository's.

    Raises:
        ConfigError: ``TILEWISE_CONF`` names no such folder.
    """
    installed = Path(__file__).parent / "conf"
    own = installed if installed.is_dir() else Path(__file__).parents[2] / "conf"
    chosen = Path(os.environ.get("TILEWISE_CONF") or own)
    if not (chosen / "config.yaml").is_file():
        raise ConfigError(f"TILEWISE_CONF={chosen}: no folder with a config.yaml; copy {own} there and change the copy")
    return chosen


def known_archs() -> tuple[str, ...]:
    """The archs that have a profile, by name."""
    return tuple(sorted(p.stem for p in (conf_dir() / "arch").glob("*.yaml")))


def load_arch(name: str) -> HardwareProfile:
    """Read ``conf/arch/<name>.yaml``.

    Raises:
        ConfigError: there is no such file, or a figure is wrong.
    """
    return _read(conf_dir(), name)


@cache
def _read(folder: Path, name: str) -> HardwareProfile:
    import yaml  # kept out of the module: the runtime gets its profile from the model's folder

    known = known_archs()
    if name not in known:
        raise ConfigError(f"arch {name!r} is unknown; known are {', '.join(known)} (one file each in conf/arch)")
    path = folder / "arch" / f"{name}.yaml"
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(e).split())}") from e
    profile = HardwareProfile.from_dict(values, source=str(path))
    if profile.name != name:
        raise ConfigError(f"{path}: 'name' must be {name!r}, as the file is called, got {profile.name!r}")
    return profile
