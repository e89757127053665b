"""The tutorial's kernel works as it stands, and the examples compute what PyTorch does."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "autotune"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tutorials_kernel(tmp_path: Path) -> None:
    before, after, learning = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "tutorial-autotune.md").read_text(), re.S
    )
    head, _, body = before.partition("@triton.autotune(")
    decorator = after[after.index("@tilewise") : after.index("@triton.jit")]
    kernel = decorator + body[body.index("@triton.jit") :]
    file = tmp_path / "my_kernels.py"
    file.write_text(f"import tilewise\n{head}{kernel}{learning}".replace('"cuda"', f'"{DEVICE}"'))
    module = _module(file)
    x, factors = torch.randn(3, 50, device=DEVICE), torch.randn(3, device=DEVICE)
    y = torch.empty_like(x)
    module.scale_rows[(3,)](x, factors, y, 3, 50)
    torch.testing.assert_close(y, x * factors[:, None])
    assert module.scale_rows.choose(x, factors, y, 3, 50, grid=(3,)).why == "cache"
    key = module.scale_rows.draw_keys(5, seed=1)[0]
    assert module.scale_rows.op.problem_of(key).min_bytes("fp32") == 4 * key["rows"] * key["columns"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "shape"),
    [
        ("matmul", ((33, 48), (48, 70))),
        ("softmax", ((5, 300),)),
        ("layer_norm", ((5, 300), (300,), (300,))),
    ],
)
def test_an_example_computes_what_pytorch_does(example: str, shape: tuple[tuple[int, ...], ...]) -> None:
    module = _module(EXAMPLES / f"{example}.py")
    _keep_two(getattr(module, f"{example}_kernel"))
    operands = [torch.randn(size, device=DEVICE, dtype=torch.float16) for size in shape]
    expected = module.reference(*(o.float() for o in operands)).half()
    torch.testing.assert_close(getattr(module, example)(*operands), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_computes_what_pytorch_does(causal: bool) -> None:
    module = _module(EXAMPLES / "attention.py")
    _keep_two(module.attention_kernel)
    operands = [torch.randn(2, 50, 16, device=DEVICE, dtype=torch.float16) for _ in range(3)]
    result = module.attention(*operands, causal)
    torch.testing.assert_close(result, module.reference(*operands, causal), atol=0.01, rtol=0.02)


@pytest.mark.long
def test_the_mixture_of_experts_computes_what_pytorch_does_and_writes_vllms_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    module = _module(EXAMPLES / "fused_moe.py")
    _keep_two(module.fused_moe_kernel)
    operands = module.operands(20, 32, 48, 3)
    torch.testing.assert_close(module.fused_moe(*operands), module.reference(*operands), atol=0.05, rtol=0.02)
    monkeypatch.setattr(module, "TOKENS", (1, 2))
    path = module.write_vllm_file(3, 16, 48, tmp_path)
    assert path.name.startswith("E=3,N=16,device_name=")
    assert {*json.loads(path.read_text())["2"]} == {
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages",
    }  # fmt: skip


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_a_drawn_key_is_a_problem_of_the_examples_op(example: str) -> None:
    module = _module(EXAMPLES / f"{example}.py")
    kernel = getattr(module, f"{example}_kernel")
    for _ in range(20):
        problem = kernel.op.problem_of(module.draw_key(random.Random(1)))
        assert problem.flops > 0
        assert problem.min_bytes("fp16") > 0


def _keep_two(kernel: object) -> None:
    """Leave the first and the last configuration: the interpreter takes a second for each."""
    configurations = kernel.configurations  # type: ignore[attr-defined]
    kernel._chooser.configurations = (configurations[0], configurations[-1])  # type: ignore[attr-defined]
