"""Selected kernels run in Triton's interpreter, with correct results and clear errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from alone import run_alone
from kernels.dispatchers import dispatcher_of
from kernels.shapes import TINY, TINY_CONFIGS
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _bind as bind
from tilewise.dispatch.launching import _launch as launch
from tilewise.errors import KernelError, ProblemError
from tilewise.kernels import EMPTY_KIND, EPILOGUE_VARIANTS, EpilogueKind, unsupported
from tilewise.kernels.triton import PIPELINES, Kernel
from tilewise.kernels.triton.programs import Launch, Program, empty_result, family_of, interpreted, random_operands
from tilewise.kernels.triton.programs._family import FAMILIES
from tilewise.kernels.triton.programs._operand_tensors import integer_operands
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

needs_interpreter = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
CONV = ("grouped_conv", "forward")
GOOD, SPLIT = "16x16x16_taps_w1_s2_g1_k1", "16x16x16_taps_w1_s2_g3_k2"
STRIDED = "128x128x64_relay_w8_s3_g1_k1"  # reads parts of the input
BROKEN = "16x16x24_taps_w1_s2_g1_k1"  # no tile has 24: a power of two is needed
PLAIN = TINY["grouped_conv"]["plain"]
TINY_CASES = [
    (key, name, config)
    for key, (first, *_, last) in TINY_CONFIGS.items()
    for config in {first: 0, next(c for c in TINY_CONFIGS[key] if not c.endswith("k1")): 0, last: 0}
    for name in list(TINY[key[0]])[::3]
    if not unsupported(Kernel.from_config(config), TINY[key[0]][name], key[1], "fp16")
]


@pytest.fixture(autouse=True)
def _nothing_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_failed", Recent(16))


def case(key: tuple[str, str], problem: Problem, dtype: str = "fp16") -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return operands whose sums are exact, and the correct result."""
    family, device = family_of(*key), "cpu" if interpreted() else "cuda"
    operands = integer_operands(family, problem, dtype, device, seed=7)
    exact = family.reference(problem, *(o.double() for o in operands))
    return operands, exact.to(empty_result(family, problem, dtype, "meta").dtype)


def launcher_of(config: str) -> launch.TorchLauncher:
    dispatcher = dispatcher_of(*CONV, config)
    generation = dispatcher._selector.generation
    return launch.TorchLauncher(dispatcher.target, lambda problem, _: dispatcher.select(problem), generation.rank_with)


