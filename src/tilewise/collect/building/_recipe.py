"""The commands that build one instance: generate its code, compile it into a library with the C API, link it.

Options, file names and macros are those of CK's dispatcher (its Python tools build a kernel with the same three steps).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewise.collect.building._checkout import Checkout
from tilewise.errors import KernelError, LibraryError
from tilewise.kernels.ck import AnyInstance, Instance, parse_name

_WARP = 64  # lanes on AMD's gfx9
_FLAGS = ("-fPIC", "-O3", "-D__HIP_PLATFORM_AMD__", "-DCK_TILE_SINGLE_KERNEL_INCLUDE")
_CODEGEN_FLAGS = ("-mllvm", "-enable-noalias-to-md-conversion=0")
_WARNINGS = ("-Wno-undefined-func-template", "-Wno-float-equal")
_BINDINGS = {"gemm": "gemm_ctypes_lib.cpp", "grouped_conv": "conv_ctypes_lib.cpp"}
_STREAMK_BINDING = "streamk_gemm_ctypes_lib.cpp"
_LAUNCHERS = {"forward": "Conv", "bwd_data": "ConvBwdData", "bwd_weight": "ConvBwdWeight"}
_SYMBOLS = {"forward": "CONV_FWD", "bwd_data": "CONV_BWD_DATA", "bwd_weight": "CONV_BWD_WEIGHT"}
_SELECTED = {
    "forward": "SelectedConvKernelLauncher",
    "bwd_data": "SelectedConvBwdDataLauncher",
    "bwd_weight": "SelectedConvBwdWeightLauncher",
}


def unbuildable_reason(instance: AnyInstance) -> str | None:
    """Return why CK's generator has no options for an instance, or None if it has them."""
    if not isinstance(instance, Instance):
        return "the generator builds depthwise kernels in sets only, by its rules, and not one by one"
    k, conv = instance.kernel, instance.op == "grouped_conv"
    rules = (
        (not (k.warp_m and k.warp_n and k.warp_k and k.warp_tile_m), "its warps and warp tile are not stated"),
        (k.ndim == 1, "the C API has 2D and 3D convolutions only"),
        (k.store_immediate, "the generator has no option for store_immediate"),
        (conv and k.streamk_enabled, "the generator builds stream-K convolutions in sets only"),
        (instance.explicit_gemm, "the generator has no option for explicit_gemm"),
        (instance.specialization != "default", f"the generator has no option for {instance.specialization}"),
        (k.split_k > 0, "a split of K is an argument of a launch, which the C API does not pass"),
        (bool(k.suffix), f"a kernel with the suffix {k.suffix} has further operands or another layout of B"),
        (not conv and bool(k.vector_a), "the generator has no option for the vector widths of a matrix product"),
        (k.pipeline.startswith("preshuffle"), "the C API does not pass a shuffled B"),
    )
    return next((reason for broken, reason in rules if broken), None)


