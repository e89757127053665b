"""An optimised network computes the same, with kernels where they win and PyTorch's layers elsewhere."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import tilewise.torch as ours
from dispatch.measuring.measurers import FakeMeasurer
from kernels.dispatchers import dispatcher_of
from small_model import write_model
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ConfigError, MeasurementError
from tilewise.kernels.triton.programs import interpreted
from tilewise.model import load_artefact
from tilewise.ops import GemmProblem, GroupedConvProblem
from tilewise.torch._serving import _from_production
from torch_functions.compare import close, half
from torch_functions.predicting import KERNELS, predicting
from torch_functions.ranks import optimise_on_rank, small_net

PASS = 0.0017  # ms, of a tiny result
pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


class Net(nn.Module):  # type: ignore[misc] # torch has no types here
    """Convolutions with and without batch normalisation, one of them read twice, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.twice, self.after = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.unused = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x)).relu()
        y = self.twice(x)
        x = self.after(y) + y
        return self.head(x.mean((2, 3)))


class Keeping(nn.Module):  # type: ignore[misc] # as above
    """A convolution, and a tensor that the first pass makes and later ones read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1).half()
        self.kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = torch.arange(8, dtype=x.dtype).reshape(1, 8, 1, 1)
        y: torch.Tensor = self.conv(x) + self.kept
        return y


class Reading(Keeping):
    """The same, with a branch on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum().item() > 0 else -x)


def net() -> Net:
    made = Net()
    for norm in (made.norm, made.after):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
    made.half()
    return made


@pytest.fixture
def x() -> torch.Tensor:
    return half(2, 3, 6, 5)


@pytest.fixture
def _winning() -> Iterator[None]:
    with ours.use(*predicting()):
        yield


def classes(model: nn.Module) -> dict[str, str]:
    return {name: type(m).__name__ for name, m in model.named_modules() if name and "." not in name}


