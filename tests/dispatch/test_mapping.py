"""The key of a problem's dict separates valid problems from invalid ones, and different problems from each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewise.core import compiled_core
from tilewise.dispatch._mapping import KeyFunction, fastest_mapping_key, mapping_key

PROBLEM = {"M": 16, "N": 1536, "K": 7168, "layout": "rcr"}


@pytest.fixture(params=["numpy", "c"])
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KeyFunction:
    """Return Python's key function, or the compiled core's if that was built."""
    if request.param == "c" and compiled_core() is None:
        pytest.skip("the compiled core was not built")
    monkeypatch.setenv("TILEWISE_CORE", request.param)
    return fastest_mapping_key()


@pytest.mark.parametrize("mapping", [PROBLEM, {}, {"M": True}, {"M": 10**30, 7: None}])
def test_both_functions_give_the_same_key(keys: KeyFunction, mapping: dict[Any, Any]) -> None:
    key = keys(mapping)
    assert key == mapping_key(mapping)
    assert hash(key) == hash(mapping_key(mapping))


@pytest.mark.parametrize(
    "other", [{"M": 16.0}, {"M": np.int64(16)}, {"M": 17}, {"layout": "rrr"}, {"split": 1}], ids=str
)  # fmt: skip
def test_another_value_type_or_name_gives_another_key(keys: KeyFunction, other: dict[str, Any]) -> None:
    assert keys(PROBLEM | other) != keys(PROBLEM)


def test_true_is_not_one(keys: KeyFunction) -> None:
    assert keys({"M": True}) != keys({"M": 1})


def test_unhashable_values_give_an_unhashable_key(keys: KeyFunction) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(keys({"M": [16]}))
