"""A call is served by an installed dispatcher, by the registry's model, or by PyTorch if neither can run it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.dispatch import Dispatcher
from tilewise.errors import KernelError, RegistryUnavailableError, UnknownTargetError
from tilewise.kernels.triton.programs import interpreted
from tilewise.ops import GroupedConvProblem, Target
from tilewise.torch import _serving as serving
from torch_functions.compare import CONVS, assert_same, close, conv_of, half

pytestmark = pytest.mark.long

needs_interpreter = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the registry by one without models, and return the list of requested targets."""
    asked: list[str] = []

    def from_registry(target: str, **options: Any) -> Dispatcher:
        asked.append(target)
        raise UnknownTargetError(f"no model of {target}")

    monkeypatch.setattr(Dispatcher, "from_registry", from_registry)
    return asked


@needs_interpreter
class TestLeftToPyTorch:
    def test_without_a_model_and_said_once(self, unknown: list[str], caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(2):
            x, w, options = CONVS["groups, stride, dilation"]
            assert_same(*conv_of(w), half(*x), half(*w), half(w[0]), **options)
        names = [f"grouped_conv_{variant}_fp16_sm90" for variant in GroupedConvProblem.variants]
        assert sorted(unknown) == sorted(names)
        assert [r.levelno for r in caplog.records] == [logging.WARNING] * 3
        assert "grouped_conv_forward_fp16_sm90: PyTorch's own operator is used, there is no model" in caplog.text

    def test_where_the_registry_s_libraries_are_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def from_registry(*args: Any, **options: Any) -> Dispatcher:
            raise ImportError("No module named 'mlflow'")

        monkeypatch.setattr(Dispatcher, "from_registry", from_registry)
        assert_same(ours.matmul, torch.matmul, half(5, 8), half(7, 8).t())

    def test_compiled_without_a_model(self, unknown: list[str]) -> None:
        """The choice is made when the operator runs, so the layout of the result must not depend on it."""
        x, w, options = CONVS["3D"]
        compiled = torch.compile(ours.conv3d, fullgraph=True, backend="aot_eager")
        assert_same(compiled, own.conv3d, half(*x), half(*w), **options)

    def test_where_no_kernel_can_run(self, caplog: pytest.LogCaptureFixture) -> None:
        def refuse(*args: Any, **options: Any) -> torch.Tensor:
            raise KernelError("no kernel supports it")

        targets = Target("gemm", "universal", "fp16", "sm90"), Target("grouped_conv", "forward", "fp16", "sm90")
        gemm, conv = (
            SimpleNamespace(target=t, run=refuse, is_left_to_pytorch=refuse, direct=lambda *_: None) for t in targets
        )
        with ours.use(gemm, conv):  # type: ignore[arg-type]
            for _ in range(2):
                a, b = half(5, 8), half(8, 7)
                close(ours.matmul(a, b), a @ b)
                x, w = half(1, 2, 4, 4), half(2, 2, 3, 3)
                close(ours.conv2d(x, w), own.conv2d(x, w))
        assert len(caplog.records) == 2

    @pytest.mark.parametrize(
        ("x", "w"),
        [
            (lambda: torch.randn(1, 2, 4, 4), lambda: torch.randn(3, 2, 3, 3)),
            (lambda: torch.randn(1, 2, 4, 4).double(), lambda: torch.randn(3, 2, 3, 3).double()),
            (lambda: half(0, 2, 4, 4), lambda: half(3, 2, 3, 3)),
        ],
    )
    def test_other_types_and_nothing_at_all(self, x: Callable[[], Any], w: Callable[[], Any], unknown: Any) -> None:
        a, b = x(), w()
        assert torch.equal(ours.conv2d(a, b, padding=1), own.conv2d(a, b, padding=1))
        assert not unknown

    @pytest.mark.parametrize(
        "product", [(half(8), half(8)), (half(3, 8), half(8)), (half(2, 3, 4), half(2, 4, 5)), (half(0, 4), half(4, 5))]
    )
    def test_other_products(self, product: tuple[torch.Tensor, torch.Tensor], unknown: list[str]) -> None:
        assert torch.equal(ours.matmul(*product), torch.matmul(*product))
        assert not unknown

    @pytest.mark.parametrize(
        "call",
        [
            lambda f: f(half(1, 3, 4, 4), half(3, 2, 3, 3)),
            lambda f: f(half(1, 2, 2, 2), half(3, 2, 3, 3)),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), stride=0),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), stride=(1, 1, 1)),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), padding=-1),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), padding="full"),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), padding="same", stride=2),
            lambda f: f(half(1, 2, 4, 4), half(3, 2, 3, 3), half(4)),
            lambda f: f(half(1, 2, 4, 4), half(3, 1, 3, 3), groups=2),
            lambda f: f(half(1, 2, 4, 4), torch.randn(3, 2, 3, 3)),
            lambda f: f(half(1, 1, 2, 4, 4), half(3, 2, 3, 3)),
        ],
    )
    def test_mistakes_are_pytorch_s_errors(self, call: Callable[..., Any], unknown: list[str]) -> None:
        with pytest.raises(Exception) as theirs:  # noqa: PT011 - any error of PyTorch
            call(own.conv2d)
        with pytest.raises(type(theirs.value)) as mine:
            call(ours.conv2d)
        assert str(mine.value) == str(theirs.value)
        assert not unknown