class TestDecisions:
    def test_a_layer_is_replaced_where_the_pick_wins_and_left_where_pytorch_is_the_pick(self, x: torch.Tensor) -> None:
        with ours.use(*predicting(lambda p: isinstance(p, GroupedConvProblem) and p.Y == 3)):
            model, report = ours.optimize(net().eval(), x, fold=False)
        rows = {layer.name: layer for layer in report.layers}
        assert {name: row.replaced for name, row in rows.items()} == {
            "stem": True, "twice": False, "unused": False, "head": False,
        }  # fmt: skip
        assert (rows["twice"].reason, rows["unused"].reason) == (
            "PyTorch's own call is the pick", "the example does not call it",
        )  # fmt: skip
        assert (rows["stem"].pytorch_ms, rows["stem"].expected_ms) == (2.0 + PASS, 1.0)  # PyTorch's adds the bias
        assert report.pytorch_ms == pytest.approx(6.0 + 2 * PASS)
        assert report.expected_ms == pytest.approx(5.0 + PASS)
        assert type(model.stem) is ours.Conv2d
        assert type(model.twice) is nn.Conv2d
        assert rows["stem"].passes[0].problem == GroupedConvProblem(2, 3, 8, 1, 6, 5, 3, 3, pad_h=1, pad_w=1).to_dict()

    @pytest.mark.usefixtures("_winning")
    def test_in_training_mode_the_gradients_count(self, x: torch.Tensor) -> None:
        report = ours.optimize(net(), x).report
        rows = {layer.name: [p.target.split("_fp16")[0] for p in layer.passes] for layer in report.layers}
        conv = [f"grouped_conv_{v}" for v in ("forward", "bwd_data", "bwd_weight")]
        assert rows["stem"] == [conv[0], conv[2]]  # the input needs no gradient
        assert rows["twice"] == conv
        assert rows["head"] == ["gemm_universal"] * 3
        problems = [GemmProblem.from_dict(p.problem) for p in report.layers[-1].passes]
        assert problems == [GemmProblem(2, 5, 8, "rcr"), GemmProblem(2, 8, 5, "rrr"), GemmProblem(5, 8, 2, "crr")]

    @pytest.mark.usefixtures("_winning")
    def test_a_gain_below_the_least_is_no_reason(self, x: torch.Tensor) -> None:
        assert ours.optimize(net().eval(), x, min_gain=0.49).report.layers[0].replaced
        assert not ours.optimize(net().eval(), x, min_gain=0.51).report.layers[0].replaced
        with pytest.raises(ConfigError, match="min_gain must be a share of at least 0, got -1"):
            ours.optimize(net(), x, min_gain=-1)

    @pytest.mark.usefixtures("_winning")
    def test_training_asks_for_more_than_evaluation_unless_told(
        self, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tilewise.torch.decision._judge._LEAST_GAIN_OF_TRAINING", 0.51)  # gains are 0.5
        assert not ours.optimize(net().train(), x).report.layers[0].replaced
        assert ours.optimize(net().eval(), x).report.layers[0].replaced
        assert ours.optimize(net().train(), x, min_gain=0).report.layers[0].replaced

    @pytest.mark.usefixtures("_winning")
    def test_calls_of_several_shapes_add_up(self) -> None:
        shared = nn.Conv2d(4, 4, 1).half()
        model = nn.Sequential(shared, nn.MaxPool2d(2), shared).eval()
        (layer,) = ours.optimize(model, half(1, 4, 4, 4)).report.layers
        assert [p.problem["Hi"] for p in layer.passes] == [4, 2]
        assert layer.pytorch_ms == 4.0 + 2 * PASS

    @pytest.mark.parametrize(("layer", "shape", "reason"), [
        (lambda: nn.Conv2d(4, 4, 1), (1, 4, 4, 4), "there are no kernels for torch.float32 on cpu"),
        (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect").half(), (1, 4, 4, 4), "padding with reflect"),
        (lambda: nn.Linear(4, 4).half(), (4,), "left to PyTorch by its arguments"),
        (lambda: type("Own", (nn.Linear,), {"forward": nn.Linear.forward})(4, 4).half(), (1, 4), "Own redefines"),
    ])  # fmt: skip
    @pytest.mark.usefixtures("_winning")
    def test_others_are_left_with_the_reason(self, layer: Any, shape: tuple[int, ...], reason: str) -> None:
        model = nn.Sequential(layer()).eval()
        example = torch.randn(shape).to(model[0].weight.dtype)
        found, report = ours.optimize(model, example)
        assert type(found[0]) is type(model[0])
        assert [reason in row.reason for row in report.layers] == [True]

    def test_without_a_prediction_nothing_is_guessed(self, x: torch.Tensor) -> None:
        without_model = dispatcher_of("grouped_conv", "forward", KERNELS["grouped_conv"], "vendor_cudnn")
        with ours.use(without_model):
            report = ours.optimize(net().eval(), x).report
        rows = {layer.name: layer for layer in report.layers}
        assert "has no model, so nothing compares them" in rows["stem"].reason
        assert rows["head"].reason == "there is no model of gemm_universal_fp16_sm90"
        assert not any(layer.replaced for layer in report.layers)

    @pytest.mark.long
    def test_a_pool_without_pytorch_s_call_compares_nothing(self, tmp_path: Path) -> None:
        write_model(tmp_path / "model", trees=5, target="grouped_conv_forward_fp16_sm90")
        with ours.use(Dispatcher.from_folder(tmp_path / "model")):
            (layer,) = ours.optimize(nn.Sequential(nn.Conv2d(8, 8, 1)).half().eval(), half(1, 8, 4, 4)).report.layers
        assert "has no call of PyTorch's own for this problem" in layer.reason

    def test_a_bias_of_a_product_costs_no_pass_on_either_side(self) -> None:
        biased, plain = (nn.Sequential(nn.Linear(8, 8, bias=b)).half().eval() for b in (True, False))
        with ours.use(*predicting()):
            reports = [ours.optimize(m, half(64, 8)).report for m in (biased, plain)]
        assert [(r.pytorch_ms, r.expected_ms) for r in reports] == [(2.0, 1.0)] * 2


@pytest.mark.usefixtures("_winning")
class TestExample:
    def test_nothing_is_computed_where_shapes_suffice(self, x: torch.Tensor) -> None:
        seen = []
        model = net()
        model.norm.register_forward_hook(lambda _, args, y: seen.append(isinstance(y, FakeTensor)))
        report = ours.optimize(model, x).report
        assert set(seen) == {True}
        assert [layer.name for layer in report.layers if layer.replaced] == ["stem", "twice", "head"]

    def test_a_tensor_that_a_pass_keeps_stays_a_real_one(self, x: torch.Tensor) -> None:
        model = Keeping()
        optimised, report = ours.optimize(model, x)
        assert report.layers[0].replaced
        assert (model.kept, optimised.kept) == (None, None)
        close(optimised(x), model(x))

    def test_a_network_that_reads_values_runs_for_real(self, x: torch.Tensor) -> None:
        model = Reading().eval()
        (layer,) = ours.optimize(model, x).report.layers
        assert layer.replaced
        assert [p.problem["K"] for p in layer.passes] == [8]

    def test_a_network_that_fails_says_why(self, x: torch.Tensor) -> None:
        with pytest.raises(RuntimeError, match="expected input"):
            ours.optimize(nn.Conv2d(4, 8, 1).half(), x)


@pytest.mark.usefixtures("_winning")
class TestNetwork:
    def test_results_and_gradients_are_those_of_the_original(self, x: torch.Tensor) -> None:
        original = net()
        model, report = ours.optimize(original, x)
        assert sum(layer.replaced for layer in report.layers) == 3
        dy = half(2, 5)
        for module in (original, model):
            module(x).backward(dy)
        for (name, a), (_, b) in zip(model.named_parameters(), original.named_parameters(), strict=True):
            if name.startswith("unused"):
                assert a.grad is None
            else:
                close(a.grad, b.grad)

    def test_the_original_is_untouched_unless_asked(self, x: torch.Tensor) -> None:
        original = net()
        before, state = classes(original), copy.deepcopy(original.state_dict())
        random = torch.get_rng_state()
        model, _ = ours.optimize(original, x)
        assert classes(original) == before
        assert all(torch.equal(a, b) for a, b in zip(original.state_dict().values(), state.values(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), state.values(), strict=True))
        assert torch.equal(torch.get_rng_state(), random)
        assert not model.stem._forward_pre_hooks
        assert ours.optimize(original, x, inplace=True).model is original
        assert classes(original)["stem"] == "Conv2d"
        assert type(original.stem) is ours.Conv2d

    @pytest.mark.parametrize("training", [False, True])
    def test_a_state_dict_fits_both_ways(self, x: torch.Tensor, training: bool) -> None:
        original, other = net().train(training), net().train(training)
        model, report = ours.optimize(original, x)
        assert list(model.state_dict()) == list(original.state_dict())
        assert report.folded == (() if training else (("stem", "norm"),))
        model.load_state_dict(other.state_dict())
        with torch.no_grad():
            close(model.eval()(x), other.eval()(x))
        original.load_state_dict(model.state_dict())

    @pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_and_pickles(self, x: torch.Tensor, again: Any) -> None:
        original = net().eval()
        made = again(ours.optimize(original, x).model)
        assert type(made.stem) is not nn.Conv2d
        with torch.no_grad():
            close(made(x), original(x))
            made.stem.weight.zero_()
            made.eval()  # folds again, in the copy alone
            assert float(made.stem.folded_weight.abs().max()) == 0

    @pytest.mark.long
    def test_compiled_whole(self, x: torch.Tensor) -> None:
        torch._dynamo.reset()
        original = net().eval()
        model, _ = ours.optimize(original, x)
        with torch.no_grad():
            close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), original(x))

    def test_exported(self, x: torch.Tensor) -> None:
        original = net().eval()
        model, _ = ours.optimize(original, x)
        with torch.no_grad():
            program = torch.export.export(model, (x,))
            close(program.module()(x), original(x))
        targets = [str(node.target) for node in program.graph.nodes]
        assert targets.count("tilewise.conv_ended.default") == 2  # they have biases
        assert sum("batch_norm" in target for target in targets) == 1  # of `after`, which is not folded

    def test_the_report_is_plain_data(self, x: torch.Tensor) -> None:
        report = ours.optimize(net().eval(), x).report
        document = json.loads(json.dumps(report.to_dict()))
        assert document["layers"][0]["passes"][0]["pick"].endswith(KERNELS["grouped_conv"])
        assert str(report).splitlines()[-1] == (
            "3 of 4 layers are replaced; 6.0051 -> 3.0000 ms expected, over the 3 layers whose times are known"
        )


