"""The drop-in functions at real sizes in both dtypes: compared with fp32, compiled, captured, on other streams.

``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/dispatch/launching/test_launch_on_gpu.py tests/torch_functions``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.dispatch import Dispatcher
from tilewise.kernels import Pool
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import OPS, GroupedConvProblem, Target
from torch_functions.compare import conv_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("pools")]


def cuda(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the pools' order decide instead of measurements."""
    monkeypatch.setenv("TILEWISE_MEASURE", "off")
    targets = [Target("grouped_conv", v, d, "sm90") for v in GroupedConvProblem.variants for d in ("bf16", "fp16")]
    targets += [Target("gemm", "universal", d, "sm90") for d in ("bf16", "fp16")]
    with ours.use(*map(Dispatcher.from_pool, targets)):
        yield


class Net(torch.nn.Module):  # type: ignore[misc] # torch has no types here
    """A small network of both kinds of convolution and a product, by ours or by PyTorch's functions."""

    def __init__(self, functions: Any, matmul: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.functions, self.matmul = functions, matmul
        self.stem = torch.nn.Parameter(torch.randn(32, 3, 3, 3) / 5)
        self.depth = torch.nn.Parameter(torch.randn(32, 1, 3, 3) / 3)
        self.point = torch.nn.Parameter(torch.randn(64, 32, 1, 1) / 6)
        self.bias = torch.nn.Parameter(torch.randn(64))
        self.head = torch.nn.Parameter(torch.randn(64, 16) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.functions.conv2d(x, self.stem, stride=2, padding=1).relu()
        x = self.functions.conv2d(x, self.depth, padding="same", groups=32).relu()
        x = self.functions.conv2d(x, self.point, self.bias).relu()
        return self.matmul(x.mean((2, 3)), self.head)


def gradients(y: torch.Tensor, of: list[torch.Tensor], dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(y, of, dy)
    return found


def near(a: Any, b: Any, share: float = 0.02) -> None:
    """Check equality within a share of the element and the results' spread, for 8-bit rounding and reordered sums."""
    a, b = a.float(), b.float()
    assert a.shape == b.shape
    assert bool(((a - b).abs() <= share * (b.abs() + b.square().mean().sqrt())).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("x", "w", "options"), [
    ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    ((4, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ((4, 128, 28, 28), (128, 4, 3, 3), {"padding": "same", "groups": 32}),
    ((4, 96, 30, 30), (96, 1, 5, 5), {"padding": 2, "groups": 96}),
    ((2, 37, 19, 23), (53, 37, 3, 4), {"padding": "same"}),
    ((2, 32, 8, 14, 14), (48, 32, 3, 3, 3), {"padding": 1, "stride": (1, 2, 2)}),
])  # fmt: skip
def test_convolution(x: Any, w: Any, options: Any, last: bool, dtype: torch.dtype) -> None:
    layout = torch.channels_last if len(w) == 4 else torch.channels_last_3d
    operands = [cuda(*s, dtype=dtype) for s in (x, w, w[:1])]
    if last:
        operands[:2] = [t.to(memory_format=layout) for t in operands[:2]]
    f, exact = conv_of(w)
    mine, theirs = [t.clone().requires_grad_() for t in operands], [t.float().requires_grad_() for t in operands]
    y, right = f(*mine, **options), exact(*theirs, **options)
    dy = torch.randn_like(right).to(dtype)
    for a, b in [(y, right), *zip(gradients(y, mine, dy), gradients(right, theirs, dy.float()), strict=True)]:
        near(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("x", "w", "options"), [
    ((4, 256, 28, 28), (256, 128, 2, 2), {"stride": 2}),
    ((2, 128, 16, 16), (128, 64, 4, 4), {"stride": 2, "padding": 1}),
    ((2, 64, 15, 17), (64, 8, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 8}),
    ((2, 32, 4, 14, 14), (32, 16, 2, 2, 2), {"stride": 2}),
])  # fmt: skip
def test_transposed_convolution(x: Any, w: Any, options: Any, dtype: torch.dtype) -> None:
    ndim = len(w) - 2
    f, exact = (getattr(module, f"conv_transpose{ndim}d") for module in (ours, own))
    operands = [cuda(*s, dtype=dtype) for s in (x, w, (w[1] * options.get("groups", 1),))]
    mine, theirs = [t.clone().requires_grad_() for t in operands], [t.float().requires_grad_() for t in operands]
    y, right = f(*mine, **options), exact(*theirs, **options)
    dy = torch.randn_like(right).to(dtype)
    for a, b in [(y, right), *zip(gradients(y, mine, dy), gradients(right, theirs, dy.float()), strict=True)]:
        near(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("flips", [(False, False), (False, True), (True, False), (True, True)])
def test_matrix_product(flips: tuple[bool, bool], dtype: torch.dtype) -> None:
    shapes = ((512, 768), (768, 384))
    a, b = (
        cuda(*(s[::-1] if flip else s), dtype=dtype).t() if flip else cuda(*s, dtype=dtype)
        for s, flip in zip(shapes, flips, strict=True)
    )
    mine, theirs = [t.detach().requires_grad_() for t in (a, b)], [t.float().requires_grad_() for t in (a, b)]
    y, right = ours.matmul(*mine), torch.matmul(*theirs)
    dy = torch.randn_like(right).to(dtype)
    for got, exact in [(y, right), *zip(gradients(y, mine, dy), gradients(right, theirs, dy.float()), strict=True)]:
        near(got, exact)


KERNELS = {  # one of each way to launch: pointers, descriptors, a reduction after it, a persistent one, the library
    "grouped_conv": (
        "64x64x64_taps_w4_s4_g1_k1", "64x64x64_taps_w4_s4_g1_k4", "64x64x64_box_w4_s4_g1_k1",
        "64x64x64_box_w4_s4_g1_k4", "128x64x64_persistent_w4_s4_g8_k1", "vendor_cudnn",
    ),
    "gemm": ("64x64x64_plain_w4_s4_g8_k1", "64x64x64_tma_w4_s4_g8_k4", "128x64x64_persistent_w4_s4_g8_k1",
             "vendor_cublas"),
}  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize(("op", "config"), [(op, config) for op, configs in KERNELS.items() for config in configs])
def test_repeated_calls(op: str, config: str, activation: str) -> None:
    """Later calls take no check, and new memory each time."""
    variant = OPS[op].variants[0]
    with ours.use(dispatcher_of(op, variant, config, dtype="bf16")), torch.no_grad():
        for _ in range(4):
            if op == "gemm":
                a, w, b, r = (cuda(*s, dtype=torch.bfloat16) for s in ((8, 64, 512), (128, 512), (128,), (8, 64, 128)))
                y = ours.linear(a, w, b, residual=r, activation=activation)
                right = own.linear(a.float(), w.float(), b.float()) + r.float()
            else:
                shapes = ((4, 64, 28, 28), (128, 64, 3, 3), (4, 128, 28, 28))
                x, w, r = (cuda(*s, dtype=torch.bfloat16).to(memory_format=torch.channels_last) for s in shapes)
                b = cuda(128, dtype=torch.bfloat16)
                y = ours.conv2d(x, w, b, padding=1, residual=r, activation=activation)
                right = own.conv2d(x.float(), w.float(), b.float(), padding=1) + r.float()
                assert y.is_contiguous(memory_format=torch.channels_last)
            near(y, getattr(own, activation)(right))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_network_compiled_whole_trains(mode: str) -> None:
    """`reduce-overhead` captures CUDA graphs."""
    net, reference = Net(ours, ours.matmul).cuda(), Net(own, torch.matmul).cuda()
    compiled = torch.compile(net, fullgraph=True, mode=mode)
    for step in range(4):
        torch.manual_seed(step)
        x = torch.randn(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
        for model, parameters in ((compiled, net), (reference, reference)):
            parameters.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
        for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
            assert float((mine.grad - theirs.grad).norm() / theirs.grad.norm()) < 0.05


def test_backward_runs_on_the_streams_of_forward() -> None:
    x = cuda(4, 64, 32, 32, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()
    w = cuda(64, 64, 3, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()
    exact = gradients(own.conv2d(x, w), [x, w], torch.ones(4, 64, 30, 30, dtype=x.dtype, device="cuda"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        y = ours.conv2d(x, w)
        found = gradients(y, [x, w], torch.ones_like(y))
    stream.synchronize()
    for a, b in zip(found, exact, strict=True):
        near(a, b)


def test_tensors_on_the_cpu_are_pytorch_s() -> None:
    x, w = torch.randn(1, 2, 4, 4).bfloat16(), torch.randn(3, 2, 3, 3).bfloat16()
    assert torch.equal(ours.conv2d(x, w), own.conv2d(x, w))
    with pytest.raises(RuntimeError):
        ours.conv2d(x.cuda(), w)


def test_the_vendor_s_choice_is_pytorch_s_own_result() -> None:
    target = Target("grouped_conv", "forward", "bf16", "sm90")
    pool = Pool(target.op, target.variant, target.dtype, (VendorCall("cudnn"),))
    x = cuda(1, 64, 8, 8, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    w = cuda(64, 64, 3, 3, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), ours.use(Dispatcher(target, pool, None)):
        assert torch.equal(ours.conv2d(x, w, padding=1), own.conv2d(x, w, padding=1))


def test_the_layers_of_a_network_are_measured_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times decide here and in a new dispatcher, and the network computes the same."""
    pytest.importorskip("lightgbm", reason="trains a small model")
    from small_model import write_model

    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "cache"))
    folder = write_model(tmp_path / "model", trees=20, vendor=True)
    network = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Conv2d(64, 128, 1)).cuda()
    network = network.bfloat16().eval().to(memory_format=torch.channels_last)
    x = cuda(8, 64, 28, 28, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = network(x)
        for is_first in (True, False):
            with ours.use(Dispatcher.from_folder(folder)):
                if is_first:
                    ours.measure(network, x, top_k=2)
                optimised, report = ours.optimize(network, x, launch="graph")
                near(optimised(x), expected)
            assert all(p.is_measured for layer in report.layers for p in layer.passes)
            assert all((layer.expected_ms or 9) <= 1.1 * (layer.pytorch_ms or 0) for layer in report.layers)
