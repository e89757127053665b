"""Eager calls last as long as their host part: it is measured once, and decides with the predicted times."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import tilewise.torch as ours
from tilewise.dispatch import Comparison, Dispatcher, Switches
from tilewise.errors import ConfigError
from tilewise.kernels import EpilogueKind, load_pool
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import interpreted
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import GroupedConvProblem, Target
from tilewise.torch import HostCost
from tilewise.torch import _optimize as optimizing
from tilewise.torch import _serving as serving
from tilewise.torch._calls import recording
from tilewise.torch._layers import kind_of
from tilewise.torch.decision import Launch
from tilewise.torch.decision import _host_costs as host_costs
from tilewise.torch.decision import _judge as judge
from tilewise.torch.decision._host_costs import LaunchForm, launch_form
from torch_functions.compare import half
from torch_functions.predicting import Predicting, predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")

NAME = "Conv2d float16 inference by a kernel"
NORM = "BatchNorm2d float16 training"
TARGETS = {nn.Conv2d: "grouped_conv_forward_fp16_sm90", nn.Linear: "gemm_universal_fp16_sm90"}


def net(*after: nn.Module) -> nn.Module:
    """Return a network of one layer, which PyTorch is predicted to compute in 2 ms and a kernel in 1 ms."""
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), *after).half().eval()


def optimised(model: nn.Module, launch: Launch) -> ours.OptimizeReport:
    with ours.use(*predicting()):
        return ours.optimize(model, half(1, 8, 4, 4), launch=launch).report


def cost(kernel: float, pytorch: float, one_pass: float = 0.0, norm: float = 0.0) -> dict[str, HostCost]:
    return {NAME: HostCost(kernel, pytorch, one_pass, norm)}


class TestDecisions:
    @pytest.mark.parametrize(
        ("costs", "replaced"),
        [
            (cost(0.5, 0.1), True),  # the kernels take longer than the host on both sides
            (cost(1.6, 0.1), True),
            (cost(1.8, 0.1), False),  # a gain of 10 %, and times of the host vary
            (cost(2.1, 0.1), False),
            (cost(2.1, 2.6), True),
            (cost(2.1, 2.0, 0.6), False),  # PyTorch's call adds the bias
        ],
    )
    def test_a_call_lasts_as_long_as_the_longer_part(self, costs: dict[str, HostCost], replaced: bool) -> None:
        report = optimised(net(), costs)
        assert report.layers[0].replaced is replaced
        assert report.host == costs
        assert ("the host would take" in report.layers[0].reason) is not replaced

    def test_graphs_cost_the_host_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(judge, "host_cost", None)  # not called
        report = optimised(net(), "graph")
        assert report.layers[0].replaced
        assert report.host == {}

    def test_functions_that_a_kernel_spares_cost_pytorch_a_launch_each(self) -> None:
        assert not optimised(net(), cost(2.3, 2.0, 0.8)).layers[0].replaced
        assert optimised(net(nn.ReLU()), cost(2.3, 2.0, 0.8)).layers[0].replaced

    @pytest.mark.parametrize("has_bias", [False, True])
    def test_a_batch_normalisation_counts_unless_it_is_folded_anyway(self, has_bias: bool) -> None:
        layers = nn.Conv2d(8, 8, 3, padding=1, bias=has_bias), nn.BatchNorm2d(8)
        report = optimised(nn.Sequential(*layers).half().eval(), cost(2.3, 2.0, norm=0.8))
        assert report.layers[0].replaced is not has_bias

    def test_equal_decisions_have_equal_digests(self) -> None:
        digests = [optimised(net(), cost(*c)).digest for c in ((1.5, 0.1), (1.6, 0.2), (2.5, 0.1))]
        assert digests[0] == digests[1] != digests[2]

    def test_measured_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(judge, "host_cost", lambda *args: HostCost(5.0, 0.1, 0.1, 0.1))
        with ours.use(*predicting()):
            report = ours.optimize(net(), half(1, 8, 4, 4)).report
        assert not report.layers[0].replaced
        assert f"{NAME}: an eager call takes the host 5.0000 ms, 0.1000 ms by PyTorch" in str(report)

    def test_the_rest_of_a_pass_counts(self) -> None:
        rest = {host_costs.REST_OF_PASS: HostCost(1.0, 1.0, 0.0, 0.0)}
        assert optimised(net(), cost(1.6, 0.1)).layers[0].replaced
        report = optimised(net(), cost(1.6, 0.1) | rest)
        assert not report.layers[0].replaced
        assert report.host == cost(1.6, 0.1) | rest

    @pytest.mark.parametrize("trains", [False, True])
    def test_the_rest_is_measured_of_networks_for_inference(
        self, trains: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(judge, "host_cost", lambda *args: HostCost(1.6, 0.25, 0.0, 0.0))
        monkeypatch.setattr(optimizing, "host_ms_of_pass", lambda *args: 5.0)
        report = optimised(net().train(trains), "eager")
        assert report.layers[0].replaced is trains
        assert (host_costs.REST_OF_PASS in report.host) is not trains
        if not trains:
            assert report.host[host_costs.REST_OF_PASS] == HostCost(4.75, 4.75, 0.0, 0.0)

    @pytest.mark.parametrize(("library", "in_one_launch"), [(0.1, False), (5.0, True)])
    def test_a_slower_kernel_is_preferred_that_costs_the_host_less(
        self, library: float, in_one_launch: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def compare(self: Predicting, problem: GroupedConvProblem, kind: EpilogueKind) -> Comparison:
            kernel, call = self.rank(problem)
            return Comparison(kernel, 1.0, 2.0, False) if kind.in_one_launch else Comparison(call, 0.5, 2.0, False)

        monkeypatch.setattr(Predicting, "compare_with_pytorch", compare)
        costs = cost(0.1, 0.1) | {
            NAME.replace("a kernel", "the library and a kernel"): HostCost(library, 0.1, 0.0, 0.0)
        }
        with ours.use(*predicting()):
            model, report = ours.optimize(net(), half(1, 8, 4, 4), launch=costs)
        assert report.layers[0].replaced
        assert report.layers[0].in_one_launch is model[0].in_one_launch is in_one_launch

    def test_mistakes(self) -> None:
        with pytest.raises(ConfigError, match="launch must be 'eager', 'graph' or measured host costs, got 'jit'"):
            optimised(net(), "jit")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"launch has no host cost of {NAME}; pass report.host"):
            optimised(net(), {})


class TestNormalisations:
    """A step of the convolution takes the GPU 2 ms, as the example needs no gradient, and a normalisation 0.094 ms.

    Kernels save 0.021 ms of these, but cost the host 0.05 ms instead of 0.025. The host's part counts 1.2 times.
    """

    LAYER = NAME.replace("inference", "training")
    COSTS: ClassVar = {NORM: HostCost(0.05 / 1.15, 0.025, 0.0, 0.0)}

    @staticmethod
    def report(costs: dict[str, HostCost], *after: nn.Module, **options: bool) -> ours.OptimizeReport:
        model, x = (t.to(memory_format=torch.channels_last) for t in (net(*after).train(), half(1, 8, 1250, 1250)))
        with ours.use(*predicting()):
            return ours.optimize(model, x, launch=costs, **options).report

    @pytest.mark.parametrize(
        ("layer", "norms", "taken"),
        [
            (0.25, 2, 2),
            (1.72, 2, 1),  # the second would keep the host busy for 1.82 ms, where the GPU takes 2.17 without it
            (1.76, 2, 0),
            (0.75, 14, 14),
            (2.07, 14, 8),
        ],
    )
    def test_kernels_compute_as_many_as_the_host_has_time_for(self, layer: float, norms: int, taken: int) -> None:
        costs = self.COSTS | {self.LAYER: HostCost(layer / 1.15, layer, 0.0, 0.0)}
        report = self.report(costs, *(nn.BatchNorm2d(8) for _ in range(norms)))
        assert report.layers[0].replaced
        assert len(report.norms) == taken
        assert set(report.norms.values()) <= {()}
        assert report.host == costs

    def test_the_step_by_other_functions_counts_on_either_side(self) -> None:
        """The GPU takes 0.02 ms for one."""
        for functions, host, taken in ((0, 0.0, {}), (10, 0.0, {"1": ()}), (10, 0.025, {})):
            costs = self.COSTS | {self.LAYER: HostCost(1.72 / 1.15, 1.72, host, 0.0)}
            assert self.report(costs, nn.BatchNorm2d(8), *(nn.ReLU() for _ in range(functions))).norms == taken

    def test_those_that_gain_little_stay(self) -> None:
        costs = self.COSTS | {self.LAYER: HostCost(0.1, 0.1, 0.0, 0.0)}
        report = optimised(net(nn.BatchNorm2d(8)).train(), costs)
        assert report.layers[0].replaced
        assert report.norms == {}

    def test_other_layouts_are_pytorchs(self) -> None:
        costs = self.COSTS | {self.LAYER: HostCost(0.1, 0.1, 0.0, 0.0)}
        with ours.use(*predicting()):
            report = ours.optimize(net(nn.BatchNorm2d(8)).train(), half(1, 8, 1250, 1250), launch=costs).report
        assert report.layers[0].replaced
        assert report.norms == {}

    def test_unless_they_are_not_wanted(self) -> None:
        costs = self.COSTS | {self.LAYER: HostCost(0.1, 0.1, 0.0, 0.0)}
        assert self.report(costs, nn.BatchNorm2d(8)).norms == {"1": ()}
        assert self.report(costs, nn.BatchNorm2d(8), fuse=False).norms == {}

    def test_without_a_layer_whose_time_is_known_they_stay(self) -> None:
        report = ours.optimize(net(nn.BatchNorm2d(8)).train(), half(1, 8, 4, 4)).report
        assert report.norms == {}
        assert report.host == {}

    def test_costs_of_an_earlier_version_are_without_theirs(self) -> None:
        costs = {self.LAYER: HostCost(0.1, 0.1, 0.0, 0.0)}
        assert self.report(costs).norms == {}
        assert self.report(costs, nn.BatchNorm2d(8)).norms == {}


class TestMeasuring:
    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_costs, "_known", {})
        monkeypatch.setattr(host_costs, "_BATCHES", 1)
        monkeypatch.setattr(host_costs, "_CALLS", 2)
        monkeypatch.setattr(host_costs, "_SIZE", 16)
        monkeypatch.setattr(host_costs, "_LONG_SIZE", 32)

    @pytest.mark.long
    @pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 3), nn.Linear(8, 8)])
    @pytest.mark.parametrize("form", LaunchForm)
    def test_each_form_of_inference(self, layer: nn.Module, form: LaunchForm) -> None:
        found = self._found(layer.eval(), form)
        assert min(found.kernel_ms, found.pytorch_ms, found.pass_ms, found.norm_ms) > 0
        if form is LaunchForm.KERNEL:  # in Triton's interpreter
            assert found.kernel_ms > found.pytorch_ms

    @pytest.mark.long
    @pytest.mark.parametrize("layer", [nn.Conv2d(8, 8, 3), nn.Linear(8, 8)])
    def test_training(self, layer: nn.Module) -> None:
        assert self._found(layer.train(), LaunchForm.KERNEL).kernel_ms > 0

    def test_a_class_that_only_adds_methods_costs_what_its_base_does(self) -> None:
        class Halving(nn.Conv2d):  # type: ignore[misc] # torch has no types here
            def __init__(self, channels: int) -> None:  # without PyTorch's other arguments
                super().__init__(channels, channels, 3, stride=2)

        found = [self._found(layer.eval(), LaunchForm.KERNEL) for layer in (Halving(8), nn.Conv2d(8, 8, 3))]
        assert found[0] is found[1]

    def _found(self, layer: nn.Module, form: LaunchForm) -> HostCost:
        """Measure a cost, and check that it leaves nothing behind."""
        state = torch.random.get_rng_state()
        with ours.use(*predicting()):
            installed = dict(serving._installed)
            found = host_costs.host_cost(layer, form, [TARGETS[kind_of(layer)]], torch.float16, torch.device("cpu"))
            assert serving._installed == installed
        assert torch.equal(torch.random.get_rng_state(), state)
        return found

    @pytest.mark.parametrize("form", [LaunchForm.KERNEL, LaunchForm.TWO_KERNELS])
    @pytest.mark.parametrize("layer", [nn.Conv2d, nn.Conv3d, nn.Linear])
    def test_a_step_s_gradients_have_kernels_of_the_form(
        self, layer: type[nn.Module], form: LaunchForm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PyTorch would compute them, after an error in every call."""
        monkeypatch.undo()
        device, names = torch.device("cpu"), set[str]()
        own, x = host_costs._tiny(layer, True, torch.bfloat16, device)
        with recording(own.train()) as calls:
            own(x.requires_grad_())
        (passes,) = calls[""]
        assert not isinstance(passes, str)
        for made in passes:
            target = Target(made.problem.op, made.variant, "bf16", "sm90")
            dispatcher = Dispatcher(target, load_pool(target), None, switches=Switches())
            found = host_costs._launching(dispatcher, form).select(made.problem)
            assert launch_form(found.kernel, made.problem, target, EpilogueKind()) == form
            names.add(made.variant)
        assert len(names) == (3 if layer is not nn.Linear else 1)

    def test_once_for_each_kind_of_layer_and_form(self) -> None:
        layer, form, cpu = nn.Linear(8, 8).eval(), LaunchForm.KERNEL, torch.device("cpu")
        with ours.use(*predicting()):
            first, second = (
                host_costs.host_cost(layer, form, [TARGETS[nn.Linear]], torch.float16, cpu) for _ in range(2)
            )
        assert first is second
        assert list(host_costs._known) == [("Linear float16 inference by a kernel", cpu)]

    def test_normalisations(self) -> None:
        state = torch.random.get_rng_state()
        found = host_costs.norm_cost(torch.float16, torch.device("cpu"))
        assert found.kernel_ms > found.pytorch_ms > 0
        assert host_costs.norm_cost(torch.float16, torch.device("cpu")) is found
        assert list(host_costs._known) == [(NORM, torch.device("cpu"))]
        assert torch.equal(torch.random.get_rng_state(), state)


