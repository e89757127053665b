"""Every field of every file of a model has a type and a range; a signed file that breaks one is refused by name."""

from __future__ import annotations

import copy
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrations import one_bin
from model.test_artefact import PROBLEMS, make_parts, sign
from tilewise.errors import ArtefactError
from tilewise.metrics import DEPTH
from tilewise.model import _schema as schema
from tilewise.model import load_artefact, write_artefact

NAN, INFINITE = float("nan"), float("inf")
MANIFEST: dict[str, Any] = {
    "target": "grouped_conv_forward_bf16_sm90",
    "data_hash": "d" * 64,
    "git_revision": "unknown",
    "parameters": {"learning_rate": 0.1, "label": "residual", "extra_labels": ["latency"], "shortlist": 0, "old": None},
    "tuned": ["num_leaves"],
    "n_splits": 5,
    "seed": 0,
    "holdout_fraction": 0.18,
    "split_rule": "holdout: 18%",
    "n_problems": 3,
    "n_rows": 30,
    "n_holdout_problems": 0,
    "group_keys": "c" * 64,
    "holdout_keys": "d" * 64,
    "pool_size": 7,
    "libraries": {"numpy": "2.4.6"},
    "warm_start": [{"base": "a" * 64, "base_data_hash": None, "trees": 60, "data_hash": "b" * 64}],
    "a key of a later version": {"nested": [1, 0.5, "x", True, None]},
}
FIGURES = {"n_problems": 3, "mean_efficiency": 0.97, "min_efficiency": 0, "top1_accuracy": 1, "r2": -3.5, "rmse": 7.0}
METRICS = {**FIGURES, "folds": [FIGURES, FIGURES], "split_rule": "holdout: 18%"}
JSON_FILES = (
    "train_manifest.json",
    "cv_metrics_tflops.json",
    "feature_importances_tflops.json",
    "feature_spec.json",
    "pool.json",
    "selftest.json",
    "estimate.json.gz",
    "trust.json.gz",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = np.array([p.group_key for p in PROBLEMS])
    calibration = one_bin(keys, 3.5, 4, [np.array([0.2, 0.1])] * DEPTH)
    folder = tmp_path_factory.mktemp("models") / "m"
    write_artefact(folder, make_parts("residual", manifest=MANIFEST, cv_metrics=METRICS, calibration=calibration))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "m"))


def read(folder: Path, name: str) -> Any:
    data = (folder / name).read_bytes()
    return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)


def refused(folder: Path, name: str, value: Any) -> str:
    """Write a file, with its digest in the self-test; return the reason why the model is refused."""
    data = json.dumps(value).encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    if name != "selftest.json":
        sign(folder)
    with pytest.raises(ArtefactError) as e:
        load_artefact(folder)
    return str(e.value)


def test_the_sound_model_loads(folder: Path) -> None:
    model = load_artefact(folder)
    assert (model.manifest, model.cv_metrics) == (MANIFEST, METRICS)
    assert model.calibration is not None


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE, 2.0, 1, -0.1, True, "0.9", None, [0.18], {}, 10**400])
def test_the_holdout_fraction(folder: Path, value: Any) -> None:
    """NaN and 2.0 passed as a fraction that no problem reaches; None and lists were a traceback."""
    reason = refused(folder, "train_manifest.json", {**MANIFEST, "holdout_fraction": value})
    rule = "train_manifest.json: holdout_fraction must be a number of at least 0 and below 1, got "
    assert rule in reason
    assert "fetch the model again, or train it again" in reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_hash": 7}, "data_hash must be a text, got 7"),
        ({"target": None}, "target must be a text, got None"),
        ({"parameters": []}, r"parameters must be an object, got \[\]"),
        ({"parameters": {"num_leaves": NAN}}, "parameters.num_leaves must be a finite number, .*, got nan"),
        ({"parameters": {"num_leaves": {}}}, "parameters.num_leaves must be .*, got {}"),
        ({"parameters": {"extra_labels": [1]}}, r"parameters.extra_labels must be .*, got \[1\]"),
        ({"tuned": "num_leaves"}, "tuned must be a list, got 'num_leaves'"),
        ({"tuned": [1]}, r"tuned\[0\] must be a text, got 1"),
        ({"n_splits": 0}, "n_splits must be a whole number of at least 1, got 0"),
        ({"n_splits": 5.0}, "n_splits must be a whole number of at least 1, got 5.0"),
        ({"seed": True}, "seed must be a whole number of at least 0, got True"),
        ({"n_problems": -1}, "n_problems must be a whole number of at least 0, got -1"),
        ({"n_rows": "30"}, "n_rows must be a whole number of at least 0, got '30'"),
        ({"n_holdout_problems": 2**63}, "n_holdout_problems must be a whole number"),
        ({"holdout_keys": "d" * 63}, "holdout_keys must be a SHA-256"),
        ({"group_keys": None}, "group_keys must be a SHA-256"),
        ({"pool_size": 0}, "pool_size must be a whole number of at least 1, got 0"),
        ({"libraries": {"numpy": 2.4}}, "libraries.numpy must be a text, got 2.4"),
        ({"warm_start": {}}, "warm_start must be a list, got {}"),
        ({"warm_start": [{"trees": 3}]}, r"warm_start\[0\].base is missing"),
        ({"warm_start": [{"base": "a", "trees": -3}]}, r"warm_start\[0\].trees must be a whole number"),
        ({"later": NAN}, "later must be a finite number, got nan"),
        ({"later": [{"x": INFINITE}]}, r"later\[0\].x must be a finite number, got inf"),
    ],
)
def test_the_manifest(folder: Path, change: dict[str, Any], message: str) -> None:
    assert re.search(f"train_manifest.json: {message}", refused(folder, "train_manifest.json", {**MANIFEST, **change}))