@needs_interpreter
class TestInterpreted:
    @pytest.mark.long
    @pytest.mark.parametrize(("key", "name", "config"), TINY_CASES)
    def test_results_equal_pytorch_s(self, key: tuple[str, str], name: str, config: str) -> None:
        problem = TINY[key[0]][name]
        operands, right = case(key, problem)
        assert torch.equal(dispatcher_of(*key, config).run(problem, *operands), right)

    def test_the_result_is_written_to_out(self) -> None:
        operands, right = case(CONV, PLAIN)
        out = torch.full_like(right, float("nan"))
        assert dispatcher_of(*CONV, SPLIT).run(PLAIN.to_dict(), *operands, out=out) is out
        assert torch.equal(out, right)

    def test_2d_tensors_may_leave_out_the_depth(self) -> None:
        operands, right = case(CONV, PLAIN)
        y = dispatcher_of(*CONV, GOOD).run(PLAIN, *(o.squeeze(1) for o in operands))
        assert torch.equal(y, right.squeeze(1))

    def test_a_kernel_that_fails_is_followed_by_the_next_and_not_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        operands, right = case(CONV, PLAIN)
        assert torch.equal(dispatcher_of(*CONV, BROKEN, GOOD).run(PLAIN, *operands), right)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert f"{BROKEN} failed, the next in rank is launched: " in caplog.text
        other = GroupedConvProblem(2, 8, 8, 1, 4, 4, 1, 1)  # of the same class: the same programs
        operands, right = case(CONV, other)
        assert torch.equal(dispatcher_of(*CONV, BROKEN, GOOD).run(other, *operands), right)
        assert len(caplog.records) == 1

    def test_the_vendor_s_call_is_launched_like_a_kernel(self) -> None:
        operands, right = case(CONV, PLAIN)
        dispatcher = dispatcher_of(*CONV, "vendor_cudnn", GOOD)
        for _ in range(2):  # bound, then from the binding
            assert torch.equal(dispatcher.run(PLAIN, *operands), right)
        assert torch.equal(dispatcher.run(PLAIN, *(o.squeeze(1) for o in operands)), right.squeeze(1))
        out = torch.full_like(right, float("nan"))
        assert dispatcher.run(PLAIN, *operands, out=out) is out
        assert torch.equal(out, right)
        with pytest.raises(ProblemError, match=r"w: must be torch\.float16, is torch\.float32"):
            dispatcher.run(PLAIN, operands[0], operands[1].float())

    def test_a_call_that_fails_is_followed_by_the_next_with_one_warning(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        operands, right = case(CONV, PLAIN)
        dispatcher = dispatcher_of(*CONV, "vendor_cudnn", GOOD)
        dispatcher.run(PLAIN, *operands)

        def broken(self: object, given: object, out: torch.Tensor | None = None) -> torch.Tensor:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")

        binding = dispatcher._selector.generation.launcher.bindings[PLAIN, -1, EMPTY_KIND]  # type: ignore[union-attr]
        monkeypatch.setattr(binding, "returns", partial(broken, None))
        monkeypatch.setattr(bind.VendorLaunch, "__call__", broken)
        for _ in range(3):
            assert torch.equal(dispatcher.run(PLAIN, *operands), right)
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "vendor_cudnn failed, the next in rank is launched: " in caplog.text

    def test_candidates_that_are_data_only_are_skipped(self) -> None:
        operands, right = case(CONV, PLAIN)
        dispatcher = dispatcher_of(*CONV, "miopen_ConvAsm1x1U", GOOD)
        assert dispatcher.select(PLAIN).kernel_name.endswith("miopen_ConvAsm1x1U")
        assert torch.equal(dispatcher.run(PLAIN, *operands), right)
        with pytest.raises(KernelError, match="kernels of MIOpen cannot be launched from here; there are launchers"):
            dispatcher_of(*CONV, "miopen_ConvAsm1x1U").run(PLAIN, *operands)

    def test_a_bound_kernel_that_fails_later_is_replaced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        operands, right = case(CONV, PLAIN)
        dispatcher, really = dispatcher_of(*CONV, GOOD, SPLIT), bind.interpreted_launches
        broken = False

        def fragile(request: bind.Request, kernel: Kernel) -> bind.BoundKernel:
            run = really(request, kernel)

            def launches(given: Sequence[torch.Tensor], out: torch.Tensor) -> None:
                if broken and kernel.split_k == 1:
                    raise RuntimeError("CUDA error: invalid argument")
                run(given, out)

            return launches

        monkeypatch.setattr(bind, "interpreted_launches", fragile)
        dispatcher.run(PLAIN, *operands)
        broken = True
        assert torch.equal(dispatcher.run(PLAIN, *operands), right)
        assert torch.equal(dispatcher.run(PLAIN, *operands), right)

    def test_lack_of_memory_is_not_held_against_a_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def greedy(*args: Any) -> bind.BoundKernel:
            raise torch.OutOfMemoryError("no memory for the workspace")

        operands, right = case(CONV, PLAIN)
        dispatcher = dispatcher_of(*CONV, SPLIT)
        with monkeypatch.context() as patch:
            patch.setattr(bind, "interpreted_launches", greedy)
            with pytest.raises(KernelError, match=r"could be launched for .*: .*k2: OutOfMemoryError: no memory"):
                dispatcher.run(PLAIN, *operands)
        assert torch.equal(dispatcher.run(PLAIN, *operands), right)

    def test_a_swap_between_the_first_run_and_a_capture_binds_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The earlier binding is launched during the capture; after it the new model decides."""
        operands, right = case(CONV, PLAIN)
        before = dispatcher_of(*CONV, GOOD)
        before.run(PLAIN, *operands)
        after = dispatcher_of(*CONV, SPLIT)
        after._selector.generation.previous_launcher = before._selector.generation.launcher
        bound: list[Kernel] = []
        really = bind.interpreted_launches

        def note(request: bind.Request, kernel: Kernel) -> bind.BoundKernel:
            bound.append(kernel)
            return really(request, kernel)

        monkeypatch.setattr(bind, "interpreted_launches", note)
        with monkeypatch.context() as during:
            during.setattr(launch, "is_capturing", lambda: True)
            assert torch.equal(after.run(PLAIN, *operands), right)
        assert bound == []
        assert torch.equal(after.run(PLAIN, *operands), right)
        assert [k.config for k in bound] == [SPLIT]

    @pytest.mark.parametrize("capturing", [False, True])
    def test_a_failure_inside_a_capture_is_not_held_against_a_kernel(
        self, capturing: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def synchronize(device: int) -> None:
            assert not capturing, "a capture must not be waited for"

        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        launcher_of(GOOD)._give_up((PLAIN, 0, EMPTY_KIND), GOOD, RuntimeError("no loading while a stream is captured"))
        assert bool(launch._failed) != capturing

    def test_a_lost_context_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def synchronize(device: int) -> None:
            raise RuntimeError("the context is lost")

        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            launcher_of(GOOD)._give_up((PLAIN, 0, EMPTY_KIND), GOOD, RuntimeError("illegal memory access"))
        assert not launch._failed

    def test_remembered_failures_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert len(launch._failed) <= launch.MAX_FAILURES
        monkeypatch.setattr(launch, "_failed", Recent(4))
        launcher, error, key = launcher_of(GOOD), RuntimeError("no such kernel"), (PLAIN, -1, EMPTY_KIND)
        for stages in range(1, 20):
            launcher._give_up(key, GOOD.replace("_s2_", f"_s{stages}_"), error)
            assert 0 < len(launch._failed) <= 4
            assert launch._failed.get(launcher._programs(key, GOOD.replace("_s2_", f"_s{stages}_")))
        assert launch._failed.get(launcher._programs(key, GOOD.replace("_s2_", "_s1_"))) is None

    def test_no_kernel_left(self) -> None:
        operands, _ = case(CONV, PLAIN)
        with pytest.raises(KernelError, match=rf"no kernel of .* could be launched for .*: .*{BROKEN}: Interpreter"):
            dispatcher_of(*CONV, BROKEN).run(PLAIN, *operands)

    def test_impossible_problems_are_refused_before_tensors_are_looked_at(self) -> None:
        with pytest.raises(ProblemError, match=r"^op: a gemm problem"):
            dispatcher_of(*CONV, GOOD).run(GemmProblem(1, 1, 1))

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("change", "field", "message"),
        [
            (lambda x, w: (x,), "tensors", r"takes x and w, got 1"),
            (lambda x, w: (), "tensors", r"takes x and w, got 0"),
            (lambda x, w: (x, 3), "w", r"must be a torch\.Tensor, got int"),
            (lambda x, w: (x, w.float()), "w", r"must be torch\.float16, is torch\.float32"),
            (
                lambda x, w: (x[:, :, 1:], w),
                "x",
                r"must have the shape \(1, 1, 5, 6, 8\) or \(1, 5, 6, 8\), has \(1, 1,",
            ),
            (lambda x, w: (x, w.transpose(2, 3)), "w", r"must be contiguous, has the strides"),
            (lambda x, w: (x.to("meta"), w.to("meta")), "x", r"must be on cpu, is on meta"),
            (lambda x, w: (x.squeeze(1), w), "tensors", r"all with a depth axis or none"),
        ],
    )
    @pytest.mark.parametrize("known", [False, True])
    def test_a_wrong_operand_is_named(
        self, known: bool, change: Callable[..., tuple[Any, ...]], field: str, message: str
    ) -> None:
        dispatcher, operands = dispatcher_of(*CONV, GOOD), case(CONV, PLAIN)[0]
        if known:
            dispatcher.run(PLAIN, *operands)
        with pytest.raises(ProblemError, match=message) as raised:
            dispatcher.run(PLAIN, *change(*operands))
        assert raised.value.field == field

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda y: y[:, :, 1:], r"^y: out must have the shape \(1, 1, 5, 6, 16\), has \(1, 1, 4, 6, 16\)"),
            (lambda y: y.float(), r"^y: out must be torch\.float16"),
            (lambda y: y.transpose(2, 3).contiguous().transpose(2, 3), r"^y: out must be contiguous"),
            (lambda y: "y", r"^y: out must be a torch\.Tensor, got str"),
        ],
    )
    def test_a_wrong_out_is_named(self, change: Callable[[torch.Tensor], Any], message: str) -> None:
        operands, right = case(CONV, PLAIN)
        with pytest.raises(ProblemError, match=message):
            dispatcher_of(*CONV, GOOD).run(PLAIN, *operands, out=change(right))

    @pytest.mark.long
    def test_selecting_loads_no_torch_and_forks_run(self) -> None:
        """Children that are forked after a selection run kernels."""
        code = """
            import os, sys
            from kernels.dispatchers import dispatcher_of
            from kernels.shapes import TINY
            problem = TINY["grouped_conv"]["plain"]
            dispatcher = dispatcher_of("grouped_conv", "forward", "16x16x16_taps_w1_s2_g1_k1")
            dispatcher.select(problem)
            assert not {"torch", "triton"} & set(sys.modules)
            child = os.fork()
            if child:
                sys.exit(os.waitpid(child, 0)[1])
            import torch
            y = dispatcher.run(problem, torch.ones(1, 5, 6, 8).half(), torch.ones(16, 3, 3, 8).half())
            assert y[0, 2, 2, 0] == 72 and y[0, 0, 0, 0] == 32, y
        """
        run_alone(code, TRITON_INTERPRET="1")


class Recorder:
    """A stand-in for compiled programs that records the arguments of their launches."""

    def __init__(self) -> None:
        self.calls: list[tuple[Program, tuple[Any, ...]]] = []

    def load(self, program: Program, device: int) -> Any:
        def run(*args: Any) -> None:
            self.calls.append((program, args))

        return SimpleNamespace(run=run, function="function", packed_metadata="metadata")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Bind as on a GPU, up to the launch itself."""
    recorder = Recorder()
    driver = SimpleNamespace(get_current_stream=lambda device: 99)
    monkeypatch.setattr(bind, "load_program", recorder.load)
    monkeypatch.setattr(bind, "triton", SimpleNamespace(runtime=SimpleNamespace(driver=SimpleNamespace(active=driver))))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    really = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: really(*a, device=_here(device), **k))
    return recorder


