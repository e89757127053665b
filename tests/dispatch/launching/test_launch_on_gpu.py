"""Selected kernels run on a GPU: real sizes, all targets, streams, graphs, failures, devices, forks.

``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/dispatch/launching/test_launch_on_gpu.py tests/torch_functions``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from alone import run_alone
from kernels.dispatchers import dispatcher_of
from kernels.shapes import REAL
from tilewise.dispatch import Dispatcher
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _launch as launch
from tilewise.errors import KernelError, ProblemError
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.triton import TRITON_DTYPES as DTYPES
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import RESULT_TYPES, count_mismatches, family_of, random_operands, scale_of
from tilewise.kernels.triton.programs._family import FAMILIES
from tilewise.kernels.vendor import CALLS
from tilewise.kernels.vendor._backend import SCALED
from tilewise.ops import GemmProblem, Problem, Target

pytestmark = pytest.mark.gpu

CONV = ("grouped_conv", "forward")


@pytest.fixture(autouse=True)
def _from_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without remembered failures, and let the pool's order decide instead of measurements."""
    monkeypatch.setattr(launch, "_failed", Recent(16))
    monkeypatch.setenv("TILEWISE_MEASURE", "off")


GPU_KEYS = [(key, dtype) for key in FAMILIES for dtype in DTYPES[key[0]]]


def _on_gpu(key: tuple[str, str], dtype: str) -> Dispatcher:
    return Dispatcher.from_pool(Target(*key, dtype, "sm90"))


def _problems(key: tuple[str, str], dtype: str, *names: str) -> list[Problem]:
    dispatcher = _on_gpu(key, dtype)
    return [p for n, p in REAL[key[0]].items() if (not names or n in names) and dispatcher.is_supported(p)]


def _mismatches(key: tuple[str, str], problem: Problem, dtype: str, y: torch.Tensor, operands: Sequence[Any]) -> int:
    family = family_of(*key)
    right = family.reference(problem, *(o.double() for o in operands))
    bad = torch.zeros(1, dtype=torch.int32, device=y.device)
    rtol = {"fp16": 2**-10, "bf16": 2**-7}[RESULT_TYPES[dtype]] + family.imprecision(problem, dtype)
    count_mismatches(y, right, bad, rtol, scale_of(right))
    return int(bad.item())


@pytest.mark.parametrize(("key", "dtype"), GPU_KEYS)
def test_results_equal_pytorch_s(key: tuple[str, str], dtype: str) -> None:
    dispatcher, wrong = _on_gpu(key, dtype), {}
    for problem in _problems(key, dtype):
        operands = random_operands(family_of(*key), problem, dtype, "cuda", 3)
        for _ in range(2):  # the first run binds, the second reuses the binding
            y = dispatcher.run(problem, *operands)
            if count := _mismatches(key, problem, dtype, y, operands):
                wrong[str(problem)] = count
    assert wrong == {}


