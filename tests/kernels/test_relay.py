"""The programs of ``relay`` compile for sm90 to the instructions that they are written for, within the rules' limits.

Triton's interpreter has no Gluon: on a GPU, ``test_families.py`` compares the results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from alone import compiling
from kernels.shapes import REAL, RELAY_CONFIGS
from tilewise.arch import load_arch
from tilewise.kernels import illegal, unsupported
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import family_of
from tilewise.ops import Target

pytest.importorskip("triton")

SM90 = load_arch("sm90")
CASES = [(variant, config) for variant, configs in RELAY_CONFIGS.items() for config in configs]
NAMED = pytest.mark.parametrize(("variant", "config"), CASES, ids=[f"{v}-{c}" for v, c in CASES])
PROBLEM = REAL["grouped_conv"]["resnet 3x3"]

_COMPILE = """
import json, sys
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import OPS
dims, cases = json.loads(sys.stdin.read())
problem, found = OPS["grouped_conv"].from_dict(dims), []
for variant, config in cases:
    program, *_ = family_of("grouped_conv", variant).programs(Kernel.from_config(config), problem, "bf16")
    compiled = compile_program(program, cuda_target("sm90"))
    found.append({"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps, "ptx": compiled.asm["ptx"]})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Return shared memory, warps and PTX of each case."""
    env, passed = compiling(tmp_path_factory.mktemp("triton")), json.dumps([PROBLEM.to_dict(), CASES])
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, input=passed, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.long
@NAMED
def test_kernels_use_the_instructions_of_hopper(
    compiled: dict[tuple[str, str], dict[str, Any]], variant: str, config: str
) -> None:
    kernel, found = Kernel.from_config(config), compiled[variant, config]
    # one warp loads; a box of more than 64 channels comes in pieces, as the swizzle has rows of 128 bytes
    loads = (kernel.tile_m + kernel.tile_n) // 64 if variant == "bwd_weight" else 1
    assert f"wgmma.mma_async.sync.aligned.m64n{kernel.tile_n}k16" in found["ptx"]
    assert found["ptx"].count("cp.async.bulk.tensor.5d.shared::") == loads
    assert "setmaxnreg" in found["ptx"]
    assert found["warps"] == 12  # eight that multiply, one that loads, and those that fill its four
    assert found["shared"] <= SM90.shared_memory_bytes


@NAMED
def test_kernels_are_legal_and_launch_at_most_a_program_per_unit(variant: str, config: str) -> None:
    torch, kernel, family = pytest.importorskip("torch"), Kernel.from_config(config), family_of("grouped_conv", variant)
    assert illegal(kernel, Target("grouped_conv", variant, "bf16", "sm90"), SM90) is None
    able = [p for p in REAL["grouped_conv"].values() if unsupported(kernel, p, variant, "bf16") is None]
    assert len(able) > 3
    for problem in able:
        tensors = [torch.empty(s, device="meta") for s in (*family.operands(problem), family.result(problem), (0,))]
        launch, *rest = family.launches(kernel, problem, "bf16", *tensors)
        assert 1 <= launch.grid[0] <= 4  # units that the interpreter pretends to have
        assert len(rest) == (kernel.split_k > 1)
