"""A tuned Triton kernel is called like one of ``triton.autotune``; the interpreter runs it where there is no GPU."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import tilewise
from tilewise.errors import UsageError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _configs() -> list[object]:
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((32, 4), (64, 4), (64, 8))]


@triton.jit
def _plain(x, y, n, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, SCALE * tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _accumulate(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(y + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def _even(x, y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at))
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def _operands(n: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, device=DEVICE), torch.zeros(n, device=DEVICE)


def _grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def test_takes_positional_and_keyword_arguments_and_a_grid_of_the_configuration() -> None:
    kernel = tilewise.autotune(configs=_configs(), key=["n"])(_plain)
    x, y = _operands()
    kernel[_grid](x, y, 100, 2.0)
    assert torch.equal(y, 2 * x)
    kernel[_grid](x, y, n=100, SCALE=3.0)
    assert torch.equal(y, 3 * x)
    assert kernel.best_config in kernel.configs
    assert kernel.choose(x, y, 100, 2.0, grid=_grid).why == "cache"


@pytest.mark.parametrize(("reset", "restore"), [(["y"], None), (None, ["y"])])
def test_measuring_leaves_no_trace_in_the_result(reset: list[str] | None, restore: list[str] | None) -> None:
    tuned = tilewise.autotune(configs=_configs(), key=["n"], reset_to_zero=reset, restore_value=restore)
    kernel = tuned(_accumulate)
    x, y = _operands()
    kernel[_grid](x, y, 100)
    assert torch.equal(y, x)
    kernel[_grid](x, y, 100)
    assert torch.equal(y, x + x)


@pytest.mark.parametrize("above", [False, True])
def test_heuristics_stand_above_or_below(above: bool) -> None:
    def even(arguments: dict[str, int]) -> bool:
        return arguments["n"] % (arguments["BLOCK"] if not above else 64) == 0

    heuristics, tuned = triton.heuristics({"EVEN": even}), tilewise.autotune(configs=_configs(), key=["n"])
    kernel = heuristics(tuned(_even)) if above else tuned(heuristics(_even))
    for n in (128, 100):
        x, y = _operands(n)
        kernel[_grid](x, y, n)
        assert torch.equal(y, x)


def test_a_configurations_hook_runs_before_each_launch() -> None:
    seen: list[int] = []
    configs = [triton.Config({"BLOCK": 32}, pre_hook=lambda arguments: seen.append(arguments["BLOCK"]))]
    kernel = tilewise.autotune(configs=configs, key=["n"])(_even)
    x, y = _operands()
    kernel[_grid](x, y, 100, False)
    kernel[_grid](x, y, 100, EVEN=False)
    assert seen == [32, 32]


def test_hooks_of_a_measurement_get_all_arguments() -> None:
    calls: list[tuple[str, object]] = []

    def before(arguments: dict[str, object], reset_only: bool = False) -> None:
        calls.append(("before", reset_only if reset_only else arguments["BLOCK"]))

    def after(arguments: dict[str, object], exception: Exception | None) -> None:
        calls.append(("after", exception))

    kernel = tilewise.autotune(configs=_configs(), key=["n"], pre_hook=before, post_hook=after)(_plain)
    x, y = _operands()
    kernel[_grid](x, y, 100, 1.0)
    assert calls[:2] == [("before", 32), ("after", None)]
    assert calls[-1] == ("before", True)


def test_run_and_warmup_are_triton_s() -> None:
    kernel = tilewise.autotune(configs=_configs(), key=["n"])(_plain)
    x, y = _operands()
    kernel.run(x, y, 100, 2.0, grid=(4,), warmup=False)
    assert torch.equal(y, 2 * x)
    assert len(kernel.warmup(x, y, 100, 2.0, grid=(4,))) == 3
    with pytest.raises(UsageError, match=r"launch it with plain\[grid\]"):
        kernel(x, y, 100, 2.0)


def test_a_configuration_that_does_not_compile_costs_itself_only() -> None:
    kernel = tilewise.autotune(configs=[triton.Config({"BLOCK": 33}), *_configs()], key=["n"])(
        _plain
    )  # 33: no power of 2
    x, y = _operands()
    kernel[_grid](x, y, 100, 2.0)
    assert torch.equal(y, 2 * x)
    assert kernel.best_config is not kernel.configs[0]
