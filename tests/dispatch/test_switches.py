"""Switches are read from keyword arguments and the environment, refused clearly, and obeyed."""

from __future__ import annotations

import dataclasses
import re
import threading
from pathlib import Path

import pytest

from kernels.dispatchers import dispatcher_of
from small_model import VENDOR, write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ConfigError, KernelError, RegistryUnavailableError
from tilewise.kernels import Pool
from tilewise.ops import GroupedConvProblem

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
DOCS = Path(__file__).parents[2] / "docs" / "dispatching.md"


def test_a_keyword_beats_the_variable_and_the_variable_the_default() -> None:
    environment = {
        "TILEWISE_MEASURE": "off",
        "TILEWISE_MEASURE_TOP": "7",
        "TILEWISE_FORBID": " a*, b ",
        "TILEWISE_KERNEL": "",
    }
    switches = Switches.read(environment, measure="always", kernel=None)
    assert (switches.measure, switches.measure_top, switches.forbid) == ("always", 7, ("a*", "b"))
    assert (switches.kernel, switches.model) == ((), "auto")


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("MODEL", "on", "TILEWISE_MODEL=on: must be one of auto, require, off"),
        ("MEASURE", "yes", "one of off, missing, far, unsure, always"),
        ("NETWORK", "x", "one of on, later, off"),
        ("VENDOR", "no", "TILEWISE_VENDOR=no: must be one of on, off, only"),
        ("REFRESH_S", "-1", "TILEWISE_REFRESH_S=-1: must be a number of seconds"),
        ("REFRESH_S", "nan", "a number of seconds"),
        ("REFRESH_S", "inf", "a number of seconds, 0 or more, at most"),
        ("REFRESH_S", "1e10", "a number of seconds, 0 or more, at most"),
        ("JOURNAL_MB", "inf", "TILEWISE_JOURNAL_MB=inf: must be a number of megabytes above 0, at most 1e+09"),
        ("JOURNAL_MB", "0", "a number of megabytes above 0"),
        ("JOURNAL_SHARE", "1.5", "a share between 0 and 1"),
        ("DECISIONS", "many", "a whole number of at least 2"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, match: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(match)):
        Switches.read({f"TILEWISE_{name}": value})
    with pytest.raises(ConfigError, match=f"{name.lower()}={value}: must be"):
        Switches.read({}, **{name.lower(): value})


def test_a_thread_can_wait_for_the_longest_period() -> None:
    """Else the thread that looks for a new model would end with an error at once."""
    longest = Switches.read({"TILEWISE_REFRESH_S": str(threading.TIMEOUT_MAX)}).refresh_s
    stopped = threading.Event()
    threading.Timer(0.05, stopped.set).start()
    assert stopped.wait(longest)


def test_an_unknown_switch_lists_those_known() -> None:
    with pytest.raises(ConfigError, match="unknown switch 'kernels'; known are model, kernel,"):
        Switches.read({}, kernels="x")