def test_a_pass_is_timed_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.backends.cudnn.benchmark
            assert not torch.is_grad_enabled()
            self.calls += 1
            return x + torch.rand(())

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    counting, state = Counting().eval(), torch.random.get_rng_state()
    assert host_costs.host_ms_of_pass(counting, (torch.ones(2),)) > 0
    assert counting.calls == 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.backends.cudnn.benchmark


CONV = GroupedConvProblem(N=1, C=64, K=64, G=1, Hi=8, Wi=8, Y=3, X=3, pad_h=1, pad_w=1)
TARGET = Target("grouped_conv", "forward", "fp16", "sm90")
RELU, SILU, RESIDUAL = (
    EpilogueKind(activation="relu"),
    EpilogueKind(activation="silu"),
    EpilogueKind(True, True, "relu"),
)


@pytest.mark.parametrize(
    ("kernel", "kind", "form"),
    [
        (Kernel.from_config("64x64x64_taps_w4_s4_g1_k1"), RESIDUAL, LaunchForm.KERNEL),
        (Kernel.from_config("64x64x64_taps_w4_s4_g1_k4"), RELU, LaunchForm.TWO_KERNELS),
        (VendorCall("cudnn"), RELU, LaunchForm.LIBRARY),
        (VendorCall("cudnn"), RESIDUAL, LaunchForm.LIBRARY_WITH_RESIDUAL),
        (VendorCall("cudnn"), SILU, LaunchForm.LIBRARY_AND_KERNEL),
    ],
)
def test_forms_of_launches(kernel: Kernel | VendorCall, kind: EpilogueKind, form: LaunchForm) -> None:
    assert launch_form(kernel, CONV, TARGET, kind) is form


def test_a_batch_of_training_makes_each_call_with_gradients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_costs, "_CALLS", 3)
    called: list[nn.Linear] = []

    class Noting(nn.Linear):  # type: ignore[misc] # torch has no types here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            called.append(self)
            return super().forward(x)

    x = torch.ones(1, 2)
    batch = host_costs._batch(Noting(2, 2), x, is_training=True)
    for _ in range(2):
        batch()
    assert len(called) == 6
    assert len(set(called)) == 3
    for layer in set(called):
        right = layer(x).detach()  # the gradient that a call passes back is its own result
        assert torch.equal(layer.bias.grad, right[0])
        assert torch.equal(layer.weight.grad, right.t() @ x)