def test_deep_nesting_is_refused(folder: Path) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    assert "nested at most 20 deep" in refused(folder, "train_manifest.json", {**MANIFEST, "later": deep})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean_efficiency": 1.01}, "mean_efficiency must be a number from 0 to 1, got 1.01"),
        ({"mean_efficiency": NAN}, "mean_efficiency must be a number from 0 to 1, got nan"),
        ({"top1_accuracy": True}, "top1_accuracy must be a number from 0 to 1, got True"),
        ({"r2": 1.5}, "r2 must be a finite number of at most 1, got 1.5"),
        ({"rmse": -1}, "rmse must be a finite number of at least 0, got -1"),
        ({"folds": [FIGURES, {**FIGURES, "p10_efficiency": "0.9"}]}, r"folds\[1\].p10_efficiency must be a number"),
        ({"split_rule": 0.18}, "split_rule must be a text, got 0.18"),
    ],
)
def test_the_cross_validation(folder: Path, change: dict[str, Any], message: str) -> None:
    reason = refused(folder, "cv_metrics_tflops.json", {**METRICS, **change})
    assert re.search(f"cv_metrics_tflops.json: {message}", reason)


def _change(value: Any, path: str, new: Any) -> Any:
    """Return a copy of parsed JSON with the value at a dotted path replaced."""
    value = copy.deepcopy(value)
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    inner = value
    for key in parents:
        inner = inner[key]
    inner[last] = new
    return value


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "path", "new", "message"),
    [
        ("feature_importances_tflops.json", "tile_m", "1.0", "tile_m must be a finite number of at least 0, got '1.0'"),
        ("feature_importances_tflops.json", "tile_m", NAN, "tile_m must be a finite number of at least 0, got nan"),
        ("feature_spec.json", "target.op", 1, "target.op must be a text, got 1"),
        ("feature_spec.json", "label", True, "label must be one of .*, got True"),
        ("feature_spec.json", "shortlist", False, "shortlist must be a whole number of at least 0, got False"),
        ("feature_spec.json", "arch.clock_mhz", INFINITE, "arch.clock_mhz must be a positive finite number, got inf"),
        ("feature_spec.json", "arch.compute_units", True, "arch.compute_units must be a whole number"),
        ("feature_spec.json", "arch.peak_tflops.bf16", "9", "arch.peak_tflops.bf16 must be a positive finite number"),
        ("feature_spec.json", "features.0.name", None, r"features\[0\].name must be a text, got None"),
        ("feature_spec.json", "features.0", "N", r"features\[0\] must be an object, got 'N'"),
        ("feature_spec.json", "features", [], "features must be a list of at least 1 entries"),
        ("pool.json", "hash", "abc", "hash must be a SHA-256 in 64 hexadecimal digits, got 'abc'"),
        ("pool.json", "kernels", [], "kernels must be a list of at least 1 entries"),
        ("pool.json", "kernels.0", [], r"kernels\[0\] must be a kernel with its kernel_name"),
        ("pool.json", "kernels.1.tile_m", NAN, r"kernels\[1\].tile_m must be a text, true, false or a whole number"),
        ("pool.json", "kernels.1.tile_m", -64, r"kernels\[1\].tile_m must be .* of at least 0, got -64"),
        ("pool.json", "default", "another", "default must be the first kernel, .*, got 'another'"),
        ("selftest.json", "files", {"pool.json": 1}, "files.pool.json must be a SHA-256"),
        (
            "selftest.json",
            "problems.0.scores.0",
            True,
            r"problems\[0\].scores must be a list of finite numbers, got Tr",
        ),
        ("selftest.json", "problems.0.tflops.0", NAN, r"problems\[0\].tflops\[0\] must be a positive finite number"),
        ("selftest.json", "problems.0.problem.N", 8.0, r"problems\[0\].problem.N must be a whole number or a text"),
        ("selftest.json", "problems.0.ranking.0", 3, r"problems\[0\].ranking\[0\] must be a text, got 3"),
        ("estimate.json.gz", "centre.0", "0.5", "centre must be a list of finite numbers, got '0.5'"),
        ("estimate.json.gz", "factors.0.0", True, "factors must be a list of lists of finite numbers, got True"),
        ("estimate.json.gz", "programs.0", 1.5, r"programs\[0\] must be a whole number of at least 0, got 1.5"),
        ("estimate.json.gz", "kernels", "7", "kernels must be a whole number of at least 1, got '7'"),
        ("estimate.json.gz", "weights.0.0", -1, r"weights\[0\]\[0\] must be a whole number of at least 0, got -1"),
        ("estimate.json.gz", "weights.0.2.0", NAN, r"weights\[0\]\[2\] must be a list of finite numbers, got nan"),
        ("estimate.json.gz", "weights.0", [1, 2], r"weights\[0\] must be a list of \[kernel, program, weights\]"),
        ("trust.json.gz", "intercept", "0", "intercept must be a finite number, got '0'"),
        ("trust.json.gz", "farthest", INFINITE, "farthest must be a finite number of at least 0, got inf"),
        ("trust.json.gz", "counts.0", 4.0, r"counts\[0\] must be a whole number of at least 0, got 4.0"),
        ("trust.json.gz", "keys.0.0", 8.5, "keys must be a list of lists of whole numbers, got 8.5"),
        ("trust.json.gz", "losses.0.0.0", True, "losses must be a list of lists of lists of whole numbers, got True"),
        ("trust.json.gz", "scale", None, "scale must be a list of finite numbers, got None"),
    ],
)
def test_a_field_of_another_file(folder: Path, name: str, path: str, new: Any, message: str) -> None:
    assert re.search(f"{name}: {message}", refused(folder, name, _change(read(folder, name), path, new)))