@pytest.mark.usefixtures("_winning")
class TestFolding:
    def test_only_where_the_graph_proves_the_only_user(self, x: torch.Tensor) -> None:
        original = net().eval()
        model, report = ours.optimize(original, x)
        assert report.folded == (("stem", "norm"),)  # the result of `twice` is read twice
        with torch.no_grad():
            close(model(x), original(x))
            model.norm.eps = 1e9  # its own computation does not run
            close(model(x), original(x))

    def test_also_into_a_layer_that_is_left_to_pytorch(self, x: torch.Tensor) -> None:
        original = net().eval()
        with ours.use(*predicting(lambda p: False)):
            model, report = ours.optimize(original, x, fuse=False)
            assert not any(layer.replaced for layer in report.layers)
            assert isinstance(model.stem, nn.Conv2d)
            assert not isinstance(model.stem, ours.Conv2d)
            with torch.no_grad():
                close(model(x), original(x))

    def test_without_a_bias_where_the_kernel_adds_the_folded_one(self, x: torch.Tensor) -> None:
        """PyTorch would add it in a pass that takes as long as the normalisation."""
        plain = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).half().eval()
        model, report = ours.optimize(plain, x)
        assert report.folded == (("0", "1"),)
        with torch.no_grad():
            close(model(x), plain(x))
        with ours.use(*predicting(lambda p: False)):
            assert ours.optimize(plain, x).report.folded == ()

    def test_not_in_training_mode_nor_of_layers_in_it(self, x: torch.Tensor) -> None:
        assert "training mode" in ours.optimize(net(), x).report.why_not_folded
        partly = net().eval()
        partly.norm.train()
        assert ours.optimize(partly, x).report.folded == ()

    def test_not_with_hooks_or_without_running_statistics(self, x: torch.Tensor) -> None:
        hooked = net().eval()
        hooked.stem.register_forward_hook(lambda *_: None)
        assert ours.optimize(hooked, x).report.folded == ()
        forgetful = net().eval()
        forgetful.norm.running_mean = forgetful.norm.running_var = None
        assert ours.optimize(forgetful, x).report.folded == ()

    def test_not_where_a_layer_is_called_twice(self) -> None:
        conv, norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        model = nn.Sequential(conv, norm, conv, nn.BatchNorm2d(4)).half().eval()
        assert ours.optimize(model, half(1, 4, 4, 4)).report.folded == ()

    def test_not_where_the_graph_cannot_be_traced(self) -> None:
        class Branching(nn.Module):  # type: ignore[misc] # torch has no types here
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.conv(x)
                return self.norm(y) if y.sum() > 0 else y

        report = ours.optimize(Branching().half().eval(), half(1, 4, 4, 4)).report
        assert report.folded == ()
        assert report.why_not_folded.startswith("torch.fx cannot trace the model: TraceError")

    def test_gradients_that_can_be_asked_for_are_right(self, x: torch.Tensor) -> None:
        """With gradients enabled both layers compute by their parameters, in evaluation mode too."""
        original = net().eval()
        model, _ = ours.optimize(original, x)
        for module in (original, model):
            module(x).backward(torch.ones(2, 5).half())
        close(model.stem.weight.grad, original.stem.weight.grad)
        close(model.norm.weight.grad, original.norm.weight.grad)

    def test_training_goes_on_after_folding(self, x: torch.Tensor) -> None:
        original = net().eval()
        model, _ = ours.optimize(original, x)
        for module in (original, model):
            module.train()(x)  # running statistics move
            with torch.no_grad():
                module.stem.weight.mul_(0.5)
            module.eval()
        with torch.no_grad():
            close(model(x), original(x))


