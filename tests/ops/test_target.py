"""Targets: names, parsing, and the part of a name that is unknown."""

from __future__ import annotations

import pytest

from tilewise.errors import ConfigError
from tilewise.ops import OPS, Target


@pytest.mark.parametrize("arch", ["sm90", "gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize(("op", "variant"), [(name, v) for name, op in OPS.items() for v in op.variants])
def test_a_name_parses_back_to_its_target(op: str, variant: str, dtype: str, arch: str) -> None:
    target = Target(op, variant, dtype, arch)
    assert Target.parse(target.name) == target


def test_names() -> None:
    assert Target("grouped_conv", "bwd_data", "bf16", "sm90").name == "grouped_conv_bwd_data_bf16_sm90"
    assert Target("gemm", "universal", "fp8", "gfx950").name == "gemm_universal_fp8_gfx950"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("pool", "forward", "bf16", "sm90"), "op 'pool' is unknown; known are gemm, grouped_conv"),
        (("gemm", "forward", "bf16", "sm90"), "variant 'forward' is unknown; gemm has universal"),
        (("gemm", "universal", "int4", "sm90"), "dtype 'int4' is unknown"),
        (("gemm", "universal", "bf16", "SM 90"), "arch must be lower-case letters and digits, got 'SM 90'"),
    ],
)
def test_an_unknown_part_is_named(fields: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Target(*fields)


@pytest.mark.parametrize("name", ["", "gemm", "gemm_universal_bf16", "conv_forward_bf16_sm90", "grouped_conv_forward"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a target|is unknown"):
        Target.parse(name)