def _here(device: Any) -> Any:
    return "meta" if device == "meta" else "cpu"


@needs_interpreter
class TestArguments:
    """A bound launch passes the arguments of the family's own launches."""

    @pytest.mark.parametrize("kind", [EMPTY_KIND, EpilogueKind(True, True, "silu"), EpilogueKind(has_residual=True)])
    @pytest.mark.parametrize("key", FAMILIES)
    def test_pointers_descriptors_and_sizes_are_in_their_places(
        self, key: tuple[str, str], kind: EpilogueKind, recorder: Recorder
    ) -> None:
        family, target = family_of(*key), Target(*key, "fp16", "sm90")
        kind = kind if key in EPILOGUE_VARIANTS else EMPTY_KIND
        for kernel in map(Kernel.from_config, TINY_CONFIGS[key]):
            if kind != EMPTY_KIND and key not in PIPELINES[kernel.pipeline].fuses:
                continue  # a pass follows its plain launch
            fit = [p for p in TINY[key[0]].values() if not unsupported(kernel, p, key[1], target.dtype)]
            for problem in fit[:2]:
                operands, y = (
                    random_operands(family, problem, "fp16", "cpu", 1),
                    empty_result(family, problem, "fp16", "cpu"),
                )
                workspace = torch.empty(family.workspace_elements(kernel, problem))
                recorder.calls.clear()
                ends = [torch.empty(y.shape[-1:], dtype=y.dtype)] * kind.has_bias + [y.clone()] * kind.has_residual
                request = bind.Request(family, target, problem, kind, 0)
                bound = bind.loaded_launches(request, kernel)
                for _ in range(2):  # descriptors are made once
                    bound((*operands, *ends), y)
                epilogue = request.epilogue_of(ends)
                expected = family.launches(kernel, problem, "fp16", *operands, y, workspace, epilogue=epilogue)
                assert [program for program, _ in recorder.calls] == [item.program for item in expected] * 2
                for item, (_, args) in zip((*expected, *expected), recorder.calls, strict=True):
                    _compare(item, args, (*operands, *ends, y), bool(workspace.numel()))

    @pytest.mark.parametrize("variant", ["forward", "bwd_weight"])
    def test_descriptors_of_parts_begin_where_the_parts_do(self, variant: str, recorder: Recorder) -> None:
        family, target = family_of("grouped_conv", variant), Target("grouped_conv", variant, "fp16", "sm90")
        problem, kernel = GroupedConvProblem(1, 64, 64, 1, 6, 7, 3, 3, 2, 2, 1, 1), Kernel.from_config(STRIDED)
        operands, y = random_operands(family, problem, "fp16", "cpu", 1), empty_result(family, problem, "fp16", "cpu")
        with torch.inference_mode():
            bind.loaded_launches(bind.Request(family, target, problem, EMPTY_KIND, 0), kernel)(operands, y)
        (item,) = family.launches(kernel, problem, "fp16", *operands, y, torch.empty(0))
        ((_, args),) = recorder.calls
        _compare(item, args, (*operands, y), split=False)
        bases = [t.base.data_ptr() for t in item.tensors if isinstance(t, TensorDescriptor)]
        assert len(set(bases)) == len(bases) > 4  # odd and even rows and columns of the input have one each

    def test_unaligned_tensors_are_copied(self, recorder: Recorder) -> None:
        family, problem = family_of(*CONV), PLAIN
        x, w = random_operands(family, problem, "fp16", "cpu", 1)
        off = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)
        result = family.result(problem)
        out = torch.empty(math.prod(result) + 1, dtype=x.dtype)[1:].view(result)
        assert off.data_ptr() % 16
        assert out.data_ptr() % 16
        request = bind.Request(family, Target(*CONV, "fp16", "sm90"), problem, EMPTY_KIND, 0)
        bind.loaded_launches(request, Kernel.from_config(GOOD))((off, w), out)
        ((_, args),) = recorder.calls
        assert args[9:12] != (off.data_ptr(), w.data_ptr(), out.data_ptr())
        assert all(pointer % 16 == 0 for pointer in args[9:12])


def _compare(item: Launch, args: tuple[Any, ...], tensors: tuple[torch.Tensor, ...], split: bool) -> None:
    assert args[:9] == (*item.grid, 99, "function", "metadata", None, None, None)
    given = args[9 : 9 + len(item.tensors)]
    assert args[9 + len(item.tensors) :] == (*item.sizes, *(value for _, value in item.program.constants))
    pointers = {t.data_ptr() for t in tensors}
    for expected, got in zip(item.tensors, given, strict=True):
        if expected is None:  # a constant of the binary, whose value is not read
            continue
        if isinstance(expected, TensorDescriptor):
            assert got.base.data_ptr() == expected.base.data_ptr()
            assert (got.shape, got.strides, got.block_shape) == (
                list(expected.shape), list(expected.strides), list(expected.block_shape),
            )  # fmt: skip
        elif expected.data_ptr() in pointers:
            assert got == expected.data_ptr()
        else:  # the workspace, which changes in each call; kernels without split-K have no workspace
            assert bool(got) == split
