"""The programs of ``slide`` compile for sm90 to the instructions that they are written for, within the rules' limits.

Triton's interpreter has no Gluon: on a GPU, ``test_families.py`` compares the results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alone import compiling
from kernels.shapes import REAL, SLIDE_CONFIGS
from tilewise.arch import load_arch
from tilewise.kernels import illegal, unsupported
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton._boxes import ROW_PIXELS, fewest_row_steps, row_box, row_steps
from tilewise.kernels.triton._shapes import merged_groups
from tilewise.kernels.triton.programs import family_of
from tilewise.ops import GroupedConvProblem, Target

pytest.importorskip("triton")

SM90 = load_arch("sm90")
CASES = [(variant, config) for variant, configs in SLIDE_CONFIGS.items() for config in configs]
NAMED = pytest.mark.parametrize(("variant", "config"), CASES, ids=[f"{v}-{c}" for v, c in CASES])
PROBLEMS = [p for p in REAL["grouped_conv"].values() if isinstance(p, GroupedConvProblem)]
PROBLEM = REAL["grouped_conv"]["resnext"]

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
    weight, ptx = variant == "bwd_weight", found["ptx"]
    sets = 3 if weight else 64 // kernel.tile_n
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{kernel.tile_n}k16") == 36
    assert ptx.count("cp.async.bulk.tensor.5d.shared::") == 3 * (1 if weight else sets) + weight  # one warp loads
    assert "setmaxnreg" in ptx
    assert found["warps"] == 4 * sets + 4  # those that multiply, one that loads, and those that fill its four
    assert found["shared"] <= SM90.shared_memory_bytes
    assert ("st.global.v4" in ptx) != weight


@NAMED
def test_kernels_are_legal_and_their_launches_cover_every_group(variant: str, config: str) -> None:
    torch, kernel, family = pytest.importorskip("torch"), Kernel.from_config(config), family_of("grouped_conv", variant)
    assert illegal(kernel, Target("grouped_conv", variant, "bf16", "sm90"), SM90) is None
    able = [p for p in PROBLEMS if unsupported(kernel, p, variant, "bf16") is None]
    assert len(able) > 3
    for p in able:
        shapes = (*family.operands(p), family.result(p), (0,))
        first, *rest = family.launches(kernel, p, "bf16", *(torch.empty(s, device="meta") for s in shapes))
        groups, sets = int(merged_groups(kernel, p, variant)), 1 if variant == "bwd_weight" else 64 // kernel.tile_n
        assert groups * max(p.C, p.K) // p.G <= kernel.tile_n
        assert first.grid[1] * sets * groups >= p.G > (first.grid[1] - 1) * sets * groups
        assert len(rest) == (kernel.split_k > 1)


@NAMED
def test_problems_of_equal_alignment_share_their_programs(variant: str, config: str) -> None:
    kernel, family = Kernel.from_config(config), family_of("grouped_conv", variant)
    programs: dict[object, set[object]] = {}
    changes: tuple[dict[str, int], ...] = (
        {},
        {"N": 9},
        {"Hi": 40},
        {"stride_h": 2},
        {"dilation_h": 2},
        {"Y": 1},
        {"K": 192},
        {"C": 256, "K": 256},
    )
    for change in changes:
        p = GroupedConvProblem(**{**PROBLEM.to_dict(), **change})
        if unsupported(kernel, p, variant, "bf16") is None:
            programs.setdefault(family.alignment(p, "bf16"), set()).add(family.programs(kernel, p, "bf16"))
    assert len(programs) > 3
    assert {len(found) for found in programs.values()} == {1}


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 300), st.sampled_from(["forward", "bwd_data", "bwd_weight"]))
def test_rows_cover_the_images_with_the_fewest_steps(images: int, width: int, variant: str) -> None:
    p = GroupedConvProblem(images, 64, 64, 8, 5, width, 3, 3, pad_h=1, pad_w=1)
    of, columns = row_box(p, variant)
    assert of * columns == ROW_PIXELS
    steps = row_steps(p, variant, columns)
    assert steps * ROW_PIXELS >= images * 5 * width
    assert steps == fewest_row_steps(p, variant) <= images * 5 * -(-width // ROW_PIXELS)
    assert fewest_row_steps(p, variant) == np.min([row_steps(p, variant, n) for n in (64, 32, 16, 8, 4)])