class TestServing:
    def test_remembered_warnings_are_bounded(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(serving, "_MAX_WARNINGS", 2)
        for message in ("one", "one", "two", "three"):
            serving.warn_once(message)
        assert [record.message for record in caplog.records] == ["one", "two"]

    def test_an_installed_dispatcher_is_removed_after_the_block(self) -> None:
        first, second = (dispatcher_of("gemm", "universal", "16x16x16_plain_w1_s2_g2_k1") for _ in range(2))
        name = first.target.name
        ours.use(first)
        with ours.use(second):
            assert serving._installed == {name: second}
        assert serving._installed == {name: first}

    def test_an_error_ends_the_block_as_well(self) -> None:
        with pytest.raises(KeyError), ours.use(dispatcher_of("gemm", "universal", "16x16x16_plain_w1_s2_g2_k1")):
            raise KeyError
        assert serving._installed == {}

    @needs_interpreter
    def test_the_registry_is_asked_once_a_target(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def from_registry(target: str, **options: Any) -> Dispatcher:
            asked.append((target, options))
            return dispatcher_of("gemm", "universal", "16x16x16_plain_w1_s2_g2_k1")

        monkeypatch.setattr(Dispatcher, "from_registry", from_registry)
        for _ in range(2):
            a, b = half(3, 4), half(4, 5)
            close(ours.matmul(a, b), a @ b)
        assert asked == [("gemm_universal_fp16_sm90", {"fallback": False})]

    @needs_interpreter
    @pytest.mark.parametrize("has_model", [True, False])
    def test_a_registry_that_was_down_is_asked_until_it_answers(
        self, has_model: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        dispatcher = dispatcher_of("gemm", "universal", "16x16x16_plain_w1_s2_g2_k1")
        asking: list[str] = []

        def from_registry(target: str, **options: Any) -> Dispatcher:
            asking.append(threading.current_thread().name)
            if len(asking) < 4:
                raise RegistryUnavailableError("no answer")
            if not has_model:
                raise UnknownTargetError("no model")
            return dispatcher

        monkeypatch.setattr(Dispatcher, "from_registry", from_registry)
        monkeypatch.setattr(serving, "_PAUSE_S", 0.01)
        a, b = half(3, 4), half(4, 5)
        close(ours.matmul(a, b), a @ b)
        background = f"tilewise await {dispatcher.target.name}"
        for thread in threading.enumerate():
            if thread.name == background:
                thread.join(10)
        assert asking == [threading.current_thread().name, *[background] * 3]
        close(ours.matmul(a, b), a @ b)
        assert serving.dispatcher_named(dispatcher.target.name) is (dispatcher if has_model else None)
        assert len(asking) == 4
        assert len(caplog.records) == (1 if has_model else 2)  # the second has the other reason