@pytest.mark.parametrize("new", ["64", 64.0, True])
def test_a_kernel_s_size_is_not_converted(folder: Path, new: Any) -> None:
    """Reading a pool converted "64", 64.0 and true to numbers, and its hash still agreed."""
    pool = read(folder, "pool.json")
    number = {True: 1}.get(new, 64) if new is True else 64
    i = next(i for i, k in enumerate(pool["kernels"]) if k["tile_m" if number == 64 else "split_k"] == number)
    name = "tile_m" if number == 64 else "split_k"
    reason = refused(folder, "pool.json", _change(pool, f"kernels.{i}.{name}", new))
    assert f"pool.json: kernels[{i}].{name} must be " in reason


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield a dotted path to each value, the first of each list only."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(key, int) or not (key.isdigit() or "." in key):
            yield f"{path}{key}"
            yield from _leaves(inner, f"{path}{key}.")


@pytest.mark.long
@pytest.mark.parametrize("name", JSON_FILES)
def test_no_field_holds_a_value_that_is_not_finite(written: Path, name: str, tmp_path: Path) -> None:
    """Whatever the field: NaN and infinity are refused, and the message names the file."""
    whole = read(written, name)
    folder = Path(shutil.copytree(written, tmp_path / "m"))
    for path in list(_leaves(whole))[:60]:
        for new in (NAN, INFINITE):
            reason = refused(folder, name, _change(whole, path, new))
            assert f"{name}: " in reason, path
            assert "Error(" not in reason, f"{path} fell through to a Python error: {reason}"


TEXTS, WHOLES = schema._list_of(schema._TEXT), schema._numbers(schema._WHOLES, "wholes", 1)
FLOATS = schema._numbers(schema._NUMBERS, "numbers")
CUBES = schema._numbers(schema._NUMBERS, "deep", 2)
INNER = schema._object({"k": schema._TEXT}, {"n": schema._whole(2)})
MOST = 2**63


def _nested(depth: int, key: str = "") -> Any:
    """Return lists in one another, or objects with this key."""
    value: Any = []
    for _ in range(depth - 1):
        value = {key: value} if key else [value]
    return value


