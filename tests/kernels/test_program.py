"""Programs compile without a GPU, and to the same cache entry in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from alone import compiling

pytest.importorskip("triton")

_COMPILE = """
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import GroupedConvProblem
problem = GroupedConvProblem(8, 64, 64, 1, 56, 56, 3, 3, pad_h=1, pad_w=1)
programs = family_of("grouped_conv", "forward").programs
for program in programs(Kernel.from_config("64x64x32_taps_w4_s3_g1_k2"), problem, "bf16"):
    compiled = compile_program(program, cuda_target("sm90"))
    print(compiled.hash, compiled.metadata.shared, "wgmma" in compiled.asm["ptx"])
"""

_COPIES = """
import re
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import GroupedConvProblem
programs = family_of("grouped_conv", "forward").programs
for channels in (64, 36, 34, 35):
    problem = GroupedConvProblem(8, channels, 64, 1, 28, 28, 3, 3, pad_h=1, pad_w=1)
    (program,) = programs(Kernel.from_config("64x64x32_taps_w4_s3_g1_k1"), problem, "bf16")
    ptx = compile_program(program, cuda_target("sm90")).asm["ptx"]
    print(*sorted(set(re.findall(r"cp\\.async\\.c[ag]\\.\\S+ \\[.*?\\], \\[.*?\\], (0x\\w+|\\d+)", ptx))) or ["none"])
"""


def _compile(cache: Path, hash_seed: int) -> list[str]:
    env = compiling(cache) | {"PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.long
def test_compiled_ahead_is_found_by_another_process(tmp_path: Path) -> None:
    """Triton keys its cache by text: an order that changes from process to process would compile everything twice."""
    first, second = _compile(tmp_path, 1), _compile(tmp_path, 2)
    assert first == second
    assert len(list(tmp_path.glob("*/*.cubin"))) == 2  # the product and the sum of its shares


@pytest.mark.long
def test_shared_memory_equals_the_rules_and_tensor_cores_are_used(tmp_path: Path) -> None:
    _, shared, matrix_units, *_ = _compile(tmp_path, 0)
    assert int(shared) == 3 * (64 + 64) * 32 * 2
    assert matrix_units == "True"


@pytest.mark.long
def test_loads_go_to_shared_memory_where_2_divides_the_channels(tmp_path: Path) -> None:
    """Of as many elements as the channels allow; a single one of 16 bits is too small for an asynchronous copy."""
    done = subprocess.run([sys.executable, "-c", _COPIES], env=compiling(tmp_path), capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert [{int(n, 0) for n in line.split()} if line != "none" else set() for line in done.stdout.splitlines()] == [
        {16}, {8}, {4}, set()
    ]  # fmt: skip