@pytest.mark.long
def test_all_ranks_choose_alike(tmp_path: Path) -> None:
    write_model(tmp_path / "model", trees=20, target="grouped_conv_forward_fp16_sm90", vendor=True)
    torch.multiprocessing.spawn(optimise_on_rank, (3, str(tmp_path)), nprocs=3)
    digests = (tmp_path / "digests").read_text().split()
    assert len(digests) == 3
    assert len(set(digests)) == 1
    graphs = (tmp_path / "graphs").read_text().splitlines()
    assert len(graphs) == 3
    assert len(set(graphs)) == 1
    assert "tilewise.conv" in graphs[0]
    with ours.use(Dispatcher.from_folder(tmp_path / "model", switches=Switches())):
        report = ours.optimize(small_net().eval(), torch.ones(2, 8, 8, 8).half(), launch="graph").report
    assert (tmp_path / "report").read_text() == str(report)
    assert report.digest == digests[0]
    assert report.pytorch_ms > 0


class TestMeasuring:
    """Decisions by times, of which PyTorch's own call has 1 ms."""

    @pytest.fixture
    def measurer(self) -> FakeMeasurer:
        measurer = FakeMeasurer()
        measurer.ms = {24: 1.0}  # the small model's last kernel
        return measurer

    @pytest.fixture
    def dispatcher(self, measurer: FakeMeasurer, tmp_path: Path) -> Dispatcher:
        folder = write_model(tmp_path / "model", trees=5, target="grouped_conv_forward_fp16_sm90", vendor=True)
        model = load_artefact(folder)
        return Dispatcher(model.target, model.pool, model, switches=Switches(), measurer=measurer)

    @pytest.mark.long
    @pytest.mark.parametrize(("ms", "gain"), [(0.75, "25.1%"), (1.25, "")])  # PyTorch adds the bias in a pass
    def test_the_faster_call_computes_a_layer(
        self, dispatcher: Dispatcher, measurer: FakeMeasurer, ms: float, gain: str
    ) -> None:
        measurer.ms |= dict.fromkeys(range(24), ms)
        network, x = small_net()[:3].eval(), half(2, 8, 8, 8)
        with ours.use(dispatcher):
            predicted = ours.optimize(network, x, fuse=False, launch="graph").report.layers
            ours.measure(network, x, top_k=2)
            ours.measure(network, x, top_k=1)
            layers = ours.optimize(network, x, fuse=False, launch="graph").report.layers
        assert [layer.replaced for layer in layers] == [bool(gain)] * 2
        assert all(p.is_measured for layer in layers for p in layer.passes)
        assert [len(kernels) for _, kernels in measurer.asked] == [3, 3]  # PyTorch's call and two others
        assert measurer.calls == 1
        assert not any(p.is_measured for layer in predicted for p in layer.passes)
        assert layers[1].reason == (f"the measured gain is {gain}" if gain else "PyTorch's own call is the pick")

    def test_without_a_gpu_it_is_an_error(self, dispatcher: Dispatcher, measurer: FakeMeasurer) -> None:
        measurer._machine = None
        with ours.use(dispatcher), pytest.raises(MeasurementError, match="there is no GPU of sm90 here"):
            ours.measure(small_net()[:1].eval(), half(2, 8, 8, 8))
        with ours.use(dispatcher), pytest.raises(ConfigError, match="top_k must be a whole number"):
            ours.measure(small_net()[:1].eval(), half(2, 8, 8, 8), top_k=0)

    def test_measured_gains_need_not_be_large_in_training(
        self, dispatcher: Dispatcher, measurer: FakeMeasurer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measurer.ms |= dict.fromkeys(range(24), 0.98)
        for variant in ("bwd_data", "bwd_weight"):
            monkeypatch.setitem(_from_production, f"grouped_conv_{variant}_fp16_sm90", "there is no model")
        network = small_net()[:1].train().requires_grad_(False)  # the result alone
        with ours.use(dispatcher):
            ours.measure(network, half(2, 8, 8, 8), top_k=1)
            (layer,) = ours.optimize(network, half(2, 8, 8, 8), launch="graph").report.layers
        assert layer.replaced


@pytest.mark.long
def test_another_model_or_another_shape_is_another_digest(tmp_path: Path) -> None:
    digests = set()
    for sign in (1.0, -1.0):
        folder = tmp_path / str(sign)
        write_model(folder, trees=20, sign=sign, target="grouped_conv_forward_fp16_sm90", vendor=True)
        with ours.use(Dispatcher.from_folder(folder)):
            for size in (8, 9):
                digests.add(ours.optimize(small_net()[:3].eval(), half(2, 8, size, size)).report.digest)
    assert len(digests) == 4
