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
TARGET = Target("grouped_conv", "forward", "bf16", "sm90")
PROBLEM = REAL["grouped_conv"]["resnet 3x3"]

_COMPILE = """
import json, sys
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import OPS, Target
target, dims, configs = json.loads(sys.stdin.read())
target, found = Target.parse(target), []
for config in configs:
    problem = OPS[target.op].from_dict(dims)
    (program,) = family_of(target.op, target.variant).programs(Kernel.from_config(config), problem, target.dtype)
    compiled = compile_program(program, cuda_target("sm90"))
    found.append({"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps, "ptx": compiled.asm["ptx"]})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return shared memory, warps and PTX of each kernel."""
    given = json.dumps([TARGET.name, PROBLEM.to_dict(), RELAY_CONFIGS])
    env = compiling(tmp_path_factory.mktemp("triton"))
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, input=given, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("index", range(len(RELAY_CONFIGS)), ids=lambda i: RELAY_CONFIGS[i])
def test_kernels_use_the_instructions_of_hopper(compiled: list[dict[str, Any]], index: int) -> None:
    kernel, found = Kernel.from_config(RELAY_CONFIGS[index]), compiled[index]
    assert f"wgmma.mma_async.sync.aligned.m64n{kernel.tile_n}k16" in found["ptx"]
    assert found["ptx"].count("cp.async.bulk.tensor.5d.shared::") == 1  # one warp loads
    assert "setmaxnreg" in found["ptx"]
    assert found["warps"] == 12  # eight that multiply, one that loads, and those that fill its four
    assert found["shared"] <= SM90.shared_memory_bytes


@pytest.mark.parametrize("config", RELAY_CONFIGS)
def test_kernels_are_legal_and_launch_at_most_a_program_per_unit(config: str) -> None:
    kernel, family = Kernel.from_config(config), family_of("grouped_conv", "forward")
    assert illegal(kernel, TARGET, SM90) is None
    torch = pytest.importorskip("torch")
    for problem in REAL["grouped_conv"].values():
        if unsupported(kernel, problem, "forward", "bf16"):
            continue
        tensors = [torch.empty(s, device="meta") for s in (*family.operands(problem), family.result(problem), (0,))]
        (launch,) = family.launches(kernel, problem, "bf16", *tensors)
        assert 1 <= launch.grid[0] <= 4  # units that the interpreter pretends to have
