"""Any callable can be tuned: a new key is measured once, the result is kept, and bad configurations cost themselves."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise
from autotuning.kernels import CONFIGS, lines, recorded, sleeper
from tilewise.errors import KernelError, UsageError
from tilewise.ops import OPS, OpDefinition, register


def test_runs_the_fastest_configuration_of_a_key(tmp_path: Path) -> None:
    tuned = sleeper(tmp_path / "log")
    assert tuned(3) == 3
    assert tuned.best_config == {"delay": 0}
    assert {line.split()[1] for line in lines(tmp_path / "log")} == {"20", "0", "10"}


def test_a_remembered_key_is_not_measured_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sleeper(log)(3)
    log.unlink()
    again = sleeper(log)  # a new process, as far as memory is concerned
    again(3)
    again(3)
    assert lines(log) == ["3 0", "3 0"]
    assert again.choose(3).why == "cache"


@pytest.mark.parametrize("n", [3, np.int64(3), True])
def test_whole_numbers_of_all_kinds_are_equal_keys(n: Any) -> None:
    tuned = recorded({1: 2.0, 2: 1.0})
    tuned(int(n))
    assert tuned.choose(n).why == "cache"


def test_a_changed_list_measures_only_its_new_configurations(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sleeper(log)(3)
    log.unlink()
    grown = sleeper(log, (*CONFIGS[1:], {"delay": 1}))
    assert grown.choose(3).configuration.arguments == {"delay": 0}
    assert {line.split()[1] for line in lines(log)} == {"1"}


def test_a_shortened_list_is_answered_from_the_cache() -> None:
    recorded({4: 3.0, 0: 1.0, 2: 2.0})(3)
    choice = recorded({4: 3.0, 2: 2.0}).choose(3)
    assert (choice.why, choice.configuration.arguments) == ("cache", {"width": 2})


def test_a_failing_configuration_costs_itself_only() -> None:
    tuned = recorded({-1: 1.0, 5: 3.0, 6: 2.0})
    assert tuned(7) == 6


def test_a_function_whose_every_configuration_fails_still_runs_with_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuned = recorded({-1: 1.0, -2: 1.0})
    with pytest.raises(ValueError, match="width must not be negative"):
        tuned(7)
    assert "no configuration ran" in caplog.text


def test_measurements_are_not_kept_without_cache_results(tmp_path: Path) -> None:
    log = tmp_path / "log"
    sleeper(log, cache_results=False)(3)
    log.unlink()
    sleeper(log, cache_results=False)(3)
    assert len(lines(log)) > len(CONFIGS)


def test_never_measuring_takes_the_first_configuration(tmp_path: Path) -> None:
    tuned = sleeper(tmp_path / "log", measure="never")
    tuned(3)
    assert lines(tmp_path / "log") == ["3 20"]


@pytest.mark.parametrize("value", [1.5, None, (1, 2)])
def test_a_key_that_is_no_integer_is_tuned_in_memory_with_one_warning(
    value: object, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tuned = recorded({1: 2.0, 2: 1.0})
    assert tuned(value) == tuned(value) == 2
    assert caplog.text.count("must be a whole number or a text") == 1


def test_a_key_that_cannot_be_looked_up_runs_the_first_configuration(caplog: pytest.LogCaptureFixture) -> None:
    tuned = recorded({1: 2.0, 2: 1.0})
    assert tuned([1]) == tuned([1]) == 1
    assert caplog.text.count("cannot be looked up") == 1


def test_a_key_that_is_no_parameter_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["n", "gone"], do_bench=lambda call, quantiles: 1.0)
    def run(n: int, *, w: int) -> int:
        return w

    assert run(1) == 1
    assert "key 'gone' is not a parameter" in caplog.text


def test_an_absent_argument_counts_with_its_default() -> None:
    @tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["n"], do_bench=lambda call, quantiles: 1.0)
    def run(n: int = 5, *, w: int) -> int:
        return w

    run()
    assert run.choose(5).why == "cache"
    assert run.choose(n=5).why == "cache"
    assert run.choose(6).why == "measured"


def test_defaults_keep_their_place_in_the_key_however_a_call_is_written() -> None:
    @tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["a", "b", "c"], do_bench=lambda call, quantiles: 1.0)
    def run(a: int, b: int = 3, c: int = 4, *, w: int) -> int:
        return w

    run(1, c=2)  # b is 3
    assert run.choose(1, 3, 2).why == run.choose(c=2, b=3, a=1).why == "cache"
    assert run.choose(1, 2, 3).why == "measured"
    assert run._form((1, 2), {"c": 2}).key((1, 2)) == run._form((1, 3, 2), {}).key((1, 3, 2)) == (1, 3, 2)


def test_the_order_of_keyword_arguments_does_not_matter() -> None:
    @tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["n"], do_bench=lambda call, quantiles: 1.0)
    def run(x: np.ndarray, y: np.ndarray, n: int, *, w: int) -> int:
        return w

    x, y = np.ones(1, np.float32), np.ones(1, np.float64)
    run(x=x, y=y, n=1)
    assert run.choose(y=y, n=1, x=x).why == "cache"
    assert run.choose(y, x, 1).why == "measured"


def test_a_value_that_the_configurations_set_must_not_be_passed() -> None:
    tuned = recorded({1: 2.0, 2: 1.0})
    with pytest.raises(KernelError, match="width: must not be passed by the call"):
        tuned(3, width=4)


def test_an_empty_list_of_configurations_calls_the_function_as_it_is() -> None:
    @tilewise.autotune(configs=[], key=["n"])
    def run(n: int) -> int:
        return n

    assert (run(4), run.choose(4).why) == (4, "only")


def test_arrays_join_the_key_by_their_element_type() -> None:
    @tilewise.autotune(configs=[{"w": 1}, {"w": 2}], key=["n"], do_bench=lambda call, quantiles: 1.0)
    def run(x: np.ndarray, n: int, *, w: int) -> int:
        return w

    run(np.ones(3, np.float32), 3)
    assert run.choose(np.zeros(9, np.float32), 3).why == "cache"
    assert run.choose(np.ones(3, np.float64), 3).why == "measured"


def test_pruning_leaves_out_configurations() -> None:
    def keep(configs: list[dict[str, int]], named: dict[str, int], **keywords: object) -> list[dict[str, int]]:
        return [c for c in configs if c["width"] <= named["n"]]

    tuned = recorded({8: 1.0, 4: 2.0, 2: 3.0}, prune_configs_by={"early_config_prune": keep})
    assert (tuned(4), tuned(9)) == (4, 8)


def test_a_performance_model_keeps_the_best_estimates() -> None:
    prune = {"perf_model": lambda n, width: abs(width - n), "top_k": 1}
    tuned = recorded({8: 1.0, 4: 2.0, 2: 3.0}, prune_configs_by=prune)
    assert (tuned(4), tuned(2)) == (4, 2)


def _some(n: int, *, width: int) -> int:
    return width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "../my"}, "name must be a lower-case letter"),
        ({"measure": "often"}, "measure must be call, aside or never, got 'often'"),
        ({"top": 0}, "top must be a whole number of 1 or more, got 0"),
        ({"rep": -1.0}, "rep must be a positive number"),
        ({"prune_configs_by": {"keep": 1}}, "prune_configs_by: unknown key 'keep'"),
        ({"prune_configs_by": {"top_k": 1.5}}, "top_k must be a whole number of 1 or more, or a share"),
        ({"configs": [{"width": 1}, {"width": 1}]}, r"configs\[1\] repeats configs\[0\] \(width=1\)"),
        ({"configs": [1]}, "must be a triton.Config or a mapping, got 1"),
        ({"configs": [{"width": object()}]}, "must have a stable text"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tilewise.autotune(**{"configs": [{"width": 1}], "key": ["n"], **options})(_some)


def test_a_functions_name_becomes_a_legal_one() -> None:
    assert tilewise.autotune(configs=[], key=["n"])(_some).name == "some"


def test_a_kernel_of_another_signature_than_its_op_still_runs(caplog: pytest.LogCaptureFixture) -> None:
    register(OpDefinition("of_rows", (("rows", "int"),), (("width", "int"),)))
    try:
        tuned = tilewise.autotune(configs=[{"width": 1}, {"width": 2}], key=["n"], name="of_rows")(_some)
        with caplog.at_level(logging.INFO):
            assert tuned(3) in (1, 2)
    finally:
        del OPS["of_rows"]
    assert "no model can be used: op of_rows is known with other columns" in caplog.text


def test_the_package_and_its_decorator_import_neither_triton_nor_torch() -> None:
    code = (
        "import sys, tilewise\n"
        "@tilewise.autotune(configs=[{'w': 1}, {'w': 2}], key=['n'])\n"
        "def f(n, *, w): return w\n"
        "f(3)\n"
        "print(sorted({'torch', 'triton', 'pandas', 'lightgbm', 'mlflow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_tilewise_loads_nothing_of_tuning() -> None:
    code = "import sys, tilewise; print([m for m in sys.modules if 'autotuning' in m or m == 'numpy'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_failures_are_logged_by_configuration(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        recorded({-1: 1.0, 6: 2.0})(7)
    assert "width=-1: runtime_error: ValueError: width must not be negative" in caplog.text