@pytest.mark.parametrize(
    ("rule", "sound", "faults"),
    [
        (schema._TEXT, ["", "x"], {"must be a text, got None": None, "must be a text, got 1": 1}),
        (schema._OPTIONAL_TEXT, ["", None], {"must be a text or null, got 0": 0}),
        (schema._DIGEST, ["0f" * 32], {"must be a SHA-256 in 64 hexadecimal digits, got 'F'": "F"}),
        (
            schema._whole(2),
            [2, MOST - 1],
            {f"must be a whole number of at least 2, got {v!r}": v for v in (1, MOST, True, 2.0, "2")},
        ),
        (
            schema._FINITE,
            [-1e308, 0, MOST - 1],
            {f"must be a finite number, got {v!r}": v for v in (NAN, INFINITE, MOST, -MOST, True, None)},
        ),
        (schema._POSITIVE, [5e-324], {f"must be a positive finite number, got {v!r}": v for v in (0, -0.1, INFINITE)}),
        (schema._NOT_NEGATIVE, [0], {"must be a finite number of at least 0, got -1": -1}),
        (schema._SHARE, [0, 1, 0.5], {f"must be a number from 0 to 1, got {v!r}": v for v in (-0.1, 1.1)}),
        (schema._PART, [0, 0.9], {f"must be a number of at least 0 and below 1, got {v!r}": v for v in (-0.1, 1)}),
        (schema._AT_MOST_1, [1, -9], {"must be a finite number of at most 1, got 1.1": 1.1}),
        (TEXTS, [[], ["a"]], {"must be a list, got 'a'": "a", "[1] must be a text, got 1": ["a", 1]}),
        (schema._list_of(schema._TEXT, 2), [["a", "b"]], {"must be a list of at least 2 entries, got ['a']": ["a"]}),
        (
            schema._map_of(schema._TEXT),
            [{}, {"k": "v"}],
            {"must be an object, got []": [], ".k must be a text, got 1": {"k": 1}},
        ),
        (
            INNER,
            [{"k": ""}, {"k": "", "n": 2, "later": [1.5, {"x": None}]}],
            {
                "must be an object, got 3": 3,
                ".k is missing": {"n": 2},
                ".n must be a whole number of at least 2, got 1": {"k": "", "n": 1},
                ".later[1].x must be a finite number, got inf": {"k": "", "later": [0, {"x": INFINITE}]},
                f".{'y' * 60}... must be a finite number, got nan": {"k": "", "y" * 61: NAN},
                f".{'y' * 60} must be a finite number, got nan": {"k": "", "y" * 60: NAN},
            },
        ),
        (
            FLOATS,
            [[], [1, 0.5], [1e308, 1e308], [-1e308, -1e308, MOST - 1]],
            {"must be numbers, got 1.5": 1.5}
            | {f"must be numbers, got {v!r}": [0.5, v] for v in ("a", True, NAN, INFINITE, MOST, -MOST, [1])},
        ),
        (
            WHOLES,
            [[], [[]], [[1], [2, 3]]],
            {"must be wholes, got 0.5": [[1], [0.5]]}
            | {f"must be wholes, got {v}": v for v in ([1], [[1], 2])},
        ),
        (CUBES, [[[[1.5]], [[]]]], {"must be deep, got [[1]]": [[1]], "must be deep, got nan": [[[NAN]]]}),
        (
            schema._plain,
            [_nested(21), _nested(21, "k"), {"a": [None, "x", 1]}],
            {
                f"{21 * '[0]'} must be nested at most 20 deep, got 'more'": _nested(22),
                f"{21 * '.k'} must be nested at most 20 deep, got 'more'": _nested(22, "k"),
            },
        ),
        (
            schema._weights,
            [[], [[0, 0, [0.5]], [1, 2, []]]],
            {
                "must be a list of [kernel, program, weights], got {}": {},
                "[1] must be a list of [kernel, program, weights], got [0, 0]": [[0, 0, []], [0, 0]],
                "[0][0] must be a whole number of at least 0, got -1": [[-1, 0, []]],
                "[1][1] must be a whole number of at least 0, got 0.5": [[0, 0, []], [0, 0.5, []]],
                "[0][2] must be a list of finite numbers, got nan": [[0, 0, [NAN]]],
            },
        ),
        (schema._kernel, [{"kernel_name": "n", "tile_m": 0}], {"must be a kernel with its kernel_name, got {}": {}}),
    ],
)  # fmt: skip
def test_a_rule_at_its_edges(rule: schema.Rule, sound: list[Any], faults: dict[str, Any]) -> None:
    whole = schema._object({"at": rule})
    assert [schema.first_fault({"at": value}, whole) for value in sound] == [None] * len(sound)
    for words, value in faults.items():
        found = schema.first_fault({"at": value}, whole)
        assert found is not None, value
        assert f"at{'' if words[0] in '.[' else ' '}{words}" in found


def test_a_file_that_is_no_object_and_a_long_value() -> None:
    assert schema.first_fault([], INNER) == "the file must be an object, got []"  # type: ignore[arg-type]
    found = schema.first_fault({"k": [0] * 100}, INNER)
    assert found == f"k must be a text, got {str([0] * 100)[:60]}"
