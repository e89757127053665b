"""A fixed sample of kernels and problems is refused for the same reasons as ever: recorded tables hold them.

A digest differs if a rule, its limit or its text changed. If that is meant, tables that were recorded under the old
rule need another look; then take the digest from the failure.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from kernels.samples import ck_kernels, some_problems, triton_kernels
from tilewise.arch import load_arch
from tilewise.kernels import illegal, unsupported
from tilewise.kernels.ck._ck_rules import illegal_reason, name_fault, shape_of
from tilewise.ops import Target


def digest(reasons: Iterable[object]) -> str:
    """Return a digest of reasons in their order; a sample must meet several, and None as well."""
    given = list(reasons)
    assert None in given
    assert len(set(given)) > 3
    return hashlib.sha256("\n".join(map(str, given)).encode()).hexdigest()[:10]


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("grouped_conv_forward_bf16_sm90", "legality 76196ee907, support af48490b74"),
        ("grouped_conv_bwd_data_bf16_sm90", "legality 1b49c88cf0, support 0bc04b047c"),
        ("grouped_conv_bwd_weight_bf16_sm90", "legality 0d5543c523, support 8cd6911201"),
        ("gemm_universal_bf16_sm90", "legality cead8a794b, support 8156b28bde"),
        ("gemm_universal_fp8_sm90", "legality 59f50459c3, support 5e61db62eb"),
    ],
)
def test_triton(target: str, expected: str) -> None:
    parsed, rng = Target.parse(target), random.Random(target)
    kernels, arch = triton_kernels(parsed, 1500, rng), load_arch(parsed.arch)
    reasons = [illegal(kernel, parsed, arch) for kernel in kernels]
    sound = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if reason is None]
    problems = list(some_problems(parsed.op, 300, rng))
    pairs = [(rng.choice(sound), rng.choice(problems)) for _ in range(4000)]
    support = digest(unsupported(kernel, problem, parsed.variant, parsed.dtype) for kernel, problem in pairs)
    assert f"legality {digest(reasons)}, support {support}" == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "grouped_conv_forward_bf16_gfx950",
            "shapes b4a33030b1, names 606b07b417, legality bc589e6f59, support dce1901599",
        ),
        (
            "grouped_conv_bwd_weight_fp16_gfx942",
            "shapes b4a33030b1, names 7669f8d4ac, legality 3cc230ea01, support 9f2c2f854d",
        ),
        ("gemm_universal_fp8_gfx950", "shapes 726d5a30b8, names 5b7c4ec8a2, legality 3b0ee9b336, support 1ab7d951fb"),
    ],
)
def test_ck(target: str, expected: str) -> None:
    parsed, rng = Target.parse(target), random.Random(target)
    arch = load_arch(parsed.arch)
    tiles = product((8, 16, 48, 64, 96, 128, 256), (16, 32, 64, 192, 256), (8, 16, 32, 64, 128))
    shapes = digest(shape_of(tile, parsed.dtype, arch) for tile in tiles)
    kernels = ck_kernels(parsed, 3000, rng)
    reasons = [illegal_reason(kernel, parsed, arch) for kernel in kernels]
    sound = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if reason is None]
    if parsed.op == "gemm":
        sound = [replace(kernel, split_k=rng.choice((0, 0, 2, 3, 16))) for kernel in sound]
    problems = list(some_problems(parsed.op, 300, rng))
    pairs = [(rng.choice(sound), rng.choice(problems)) for _ in range(4000)]
    support = digest(unsupported(kernel, problem, parsed.variant, parsed.dtype) for kernel, problem in pairs)
    names = digest(map(name_fault, kernels))
    assert f"shapes {shapes}, names {names}, legality {digest(reasons)}, support {support}" == expected
