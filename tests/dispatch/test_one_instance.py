"""One instance of CK Tile: it supports a problem, or the reason is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import KernelError
from tilewise.kernels import Pool
from tilewise.kernels.ck import get_instance_string, parse_instance_string, parse_name
from tilewise.ops import GroupedConvProblem, Target

TARGET = Target.parse("grouped_conv_forward_bf16_gfx950")
NAMES = tuple(f"grouped_conv_forward_bf16_2d_{tile}x64x64_compv3_intrawave" for tile in (64, 128))
WIDE, NARROW = (f"{NAMES[0]}[vector_a={v},vector_b={v},vector_c={v}]" for v in (8, 4))
PLAIN = GroupedConvProblem(N=1, C=16, K=24, G=1, Hi=8, Wi=8, Y=1, X=1)
NARROWER = replace(PLAIN, C=12, K=12)
DEEP = GroupedConvProblem(N=1, C=16, K=16, G=1, Di=4, Hi=8, Wi=8, Z=3, Y=1, X=1)


@pytest.fixture
def dispatcher() -> Dispatcher:
    pool = Pool(TARGET.op, TARGET.variant, TARGET.dtype, tuple(parse_name(n).kernel for n in NAMES))
    return Dispatcher(TARGET, pool, None, switches=Switches.read(forbid="*128x64x64*"))


def test_a_name_a_configuration_and_a_kernel_mean_the_same(dispatcher: Dispatcher) -> None:
    kernel = dispatcher.kernels[0]
    for spelling in (kernel, kernel.config, NAMES[0]):
        assert dispatcher.is_supported(PLAIN, spelling)
        assert dispatcher.is_supported(PLAIN.to_dict(), spelling)
        assert dispatcher.why_unsupported(DEEP, spelling) == "a 2d kernel has no depth"


def test_an_instance_string_states_more_than_the_pool(dispatcher: Dispatcher) -> None:
    assert dispatcher.is_supported(NARROWER, NARROW)
    assert dispatcher.why_unsupported(NARROWER, WIDE) == "vector_a must divide a group's channels"
    assert get_instance_string(parse_instance_string(WIDE)) == WIDE


def test_a_name_without_widths_has_those_of_ck_tile(dispatcher: Dispatcher) -> None:
    """A first layer of three channels runs by no kernel whose loads take four or eight elements."""
    first = GroupedConvProblem(N=1, C=3, K=64, G=1, Hi=32, Wi=32, Y=3, X=3)
    assert dispatcher.why_unsupported(first, NAMES[0]) == "vector_a must divide a group's channels"
    assert not dispatcher.is_supported(first)
    assert dispatcher.why_unsupported(NARROWER, NAMES[0]) == "vector_b must divide a group's channels"


def test_a_forbidden_and_an_unknown_one(dispatcher: Dispatcher) -> None:
    assert dispatcher.why_unsupported(PLAIN, NAMES[1]) == "the switches kernel, forbid and vendor leave it out"
    assert not dispatcher.is_supported(PLAIN, NAMES[1])
    with pytest.raises(KernelError, match="is not one of the 2 kernels"):
        dispatcher.is_supported(PLAIN, NAMES[0].replace("64x64x64", "32x64x64"))
    with pytest.raises(KernelError, match="'speed' is not a parameter of an instance"):
        dispatcher.is_supported(PLAIN, f"{NAMES[0]}[speed=3]")
