"""Matrix products: FLOPs and bytes against counting by hand, and every impossible problem."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from strategies import gemm_problems
from tilewise.errors import ProblemError
from tilewise.ops import GemmProblem, gemm_dims, gemm_flops, gemm_min_bytes


def test_flops_and_bytes_by_hand() -> None:
    p = GemmProblem(M=16, N=1536, K=7168)
    assert p.flops == 352_321_536
    assert p.min_bytes("bf16") == 2 * (16 * 7168 + 7168 * 1536 + 16 * 1536)
    assert p.min_bytes("fp8") == 16 * 7168 + 7168 * 1536 + 2 * 16 * 1536
    assert p.implicit_gemm("universal") == (16, 1536, 7168, 1)


def test_the_group_key_leaves_out_the_layout() -> None:
    assert GemmProblem(M=8, N=4, K=2, layout="ccr").group_key == GemmProblem(M=8, N=4, K=2).group_key


def test_words_leave_out_the_defaults() -> None:
    assert GemmProblem.in_words(GemmProblem(M=16, N=8, K=4).to_dict()) == "M=16 N=8 K=4"
    assert GemmProblem.in_words({"M": 16, "layout": "ccr"}) == "M=16 layout=ccr"


@given(gemm_problems())
def test_columns_give_the_figures_of_single_problems(p: GemmProblem) -> None:
    columns = SimpleNamespace(**{k: np.array([v]) for k, v in p.to_dict().items()})
    assert gemm_flops(columns).tolist() == [p.flops]
    assert gemm_min_bytes(columns, "fp16").tolist() == [p.min_bytes("fp16")]
    assert tuple(d.tolist()[0] for d in gemm_dims(columns)) == p.implicit_gemm("universal")
    assert GemmProblem.from_dict(p.to_dict()) == p


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"M": 0, "N": 1, "K": 1}, "M", "at least 1, got 0"),
        ({"M": 1, "N": 1, "K": 1, "layout": "xyz"}, "layout", "must be one of rcr, rrr, crr, ccr, got 'xyz'"),
        ({"M": 1, "N": 1, "K": 1, "layout": None}, "layout", "must be one of rcr, rrr, crr, ccr, got None"),
        ({"M": 1, "N": 1, "K": 1, "layout": np.arange(4)}, "layout", "must be one of rcr, rrr, crr, ccr, got array"),
        ({"M": 1, "N": 1, "K": 1, "split_k": 2}, "split_k", "not a dimension of gemm"),
        ({"M": 2**31, "N": 2**31, "K": 1}, "K", "2 M N K is .* beyond int64"),
    ],
)
def test_an_impossible_problem_names_its_field(values: dict[str, int], field: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as e:
        GemmProblem.from_dict(values)
    assert e.value.field == field
