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
from tilewise.kernels.triton._boxes import joined
from tilewise.kernels.triton.programs import family_of
from tilewise.ops import GroupedConvProblem, Target

pytest.importorskip("triton")

SM90 = load_arch("sm90")
CONFIGS = [(variant, config) for variant, configs in RELAY_CONFIGS.items() for config in configs]
PROBLEMS = REAL["grouped_conv"] | {"odd channels": GroupedConvProblem(8, 255, 91, 1, 14, 14, 3, 3, pad_h=1, pad_w=1)}
NAMES = ("resnet 3x3", "resnet 3x3, stride 2", "odd channels")
CASES = [(name, *each) for name in NAMES for each in CONFIGS]

_COMPILE = """
import json, sys
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import OPS
found = []
for dims, variant, config in json.loads(sys.stdin.read()):
    problem = OPS["grouped_conv"].from_dict(dims)
    programs = family_of("grouped_conv", variant).programs(Kernel.from_config(config), problem, "bf16")
    program = next(program for program in programs if "relay" in program.fn.__name__)
    compiled = compile_program(program, cuda_target("sm90"))
    found.append({"shared": compiled.metadata.shared, "warps": compiled.metadata.num_warps, "ptx": compiled.asm["ptx"]})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return shared memory, warps and PTX of each case."""
    env = compiling(tmp_path_factory.mktemp("triton"))
    passed = json.dumps([(PROBLEMS[name].to_dict(), *each) for name, *each in CASES])
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, input=passed, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("name", "variant", "config"), CASES)
def test_kernels_use_the_instructions_of_hopper(
    compiled: dict[tuple[str, str, str], dict[str, Any]], name: str, variant: str, config: str
) -> None:
    kernel, found = Kernel.from_config(config), compiled[name, variant, config]
    # one warp loads; a box of more than 64 channels comes in pieces, as the swizzle has rows of 128 bytes
    # a stride costs no further loads, as the descriptor is chosen before
    loads = (kernel.tile_m + kernel.tile_n) // 64 if variant == "bwd_weight" else 1
    assert f"wgmma.mma_async.sync.aligned.m64n{kernel.tile_n}k16" in found["ptx"]
    assert found["ptx"].count("cp.async.bulk.tensor.5d.shared::") == loads
    assert ("cp.async.bulk.tensor.5d.global" in found["ptx"]) == (name != "odd channels" and variant != "bwd_weight")
    assert "setmaxnreg" in found["ptx"]
    assert found["warps"] == 12  # eight that multiply, one that loads, and those that fill its four
    assert found["shared"] <= SM90.shared_memory_bytes


@pytest.mark.parametrize(("variant", "config"), CONFIGS)
def test_kernels_are_legal_and_launch_at_most_a_program_per_unit(variant: str, config: str) -> None:
    torch, kernel, family = pytest.importorskip("torch"), Kernel.from_config(config), family_of("grouped_conv", variant)
    assert illegal(kernel, Target("grouped_conv", variant, "bf16", "sm90"), SM90) is None
    able = [p for p in REAL["grouped_conv"].values() if unsupported(kernel, p, variant, "bf16") is None]
    assert len(able) > 3
    for problem in able:
        elements = family.workspace_elements(kernel, problem)
        shapes = (*family.operands(problem), family.result(problem))
        tensors = [torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes]
        launches = family.launches(kernel, problem, "bf16", *tensors, torch.empty(elements, device="meta"))
        (main,) = (launch for launch in launches if "relay" in launch.program.fn.__name__)
        assert 1 <= main.grid[0] <= 4  # units that the interpreter pretends to have
        others = [launch.program.fn.__name__ for launch in launches if launch is not main]
        copies = any(shape[-1] % 8 for shape in family.operands(problem))
        assert others == ["pad_channels"] * copies + ["sum_shares"] * (kernel.split_k > 1)


@pytest.mark.parametrize(("stride_h", "stride_w"), [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize(("high", "wide"), [(6, 8), (5, 7), (2, 3)])
def test_descriptors_of_a_strided_filter_hold_each_pixel_once(
    stride_h: int, stride_w: int, high: int, wide: int
) -> None:
    from tilewise.kernels.triton.programs.conv.gluon._images import described_images

    torch, p = pytest.importorskip("torch"), GroupedConvProblem(2, 8, 8, 1, high, wide, 1, 1, stride_h, stride_w)
    grid = joined(p, p.Di, p.Hi, p.Wi)
    x = torch.arange(p.N * p.Hi * p.Wi * p.C, dtype=torch.float32).reshape(*map(int, grid), p.C)
    for i, each in enumerate(described_images(x, grid, p.C, p, (1, 1, 8, 8, 8), strided=True)):
        assert each is not None
        odd_h, odd_w = min(i // 2, stride_h - 1), min(i % 2, stride_w - 1)
        pixels = torch.as_strided(each.base, each.shape, each.strides, each.base.storage_offset())
        assert torch.equal(pixels, x[:, :, odd_h::stride_h, odd_w::stride_w])
        assert all(stride % 8 == 0 for stride in each.strides[:-1])  # elements of 16 bits: 16 bytes
