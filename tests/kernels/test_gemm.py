"""Matrix products compile without a GPU for Hopper, with the instructions of their pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from alone import compiling
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton._rules import shared_memory_bytes
from tilewise.ops import GemmProblem

pytest.importorskip("triton")

_COMPILE = """
import json
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import GemmProblem
found = {{}}
programs = family_of("gemm", "universal").programs
for dtype, layout, config in {cases}:
    program = programs(Kernel.from_config(config), GemmProblem(512, 512, 512, layout), dtype)[0]
    compiled = compile_program(program, cuda_target("sm90"))
    ptx, meta = compiled.asm["ptx"], compiled.metadata
    found[f"{{dtype}} {{layout}} {{config}}"] = [
        meta.shared, "wgmma" in ptx, "cp.async.bulk.tensor" in ptx, [d["block_size"] for d in meta.tensordesc_meta]
    ]
print(json.dumps(found))
"""
PLAIN, TMA, PERSISTENT = (f"128x64x64_{p}_w4_s3_g8_k1" for p in ("plain", "tma", "persistent"))
WIDE = "128x192x64_tma_w8_s3_g8_k1"
CASES = [
    ("bf16", "rcr", PLAIN), ("bf16", "rcr", TMA), ("bf16", "crr", TMA), ("bf16", "rcr", PERSISTENT),
    ("fp8", "rcr", TMA), ("fp8", "ccr", PLAIN), ("bf16", "rcr", WIDE),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return shared memory, flags of warpgroup products and bulk tensor copies, and the descriptors' boxes."""
    env = compiling(tmp_path_factory.mktemp("triton"))
    source = _COMPILE.format(cases=CASES)
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "layout", "config"), CASES)
def test_each_pipeline_uses_its_loads_and_the_matrix_units(
    compiled: dict[str, Any], dtype: str, layout: str, config: str
) -> None:
    shared, products, bulk, _ = compiled[f"{dtype} {layout} {config}"]
    kernel = Kernel.from_config(config)
    assert products
    assert bulk == (kernel.pipeline != "plain")
    if layout == "rcr":
        stored = 128 * 64 * 2 if kernel.pipeline == "persistent" else 0
        assert shared - shared_memory_bytes(kernel, dtype) in range(stored, stored + 512)


def test_descriptors_load_whole_tiles_as_they_are_stored(compiled: dict[str, Any]) -> None:
    """A box that differs from the tile in shared memory would overwrite its neighbour."""
    assert compiled[f"bf16 rcr {TMA}"][3] == [[128, 64], [64, 64]]
    assert compiled[f"bf16 crr {TMA}"][3] == [[64, 64], [64, 64]]  # 128 columns are two boxes of 128 bytes
    assert compiled[f"bf16 rcr {PERSISTENT}"][3] == [[128, 64], [64, 64], [128, 64]]
    assert compiled[f"bf16 rcr {WIDE}"][3] == [[128, 64], [128, 64], [64, 64]]


def test_only_shares_of_a_split_need_a_workspace() -> None:
    from tilewise.kernels.triton.programs import family_of

    workspace_elements = family_of("gemm", "universal").workspace_elements
    kernel = Kernel.from_config("64x64x64_plain_w4_s3_g8_k4")
    assert workspace_elements(kernel, GemmProblem(3, 5, 4096)) == 4 * 3 * 5
    assert workspace_elements(Kernel.from_config(PLAIN), GemmProblem(3, 5, 4096)) == 0