@pytest.mark.parametrize("config", [
    "64x64x64_plain_w4_s3_g8_k4", "128x128x64_tma_w4_s3_g8_k1", "128x192x64_tma_w8_s3_g8_k2",
    "128x128x64_persistent_w8_s3_g8_k1", "128x128x64_persistent_w8_s3_g8_k2",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["rcr", "rrr", "crr", "ccr"])
def test_every_way_to_load_and_split(config: str, layout: str) -> None:
    problem, key = GemmProblem(384, 512, 1024, layout), ("gemm", "universal")
    dispatcher = dispatcher_of(*key, config, dtype="bf16")
    for seed in range(2):  # other memory, other descriptors
        operands = random_operands(family_of(*key), problem, "bf16", "cuda", seed)
        assert _mismatches(key, problem, "bf16", dispatcher.run(problem, *operands), operands) == 0


@pytest.mark.parametrize(("variant", "config"), [
    ("forward", "128x128x64_relay_w8_s3_g1_k1"), ("bwd_data", "128x128x64_relay_w8_s3_g1_k1"),
    ("bwd_weight", "128x128x64_relay_w8_s3_g1_k1"), ("bwd_weight", "128x128x64_relay_w8_s3_g1_k4"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["resnet 3x3, stride 2", "odd"])
def test_parts_of_a_tensor_have_descriptors(variant: str, config: str, name: str) -> None:
    problem, key = REAL["grouped_conv"][name], ("grouped_conv", variant)
    dispatcher = dispatcher_of(*key, config, dtype="bf16")
    for seed in range(2):  # other memory, other descriptors
        operands = random_operands(family_of(*key), problem, "bf16", "cuda", seed)
        assert _mismatches(key, problem, "bf16", dispatcher.run(problem, *operands), operands) == 0


@pytest.mark.parametrize(("key", "dtype"), GPU_KEYS)
def test_a_graph_captures_bound_kernels(key: tuple[str, str], dtype: str) -> None:
    """A capture needs no synchronisation and keeps no copies: replays read the operands' new values."""
    problem, family = _problems(key, dtype, "resnet 3x3", "square")[0], family_of(*key)
    pool = _on_gpu(key, dtype).kernels
    split = [k for k in pool if k.split_k > 1 and not unsupported(k, problem, key[1], dtype)][:1]
    for kernel in (pool[0], *split):
        dispatcher = dispatcher_of(*key, kernel.config, dtype=dtype)
        operands = random_operands(family, problem, dtype, "cuda", 0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            dispatcher.run(problem, *operands)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y = dispatcher.run(problem, *operands)
        for old, new in zip(operands, random_operands(family, problem, dtype, "cuda", 1), strict=True):
            old.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert _mismatches(key, problem, dtype, y, operands) == 0


def test_runs_on_the_current_stream() -> None:
    """The launch is queued behind earlier work: the operands are written after some milliseconds."""
    problem, family = REAL["grouped_conv"]["resnet 3x3"], family_of(*CONV)
    dispatcher = _on_gpu(CONV, "fp16")
    operands = random_operands(family, problem, "fp16", "cuda", 0)
    dispatcher.run(problem, *operands)
    zeros = [torch.zeros_like(o) for o in operands]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for zero, operand in zip(zeros, operands, strict=True):
            zero.copy_(operand)
        y = dispatcher.run(problem, *zeros)
    stream.synchronize()
    assert _mismatches(CONV, problem, "fp16", y, operands) == 0


def test_unaligned_tensors() -> None:
    problem, family = REAL["grouped_conv"]["resnet 3x3"], family_of(*CONV)
    x, w = random_operands(family, problem, "bf16", "cuda", 0)
    off = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")[1:].view(x.shape).copy_(x)
    out = torch.empty(1 + _on_gpu(CONV, "bf16").run(problem, x, w).numel(), dtype=x.dtype, device="cuda")
    y = _on_gpu(CONV, "bf16").run(problem, off, w, out=out[1:].view(family.result(problem)))
    assert _mismatches(CONV, problem, "bf16", y, (x, w)) == 0


def test_too_much_shared_memory_is_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    problem = REAL["grouped_conv"]["resnet 3x3"]
    dispatcher = dispatcher_of(*CONV, "128x256x64_taps_w8_s8_g8_k1", "128x128x64_taps_w8_s3_g8_k1", dtype="bf16")
    operands = random_operands(family_of(*CONV), problem, "bf16", "cuda", 0)
    for _ in range(2):
        assert _mismatches(CONV, problem, "bf16", dispatcher.run(problem, *operands), operands) == 0
    assert caplog.text.count("failed, the next in rank is launched: OutOfResources") == 1


def test_tensors_of_the_wrong_device() -> None:
    problem = REAL["grouped_conv"]["1x1"]
    x, w = random_operands(family_of(*CONV), problem, "bf16", "cuda", 0)
    for given, name, where in (((x.cpu(), w.cpu()), "x", "cuda"), ((x, w.cpu()), "w", "cuda:0")):
        with pytest.raises(ProblemError, match=rf"^{name}: must be on {where}, is on cpu"):
            _on_gpu(CONV, "bf16").run(problem, *given)


def test_another_arch_is_refused() -> None:
    problem = REAL["grouped_conv"]["1x1"]
    operands = random_operands(family_of(*CONV), problem, "bf16", "cuda", 0)
    pool = Pool(*CONV, "bf16", (Kernel.from_config("16x16x16_taps_w1_s2_g1_k1"),))
    with pytest.raises(KernelError, match=r"runs on sm70, device 0 is sm\d+"):
        Dispatcher(Target(*CONV, "bf16", "sm70"), pool, None).run(problem, *operands)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_each_device_has_its_own_programs() -> None:
    problem, dispatcher = REAL["grouped_conv"]["resnet 3x3"], _on_gpu(CONV, "bf16")
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        operands = random_operands(family_of(*CONV), problem, "bf16", device, 0)
        y = dispatcher.run(problem, *operands)
        assert y.device == torch.device(device)
        with torch.cuda.device(device):
            assert _mismatches(CONV, problem, "bf16", y, operands) == 0
    x, w = (o.to(d) for o, d in zip(operands, ("cuda:1", "cuda:0"), strict=True))
    with pytest.raises(ProblemError, match=r"^w: must be on cuda:1, is on cuda:0"):
        dispatcher.run(problem, x, w)


def test_selecting_leaves_the_gpu_alone_and_forks_run() -> None:
    code = """
        import os, sys
        from tilewise.dispatch import Dispatcher
        dispatcher = Dispatcher.from_pool("gemm_universal_bf16_sm90")
        problem = {"M": 256, "N": 256, "K": 256}
        dispatcher.select(problem)
        assert not {"torch", "triton"} & set(sys.modules)
        import torch
        assert not torch.cuda.is_initialized()
        child = os.fork()
        a = torch.ones(256, 256, dtype=torch.bfloat16, device="cuda")
        assert (dispatcher.run(problem, a, a) == 256).all()
        if child == 0:
            os._exit(0)
        sys.exit(os.waitpid(child, 0)[1])
    """
    run_alone(code)


VENDOR_KEYS = [
    (key, dtype, call) for key, dtype in GPU_KEYS for call in CALLS[key[0]] if (call == SCALED) == (dtype == "fp8")
]


@pytest.mark.parametrize(("key", "dtype", "call"), VENDOR_KEYS)
def test_the_vendor_s_calls_run_and_can_be_captured(key: tuple[str, str], dtype: str, call: str) -> None:
    dispatcher = dispatcher_of(*key, f"vendor_{call}", dtype=dtype)
    for problem in [p for p in REAL[key[0]].values() if dispatcher.is_supported(p)][:4]:
        operands = random_operands(family_of(*key), problem, dtype, "cuda", 3)
        eager = [dispatcher.run(problem, *operands) for _ in range(2)]  # the first run binds
        out = torch.empty_like(eager[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = dispatcher.run(problem, *operands)
            dispatcher.run(problem, *operands, out=out)
        graph.replay()
        for y in (*eager, captured, out):
            assert _mismatches(key, problem, dtype, y, operands) == 0, problem