def test_all_are_in_the_table() -> None:
    """One table documents all switches with their defaults."""
    text = DOCS.read_text()
    rows = dict(re.findall(r"^\| `(TILEWISE_\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    for f in dataclasses.fields(Switches):
        default = f"{f.default:g}" if isinstance(f.default, float | int) else f.default or "-"
        assert rows[f"TILEWISE_{f.name.upper()}"].strip().strip("`") == default, f.name


class TestKernels:
    def test_only_kernels_that_a_pattern_allows_are_selected(self) -> None:
        free = Dispatcher.from_pool(CONV).rank(PLAIN)
        some = Dispatcher.from_pool(CONV, switches=Switches(kernel=("*_w8_*",))).rank(PLAIN)
        rest = Dispatcher.from_pool(CONV, switches=Switches(forbid=("*_w8_*", "*_w4_*"))).rank(PLAIN)
        assert some == tuple(s for s in free if "_w8_" in s.kernel_name)
        assert rest == tuple(s for s in free if "_w8_" not in s.kernel_name and "_w4_" not in s.kernel_name)
        assert 0 < len(some) < len(free)

    def test_a_name_is_a_pattern(self) -> None:
        last = Dispatcher.from_pool(CONV).rank(PLAIN)[-1]
        forced = Dispatcher.from_pool(CONV, switches=Switches(kernel=(last.kernel_name,)))
        assert forced.rank(PLAIN) == (last,)

    def test_a_pattern_that_forbids_all_kernels_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=f"leave none of the .* kernels of {CONV}"):
            Dispatcher.from_pool(CONV, switches=Switches(kernel=("none*",)))

    def test_a_problem_that_only_forbidden_kernels_support(self) -> None:
        free = Dispatcher.from_pool(CONV)
        odd = GroupedConvProblem(N=1, C=3, K=64, G=1, Hi=28, Wi=28, Y=3, X=3)
        names = tuple(s.kernel_name for s in free.rank(odd))
        assert len(free.rank(odd)) < free.kernel_count
        dispatcher = Dispatcher.from_pool(CONV, switches=Switches(forbid=names))
        assert not dispatcher.is_supported(odd)
        with pytest.raises(KernelError, match="and the switches kernel, forbid and vendor allow"):
            dispatcher.select(odd)


class TestVendor:
    """The switch looks at a property of the candidates' backend, so it holds for every call that PyTorch makes."""

    CONFIGS = ("64x64x32_taps_w4_s3_g1_k1", "vendor_cudnn", "128x64x32_taps_w4_s3_g1_k1")

    @pytest.mark.parametrize(("vendor", "left"), [("on", (0, 1, 2)), ("off", (0, 2)), ("only", (1,))])
    def test_which_candidates_are_left(self, vendor: str, left: tuple[int, ...]) -> None:
        pool = dispatcher_of("grouped_conv", "forward", *self.CONFIGS)
        dispatcher = Dispatcher(
            pool.target, Pool("grouped_conv", "forward", "fp16", pool.kernels), None, switches=Switches(vendor=vendor)
        )
        assert [s.kernel.config for s in dispatcher.rank(PLAIN)] == [self.CONFIGS[i] for i in left]
        assert dispatcher.select(PLAIN).kernel.config == self.CONFIGS[left[0]]

    def test_the_variable_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWISE_VENDOR", "only")
        dispatcher = dispatcher_of("grouped_conv", "forward", *self.CONFIGS)
        assert [s.kernel.config for s in dispatcher.rank(PLAIN)] == ["vendor_cudnn"]
        assert (
            dispatcher.why_unsupported(PLAIN, self.CONFIGS[0]) == "the switches kernel, forbid and vendor leave it out"
        )

    def test_a_pool_without_such_calls_cannot_ask_for_them_alone(self) -> None:
        with pytest.raises(
            ConfigError, match=r"switches kernel, forbid and vendor leave none of the .* kernels of gemm"
        ):
            Dispatcher.from_pool("gemm_universal_bf16_sm90", switches=Switches(vendor="only"))

    def test_the_model_ranks_the_rest_alike(self, tmp_path: Path) -> None:
        folder = write_model(tmp_path / "model", trees=10, vendor=True)
        ranked = {
            v: Dispatcher.from_folder(folder, switches=Switches(vendor=v)).rank(PLAIN) for v in ("on", "off", "only")
        }
        assert [s for s in ranked["on"] if s not in ranked["only"]] == list(ranked["off"])
        assert [s.kernel for s in ranked["only"]] == [VENDOR]


def test_a_required_model_that_is_missing() -> None:
    with pytest.raises(RegistryUnavailableError, match="there is no local copy"):
        Dispatcher.from_registry(CONV, switches=Switches(model="require", network="off"))


def test_the_identity_separates_what_decides() -> None:
    """Target, pool and restricting switches count; settings that only watch do not."""
    configs = TestVendor.CONFIGS
    base = dispatcher_of("grouped_conv", "forward", *configs)
    same = [dispatcher_of("grouped_conv", "forward", *configs), _restricted(base, journal_mb=3.0)]
    others = [
        dispatcher_of("grouped_conv", "bwd_data", *configs),
        dispatcher_of("grouped_conv", "forward", *configs[::-1]),
        dispatcher_of("grouped_conv", "forward", *configs, dtype="bf16"),
        *(_restricted(base, **{name: value}) for name, value in [("vendor", "off"), ("forbid", "x*"), ("kernel", "*")]),
        _restricted(base, model="off"),
    ]
    assert [d.identity for d in same] == [base.identity] * 2
    assert len({base.identity, *(d.identity for d in others)}) == 1 + len(others)


def test_a_selection_that_is_left_to_pytorch() -> None:
    own = dispatcher_of("grouped_conv", "forward", *TestVendor.CONFIGS)
    vendor = dispatcher_of("grouped_conv", "forward", *TestVendor.CONFIGS[1:])
    assert (own.is_left_to_pytorch(PLAIN), vendor.is_left_to_pytorch(PLAIN)) == (False, True)
    with pytest.raises(KernelError):
        dispatcher_of("grouped_conv", "forward", "16x16x16_point_w1_s2_g1_k1").is_left_to_pytorch(PLAIN)


def _restricted(dispatcher: Dispatcher, **switches: object) -> Dispatcher:
    target = dispatcher.target
    pool = Pool(target.op, target.variant, target.dtype, dispatcher.kernels)
    return Dispatcher(target, pool, None, switches=Switches().but(**switches))
