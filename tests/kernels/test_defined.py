"""Kernels of an op of the user's own: names, parsing, support, and their backend."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

import own_op
from own_op import DEFINITION
from tilewise.arch import load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import Pool, backend, backend_of, backend_of_target, illegal, kernel_type, unsupported
from tilewise.ops import Target, register

TARGET = "my_matmul_universal_bf16_sm90"
VALUES = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "pipe": "tma.ws/2", "even_k": True}
CONFIG = "BLOCK_M.128-BLOCK_N.64-BLOCK_K.32-pipe.tma.ws/2-even_k.1"


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with own_op.registered():
        yield


def test_a_name_holds_the_whole_configuration() -> None:
    kind = kernel_type(DEFINITION)
    kernel = kind.from_dict(VALUES)
    assert kernel.config == CONFIG
    assert kind.from_config(CONFIG) == kernel
    assert kernel.to_dict() == VALUES
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    negative = kind.from_dict(VALUES | {"BLOCK_M": -1, "pipe": ""})
    assert kind.from_config(negative.config) == negative
    assert kernel_type(replace(DEFINITION, flops="M")) is kind, "other expressions are of the same kernels"


@pytest.mark.parametrize(
    "text", ["", "BLOCK_M.128", CONFIG.replace("128", "x"), CONFIG + "-a.1", CONFIG.replace(".1", ".2", 1)[:-1] + "7"]
)
def test_another_text_is_no_configuration(text: str) -> None:
    with pytest.raises(KernelError, match=r"is not a configuration of my_matmul; its form is BLOCK_M\.INT-BLOCK_N"):
        kernel_type(DEFINITION).from_config(text)


@pytest.mark.parametrize("pipe", ["a-b", "a b", "x" * 61])
def test_a_text_must_fit_a_name(pipe: str) -> None:
    with pytest.raises(KernelError, match="pipe must be a text of at most 60 letters"):
        kernel_type(DEFINITION).from_dict(VALUES | {"pipe": pipe})


def test_the_op_is_its_own_backend() -> None:
    target, kernel = Target.parse(TARGET), kernel_type(DEFINITION).from_dict(VALUES)
    own = backend("my_matmul")
    assert own is backend_of(kernel)
    assert own is backend_of_target(target)
    assert own.parse(f"my_matmul_universal_bf16_{CONFIG}", target).kernel == kernel
    assert illegal(kernel, target, load_arch("sm90")) is None
    assert "not of gemm" in str(illegal(kernel, Target.parse("gemm_universal_bf16_sm90"), load_arch("sm90")))
    with pytest.raises(ConfigError, match="backend 'other' is unknown"):
        backend("other")


def test_the_condition_decides_which_configurations_support_a_problem() -> None:
    kind, kernels = kernel_type(DEFINITION), []
    for k, pipe in ((32, "plain"), (128, "plain"), (32, "tma")):
        kernels.append(kind.from_dict(VALUES | {"BLOCK_K": k, "pipe": pipe}))
    pool = Pool("my_matmul", "universal", "bf16", tuple(kernels))
    problem = Target.parse(TARGET).problem({"M": 64, "N": 64, "K": 32, "layout": "rrr", "causal": False})
    assert pool.supported(problem).tolist() == [True, False, False]
    assert unsupported(kernels[0], problem, "universal", "bf16") is None
    assert (
        unsupported(kernels[1], problem, "universal", "bf16")
        == f"the op's condition {DEFINITION.supports} does not hold"
    )
    register(replace(DEFINITION, supports=""))
    assert pool.supported(problem).all()


def test_a_pool_survives_its_file_and_a_process() -> None:
    pool = Pool("my_matmul", "universal", "bf16", (kernel_type(DEFINITION).from_dict(VALUES),))
    assert pool.to_dict()["backend"] == "my_matmul"
    assert Pool.from_dict(pool.to_dict()) == pool
    assert pickle.loads(pickle.dumps(pool)) == pool
