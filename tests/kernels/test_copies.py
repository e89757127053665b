"""Launches copy operands whose channels 8 does not divide: the copies are those operands, padded by zeros."""

from __future__ import annotations

import pytest

from tilewise.kernels.triton.programs import interpreted, launch_all
from tilewise.ops import GroupedConvProblem

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")


@pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
@pytest.mark.parametrize(("c", "k"), [(5, 11), (8, 7), (12, 16), (70, 90)])
def test_copies_are_operands_padded_by_zeros(variant: str, c: int, k: int) -> None:
    from tilewise.kernels.triton._copies import copied_elements
    from tilewise.kernels.triton.programs import family_of
    from tilewise.kernels.triton.programs.conv._copies import copies_of

    problem, shares = GroupedConvProblem(2, c, k, 1, 9, 7, 3, 2, 2, 1, 1), 12
    operands = [torch.randn(shape).half() for shape in family_of("grouped_conv", variant).operands(problem)]
    elements = int(sum(copied_elements(problem, variant)))
    workspace = torch.full((shares + elements // 2 + 4,), float("nan"))
    loaded, launches = copies_of(problem, variant, "fp16", operands, workspace, shares)
    launch_all(launches)
    for operand, copy in zip(operands, loaded, strict=True):
        if operand.shape[-1] % 8 == 0:
            assert copy is operand
            continue
        right = torch.nn.functional.pad(operand, (0, -operand.shape[-1] % 8))
        assert torch.equal(copy.view(right.shape), right)
    assert workspace[:shares].isnan().all()
    assert workspace[-4:].isnan().all()


def test_operands_that_descriptors_load_are_not_copied() -> None:
    from tilewise.kernels.triton.programs.conv._copies import copies_of, copy_programs

    problem, tensor = GroupedConvProblem(2, 8, 16, 1, 4, 4, 1, 1), torch.empty(0)
    assert copy_programs(problem, "forward", "bf16") == ()
    assert copies_of(problem, "forward", "bf16", (tensor, tensor), tensor, 0) == ([tensor, tensor], ())