@dataclass(frozen=True)
class Recipe:
    """The build of one instance for an arch.

    Raises:
        KernelError: the generator has no options for the instance.
    """

    instance: Instance
    arch: str

    def __post_init__(self) -> None:
        if reason := unbuildable_reason(self.instance):
            raise KernelError(f"{self.instance.name} cannot be built: {reason}")

    @property
    def binding(self) -> str:
        """File name of the source with the C API."""
        return _STREAMK_BINDING if self._is_streamk else _BINDINGS[self.instance.op]

    @property
    def _is_streamk(self) -> bool:
        return self.instance.op == "gemm" and bool(self.instance.kernel.streamk_enabled)

    def generate(self, checkout: Checkout, folder: Path) -> list[str]:
        """Return the command that writes the kernel's header into a folder."""
        script = str(checkout.generator(self.instance.op))
        options = self._conv_options(folder) if self.instance.op == "grouped_conv" else self._gemm_options(folder)
        return [sys.executable, script, *options]

    def _conv_options(self, folder: Path) -> list[str]:
        i, k = self.instance, self.instance.kernel
        values = {
            "output": folder, "datatype": i.dtype, "variant": i.variant, "ndim": k.ndim, "arch": self.arch,
            "tile-m": k.tile_m, "tile-n": k.tile_n, "tile-k": k.tile_k,
            "warp-m": k.warp_m, "warp-n": k.warp_n, "warp-k": k.warp_k,
            "warp-tile-m": k.warp_tile_m, "warp-tile-n": k.warp_tile_n, "warp-tile-k": k.warp_tile_k,
            "pipeline": k.pipeline, "scheduler": k.scheduler or "intrawave", "epilogue": k.epilogue or "cshuffle",
            "num-groups-to-merge": max(k.num_groups_to_merge, 1), "num-wave-groups": max(i.num_wave_groups, 1),
            "double-smem-buffer": str(bool(k.double_smem_buffer)).lower(),
            **({"vector-a": k.vector_a, "vector-b": k.vector_b, "vector-c": k.vector_c} if k.vector_a else {}),
        }  # fmt: skip
        options = [text for name, value in values.items() for text in (f"--{name}", str(value))]
        return [*options, *(["--split-image"] * i.split_image), *(["--two-stage"] * i.two_stage)]

    def _gemm_options(self, folder: Path) -> list[str]:
        k = self.instance.kernel
        sizes = [f"{part}_{x}" for part in ("tile", "warp", "warp_tile") for x in "mnk"]
        traits = ("pipeline", "epilogue", "scheduler", "pad_m", "pad_n", "pad_k", "persistent")
        threads = k.warp_m * k.warp_n * k.warp_k * _WARP
        config = {
            "tile_config": {**{name: [getattr(k, name)] for name in sizes}, "block_size": [threads]},
            "trait_config": {name: [getattr(k, name)] for name in traits},
        }
        if self._is_streamk:
            config["streamk_config"] = {"reduction_strategy": [k.streamk_reduction_strategy]}
        return [
            "--datatype", self.instance.dtype, "--layout", k.gemm_layout, "--gpu-target", self.arch,
            "--variants", "stream_k" if self._is_streamk else "standard",
            "--tile-config-json", json.dumps(config), "--output-dir", str(folder),
        ]  # fmt: skip

    def header(self, folder: Path) -> Path:
        """Return the generated header of this kernel.

        Raises:
            LibraryError: the generator wrote no header, or another kernel than the wanted one.
        """
        found = sorted(folder.rglob(f"{self.instance.op}_*.hpp"))
        for file in found:
            if _canonical(file.stem) == self.instance.name:
                return file
        wrote = ", ".join(file.stem for file in found[:3]) or "no header"
        raise LibraryError(f"the generator wrote {wrote}; wanted is {self.instance.name}")

    def included(self, header: Path) -> Path:
        """Return the file that the C API's source includes; write it where the source wants more than the header."""
        if self.instance.op == "gemm":
            return header
        variant, ndim = self.instance.variant, self.instance.kernel.ndim
        symbol = _SYMBOLS[variant]
        lines = [
            "#pragma once",
            f'#include "{header.name}"',
            f"#define {symbol}_{3 if ndim == 3 else 2}D_AVAILABLE 1",
            f"static const char* CONV_KERNEL_NAMES[] = {{{symbol}_KERNEL_NAME}};",
            "static constexpr int CONV_KERNEL_COUNT = 1;",
        ]
        if ndim == 3:
            alias = "ConvFwd3dLauncher" if variant == "forward" else f"{_LAUNCHERS[variant]}3dLauncher"
            lines.insert(3, f"using {alias} = {_SELECTED[variant]};")
        file = header.with_name("tilewise_single_kernel.hpp")
        file.write_text("\n".join(lines) + "\n")
        return file

    def compile(self, compiler: str, checkout: Checkout, include: Path, folder: Path) -> list[str]:
        """Return the command that compiles the library's object into a folder."""
        root = checkout.root
        folders = (root / "dispatcher" / "include", root / "include", root, include.parent)
        return [
            compiler, "-c", *_FLAGS, f"--offload-arch={self.arch}", f'-DGFX_ARCH="{self.arch}"', *_CODEGEN_FLAGS,
            *_WARNINGS, *(f"-I{f}" for f in folders), "-include", str(include), str(checkout.binding(self.binding)),
            "-o", str(folder / "kernel.o"),
        ]  # fmt: skip

    def link(self, compiler: str, checkout: Checkout, folder: Path) -> list[str]:
        """Return the command that links the library in a folder."""
        return [
            compiler, "-shared", "-fPIC", f"--offload-arch={self.arch}", "--hip-link", str(folder / "kernel.o"),
            str(checkout.static_library), "-o", str(folder / "library.so"),
        ]  # fmt: skip


def _canonical(name: str) -> str | None:
    try:
        return parse_name(name).canonical
    except KernelError:
        return None


def instances_by_name(instances: Sequence[AnyInstance]) -> dict[str, Instance]:
    """Return instances by their kernels' names, in order.

    Raises:
        KernelError: there is no instance, or two instances share a name, which would be one file.
    """
    found: dict[str, Instance] = {}
    for instance in instances:
        if not isinstance(instance, Instance):
            raise KernelError(f"{instance.name} cannot be built: {unbuildable_reason(instance)}")
        if instance.name in found and found[instance.name] != instance:
            raise KernelError(f"two instances have the name {instance.name}; choose one with filter=")
        found[instance.name] = instance
    if not found:
        raise KernelError("there are no instances to build")
    return found
