"""CK Tile's C API runs the selected kernel: correct results, clear errors, and the next in rank after a failure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from alone import run_alone
from kernels.ck.stubs import conv_name, gemm_name, log_of, model_of, needs_compiler, stub
from tilewise.capi import build
from tilewise.dispatch import Dispatcher
from tilewise.errors import KernelError, ProblemError
from tilewise.kernels import Pool
from tilewise.kernels.ck import parse_name
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

pytestmark = needs_compiler
GEMM, CONV = GemmProblem(32, 64, 48), GroupedConvProblem(2, 16, 16, 1, 5, 5, 3, 3)


def dispatcher_of(*names: str, arch: str = "gfx942") -> Dispatcher:
    """Build a dispatcher without a model: it selects the first of these kernels that supports a problem."""
    parsed = [parse_name(name) for name in names]
    op, variant, dtype = parsed[0].op, parsed[0].variant, parsed[0].dtype
    pool = Pool(op, variant, dtype, tuple(name.kernel for name in parsed))
    return Dispatcher(Target(op, variant, dtype, arch), pool, None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the environment names for libraries."""
    for variable in ("TILEWISE_CK_GEMM_LIB", "TILEWISE_CK_CONV_LIB"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("TILEWISE_CK_CONV_MEMORY", "host")
    monkeypatch.setenv("CK_STUB_LOG", str(tmp_path / "calls.log"))
    return tmp_path


def operands(p: GemmProblem = GEMM) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A and B as an rcr problem stores them, and their product."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((p.M, p.K), (p.N, p.K)))
    return a, b, a @ b.T


def test_a_product_through_the_library_of_the_selected_kernel(folder: Path) -> None:
    stub(folder, "a", gemm_name(32), MISBEHAVE="return -1")
    stub(folder, "b", gemm_name(16))
    a, b, right = operands()
    dispatcher = dispatcher_of(gemm_name(16), gemm_name(32))
    c = dispatcher.run(GEMM, a, b)
    assert c.dtype == np.float16
    assert np.array_equal(c, right)
    out = np.full_like(right, np.nan)
    assert dispatcher.run(GEMM.to_dict(), a, b, out=out) is out
    assert np.array_equal(out, right)


def test_torch_tensors_of_the_host(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    stub(folder, "a", gemm_name(16, dtype="bf16"), DTYPE="bf16")
    a, b, right = operands()
    x, y = (torch.from_numpy(t).to(torch.bfloat16) for t in (a, b))
    c = dispatcher_of(gemm_name(16, dtype="bf16")).run(GEMM, x, y)
    assert torch.equal(c, torch.from_numpy(right).to(torch.bfloat16))
    bits = dispatcher_of(gemm_name(16, dtype="bf16")).run(GEMM, *(t.view(torch.uint16).numpy() for t in (x, y)))
    assert bits.tobytes() == c.view(torch.uint16).numpy().tobytes()


@pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
def test_a_convolution_and_its_gradients(folder: Path, variant: str) -> None:
    torch = pytest.importorskip("torch")
    from tilewise.kernels.triton.programs import family_of
    from tilewise.kernels.triton.programs._operand_tensors import integer_operands

    name = conv_name(variant=variant)
    stub(folder, "a", name, CONV=1, DIRECTION=["forward", "bwd_data", "bwd_weight"].index(variant))
    family = family_of("grouped_conv", variant)
    given = integer_operands(family, CONV, "fp16", "cpu", seed=7)
    right = family.reference(CONV, *given).to(torch.float16)
    assert torch.equal(dispatcher_of(name).run(CONV, *given), right)
    if variant == "forward":  # the depth axis may be left out
        assert torch.equal(dispatcher_of(name).run(CONV, *(o.squeeze(1) for o in given)), right.squeeze(1))


def test_a_kernel_that_fails_is_followed_by_the_next_and_not_tried_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stub(folder, "a", gemm_name(32), MISBEHAVE="return -1")
    stub(folder, "b", gemm_name(16))
    a, b, right = operands()
    dispatcher = dispatcher_of(gemm_name(32), gemm_name(16))
    assert np.array_equal(dispatcher.run(GEMM, a, b), right)
    assert f"{gemm_name(32)} failed, the next in rank is launched" in caplog.text
    assert "dispatcher_run_gemm returned -1" in caplog.text
    caplog.clear()
    assert np.array_equal(dispatcher.run(GEMM, a, b), right)
    assert caplog.text == ""


def test_a_kernel_that_ran_before_may_fail_later(folder: Path) -> None:
    """The library counts its runs, and the third fails."""
    stub(folder, "a", gemm_name(32), MISBEHAVE="{ static int runs; if (++runs > 2) return -1; }")
    stub(folder, "b", gemm_name(16))
    a, b, right = operands()
    dispatcher = dispatcher_of(gemm_name(32), gemm_name(16))
    for _ in range(4):
        assert np.array_equal(dispatcher.run(GEMM, a, b), right)


def test_no_kernel_left(folder: Path) -> None:
    stub(folder, "a", gemm_name(32), MISBEHAVE="return -1")
    a, b, _ = operands()
    dispatcher = dispatcher_of(gemm_name(32), gemm_name(16))
    with pytest.raises(KernelError, match=r"could be launched for .*: .*a\.so: dispatcher_run_gemm returned -1"):
        dispatcher.run(GEMM, a, b)
    with pytest.raises(KernelError, match=r"could be launched for .*: all of them failed before"):
        dispatcher.run(GEMM, a, b)


def test_a_kernel_without_a_library_is_passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stub(folder, "a", gemm_name(16))
    a, b, right = operands()
    assert np.array_equal(dispatcher_of(gemm_name(32), gemm_name(16)).run(GEMM, a, b), right)
    assert f"no library runs {gemm_name(32)}" in caplog.text


def test_a_library_that_cannot_be_used_is_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stub(folder, "a", gemm_name(32), INIT="return -1")
    stub(folder, "b", "no_name_of_ck")
    stub(folder, "c", gemm_name(16, dtype="bf16"))  # of another target
    stub(folder, "d", gemm_name(64, layout="rrr"))  # its API takes M, N and K only
    (folder / "e.so").write_text("nothing")
    stub(folder, "f", gemm_name(16))
    a, b, right = operands()
    assert np.array_equal(dispatcher_of(gemm_name(16)).run(GEMM, a, b), right)
    assert "a.so: dispatcher_init returned -1" in caplog.text
    assert "e.so is not a shared library" in caplog.text


def test_of_two_libraries_that_choose_a_kernel_the_one_that_is_it_runs(folder: Path) -> None:
    stub(folder, "a", gemm_name(16))
    stub(folder, "b", gemm_name(16), COUNT=2, MISBEHAVE="return -1")
    a, b, right = operands()
    assert np.array_equal(dispatcher_of(gemm_name(16)).run(GEMM, a, b), right)


def test_the_own_choice_of_a_library_of_many_is_the_last_resort(folder: Path) -> None:
    stub(folder, "a", gemm_name(32), MISBEHAVE="return -1")
    stub(folder, "b", gemm_name(64), COUNT=7)
    a, b, right = operands()
    assert np.array_equal(dispatcher_of(gemm_name(32), gemm_name(16)).run(GEMM, a, b), right)


def test_tilewise_s_own_library_runs_the_selected_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of many kernels has the dispatcher's model, so both choose alike."""
    model, path = model_of(folder, gemm_name(16), gemm_name(32), gemm_name(64))
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", str(build()))
    monkeypatch.setenv("TILEWISE_GEMM_MODEL", str(path))
    dispatcher = Dispatcher(model.target, model.pool, model)
    for size in (16, 32, 64):
        problem = GemmProblem(size, size, 48)
        a, b, right = operands(problem)
        assert np.array_equal(dispatcher.run(problem, a, b), right)


def test_tilewise_s_own_library_of_convolutions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = model_of(folder, conv_name(16), conv_name(32))
    monkeypatch.setenv("TILEWISE_CK_CONV_LIB", str(build()))
    monkeypatch.setenv("TILEWISE_CONV_MODEL", str(path))
    x, w = np.ones((2, 5, 5, 16), np.float16), np.ones((16, 3, 3, 16), np.float16)
    assert (Dispatcher(model.target, model.pool, model).run(CONV, x, w) == np.full((2, 3, 3, 16), 9 * 16)).all()


def test_threads_and_forked_children_run(folder: Path) -> None:
    stub(folder, "a", gemm_name(16))
    run_alone(f"""
        import os, threading
        import numpy as np
        from tilewise.dispatch import Dispatcher
        from tilewise.kernels.ck import parse_name
        from tilewise.kernels import Pool
        from tilewise.ops import GemmProblem, Target
        pool = Pool("gemm", "universal", "fp16", (parse_name({gemm_name(16)!r}).kernel,))
        dispatcher = Dispatcher(Target("gemm", "universal", "fp16", "gfx942"), pool, None)
        a = b = np.eye(32, dtype=np.float16)
        def work():
            for _ in range(20):
                assert np.array_equal(dispatcher.run(GemmProblem(32, 32, 32), a, b), a)
                done.append(1)
        done = []
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(done) == 80
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
        work()
    """)
    calls = [what for what, *_ in log_of(folder / "calls.log")]
    assert calls == ["init", "init", "cleanup", "cleanup"], "once a process"


def test_running_imports_neither_torch_nor_triton(folder: Path) -> None:
    stub(folder, "a", gemm_name(16))
    run_alone(f"""
        import sys
        import numpy as np
        from tilewise.dispatch import Dispatcher
        from tilewise.kernels.ck import parse_name
        from tilewise.kernels import Pool
        from tilewise.ops import GemmProblem, Target
        pool = Pool("gemm", "universal", "fp16", (parse_name({gemm_name(16)!r}).kernel,))
        a = np.ones((16, 16), dtype=np.float16)
        c = Dispatcher(Target("gemm", "universal", "fp16", "gfx942"), pool, None).run(GemmProblem(16, 16, 16), a, a)
        assert (c == 16).all()
        assert not {{"torch", "triton", "pandas", "pyarrow", "mlflow"}} & set(sys.modules)
    """)


def test_device_tensors_come_with_their_stream(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is simulated: PyTorch's answers about it are made up, and its memory is the host's."""
    torch = pytest.importorskip("torch")
    stub(folder, "a", conv_name(), CONV=1)
    monkeypatch.setenv("TILEWISE_CK_CONV_MEMORY", "device")
    entered: list[str] = []

    def entering(place: str) -> nullcontext[None]:
        entered.append(str(place))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", entering)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    x, w = np.ones((2, 1, 5, 5, 16), np.float16), np.ones((16, 1, 3, 3, 16), np.float16)
    y = np.zeros((2, 1, 3, 3, 16), np.float16)
    dispatcher = dispatcher_of(conv_name())
    dispatcher.run(CONV, *map(on_device, (x, w)), out=on_device(y))
    assert (y == 9 * 16).all()
    assert entered == ["cuda:1"]
    stream.cuda_stream = 8  # the stub refuses any but the default one
    with pytest.raises(KernelError, match="conv_dispatcher_run returned -3"):
        dispatcher.run(CONV, *map(on_device, (x, w)), out=on_device(y))
    with pytest.raises(ProblemError, match=r"w: must be on cuda:1, is on cuda:0"):
        dispatcher.run(CONV, on_device(x), on_device(w, "cuda:0"), out=on_device(y))
    with pytest.raises(KernelError, match="x lies in host memory, the libraries take device memory"):
        dispatcher.run(CONV, x, w)


class _Device(str):
    type = "cuda"


def on_device(array: np.ndarray, place: str = "cuda:1") -> Any:
    """Return a stand-in with the attributes that the launcher reads from a tensor."""
    return SimpleNamespace(
        data_ptr=lambda: array.ctypes.data, shape=array.shape, dtype=f"torch.{array.dtype}", device=_Device(place),
        is_contiguous=lambda: True,
    )  # fmt: skip


A, B = np.zeros((32, 48), np.float16), np.zeros((64, 48), np.float16)
READ_ONLY = np.zeros((32, 64), np.float16)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("tensors", "out", "message"),
    [
        ((A,), None, "tensors: gemm_universal_fp16_gfx942 takes a and b, got 1"),
        ((A, [1]), None, r"b: must be a NumPy array or a torch\.Tensor, got list"),
        ((A.astype(np.float32), B), None, "a: must be of float16, is of float32"),
        ((A, B.T), None, r"b: must have the shape \(64, 48\), has \(48, 64\)"),
        ((A, np.asfortranarray(B)), None, "b: must be contiguous"),
        ((A, B), np.zeros((32, 65), np.float16), r"c: must have the shape \(32, 64\), has \(32, 65\)"),
        ((A, B), READ_ONLY, "c: out must be writeable"),
    ],
)
def test_wrong_arrays_are_named(folder: Path, tensors: Sequence[Any], out: Any, message: str) -> None:
    (folder / "a.so").touch()
    with pytest.raises(ProblemError, match=message):
        dispatcher_of(gemm_name(16)).run(GEMM, *tensors, out=out)


@pytest.mark.parametrize(
    ("problem", "name", "variable"),
    [(GEMM, gemm_name(16), "TILEWISE_CK_GEMM_LIB"), (CONV, conv_name(), "TILEWISE_CK_CONV_LIB")],
)
def test_libraries_must_be_named(problem: Problem, name: str, variable: str) -> None:
    with pytest.raises(KernelError, match=f"no kernel of .* can be launched: no CK Tile library .* set {variable}"):
        dispatcher_of(name).run(problem, A, B)


def test_a_split_of_k_is_launched_by_a_library_whose_name_states_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split = f"{gemm_name(16)}_splitk3"
    stub(folder, "a", gemm_name(16))
    a, b, right = operands()
    assert np.array_equal(dispatcher_of(split, gemm_name(16)).run(GEMM, a, b), right)
    assert f"no library runs {split}, and CK Tile's C functions take no split of K" in caplog.text
    caplog.clear()
    stub(folder, "b", split)
    assert np.array_equal(dispatcher_of(split, gemm_name(16)).run(GEMM, a, b), right)
    assert caplog.text == ""
