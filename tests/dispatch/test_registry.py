"""One object selects over all targets of an arch as the targets' dispatchers do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from small_model import write_model
from tilewise.dispatch import Dispatcher, Registry, Switches
from tilewise.errors import ArtefactError, KernelError, ProblemError, UnknownTargetError
from tilewise.ops import GemmProblem, GroupedConvProblem, Target

LAYER = GroupedConvProblem(N=32, C=256, K=256, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
TARGETS = (
    "gemm_universal_bf16_sm90",
    *(f"grouped_conv_{variant}_bf16_sm90" for variant in ("forward", "bwd_data", "bwd_weight")),
)
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for target in TARGETS:
        write_model(folder / target, trees=10, target=target)
    return folder


@pytest.fixture
def registry(models: Path) -> Registry:
    return Registry("sm90", models=models, switches=Switches())


@pytest.mark.long
@pytest.mark.parametrize(
    ("problem", "stated", "target"),
    [
        ({"M": 128, "N": 256, "K": 64, "dtype": "bf16"}, {}, TARGETS[0]),
        (GemmProblem(128, 256, 64), {"dtype": "bf16"}, TARGETS[0]),
        (LAYER, {"dtype": "bf16"}, TARGETS[1]),
        (LAYER, {"dtype": "bf16", "variant": "bwd_data"}, TARGETS[2]),
        ({**LAYER.to_dict(), "variant": "bwd_weight", "dtype": "bf16", "op": "grouped_conv"}, {}, TARGETS[3]),
        (
            {**LAYER.stated(), "variant": "bwd_data", "dtype": "fp16"},
            {"variant": "forward", "dtype": "bf16"},
            TARGETS[1],
        ),
    ],
)
def test_a_problem_finds_its_target(
    registry: Registry, models: Path, problem: Any, stated: dict[str, str], target: str
) -> None:
    assert registry.target_of(problem, (), **stated).name == target
    dimensions = GemmProblem(128, 256, 64) if target == TARGETS[0] else LAYER
    with Dispatcher.from_folder(models / target, switches=Switches()) as dispatcher:
        assert registry.select(problem, **stated) == dispatcher.select(dimensions)
        assert registry.rank(problem, 3, **stated) == dispatcher.rank(dimensions, 3)
        best = dispatcher.select(dimensions).kernel_name
    assert registry.is_supported(problem, **stated)
    assert registry.is_supported(problem, best, **stated)


@pytest.mark.long
def test_the_dtype_may_be_that_of_the_tensors(registry: Registry) -> None:
    tensors = (SimpleNamespace(dtype="torch.float8_e4m3fn"),)
    assert registry.target_of({"M": 1, "N": 1, "K": 1}, tensors).dtype == "fp8"


@pytest.mark.long
def test_a_target_without_a_folder_has_its_shipped_pool(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/mlflow.db")
    assert registry.select({"M": 128, "N": 128, "K": 128, "dtype": "fp16"}).why == "fallback"
    assert registry.dispatcher("gemm_universal_fp16_sm90") is registry.dispatcher("gemm_universal_fp16_sm90")
    registry.close()


@pytest.mark.parametrize(
    ("problem", "stated", "message"),
    [
        ({"M": 1, "N": 1, "K": 1}, {}, "dtype: missing; state it with the problem, or as dtype="),
        ({"X": 1}, {"dtype": "bf16"}, "op: must be one of gemm, grouped_conv.*, got None"),
        (7, {"dtype": "bf16"}, "problem: must be a problem or its dimensions by name, got int"),
        (LAYER, {"dtype": "bf16", "layout": "NHWGC"}, "layout: not a part of a target"),
        ({**LAYER.stated(), "C": 255, "G": 2}, {"dtype": "bf16"}, "C: must be divisible by G = 2"),
    ],
)
def test_mistakes_are_named(registry: Registry, problem: Any, stated: dict[str, str], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        registry.select(problem, **stated)


@pytest.mark.parametrize("name", [TARGETS[1], "gemm_universal_fp16_sm90"])
def test_a_folder_with_a_model_of_another_target_is_refused(models: Path, tmp_path: Path, name: str) -> None:
    """Else a problem of one target would be answered with kernels of another."""
    shutil.copytree(models / TARGETS[0], tmp_path / name)
    with Registry("sm90", models=tmp_path, switches=Switches()) as registry:
        message = f"{name}: must hold a model of {name}, as its name says, got one of {TARGETS[0]}; rename the folder"
        with pytest.raises(ArtefactError, match=message):
            registry.dispatcher(name)


def test_other_archs_and_kernels_are_refused(registry: Registry) -> None:
    with pytest.raises(ProblemError, match="arch: must be sm90, that of this registry"):
        registry.dispatcher("gemm_universal_bf16_gfx950")
    with pytest.raises(KernelError, match="is not one of the"):
        registry.is_supported(LAYER, "nonsense", dtype="bf16")
    with pytest.raises(UnknownTargetError):
        Registry("gfx950", switches=Switches(model="off")).select(LAYER, dtype="fp32")


class TestWhileAnotherTargetIsOpened:
    """A thread waits for a registry of models that does not answer."""

    SLOW = "gemm_universal_fp16_sm90"

    @pytest.fixture
    def answer(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """Return the event that lets the registry answer."""
        asked, answer = threading.Event(), threading.Event()

        def from_registry(target: Target, *_: object, **__: object) -> Dispatcher:
            asked.set()
            assert answer.wait(60)
            return Dispatcher.from_pool(target, switches=Switches())

        monkeypatch.setattr(Dispatcher, "from_registry", from_registry)
        opening = threading.Thread(target=registry.dispatcher, args=(self.SLOW,), daemon=True)
        opening.start()
        assert asked.wait(60)
        yield answer
        answer.set()
        opening.join(60)

    @pytest.mark.timeout(60)
    def test_other_targets_do_not_wait(self, registry: Registry, answer: threading.Event) -> None:
        with ThreadPoolExecutor(1) as pool:
            try:
                assert pool.submit(registry.select, LAYER, dtype="bf16").result(20).why == "model"
            finally:
                answer.set()

    @pytest.mark.timeout(60)
    def test_those_who_want_the_same_target_share_its_dispatcher(
        self, registry: Registry, answer: threading.Event
    ) -> None:
        with ThreadPoolExecutor(4) as pool:
            wanted = [pool.submit(registry.dispatcher, self.SLOW) for _ in range(4)]
            assert not any(each.done() for each in wanted)
            answer.set()
            assert len({id(each.result(20)) for each in wanted}) == 1

    @pytest.mark.timeout(60)
    def test_closing_closes_it_too(
        self, registry: Registry, answer: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[str] = []
        monkeypatch.setattr(Dispatcher, "close", lambda self: closed.append(self.target.name))
        threading.Timer(0.1, answer.set).start()
        registry.close()
        assert closed == [self.SLOW]

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    @pytest.mark.parametrize("target", [TARGETS[1], SLOW], ids=["another", "the same"])
    def test_a_forked_child_opens_any_target(self, registry: Registry, answer: threading.Event, target: str) -> None:
        """The child has no thread that would ever free a lock which its parent holds."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                answer.set()
                status = 0 if registry.dispatcher(target).target.name == target else 2
            finally:
                os._exit(status)
        assert _exit_code(child, 20) == 0


def _exit_code(child: int, seconds: float) -> int:
    """Return the exit code of a process, which is killed if it has not ended by then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (ended := os.waitpid(child, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.long
@pytest.mark.parametrize("name", ["gemm", "conv"])
def test_the_examples_run(name: str, models: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "sm90", str(models)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 3
    assert all(line.endswith("(model)") for line in lines[:3])
