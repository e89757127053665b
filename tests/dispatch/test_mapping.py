"""The key of a problem's dict separates whatever is a problem from what is none, and one problem from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewise.core import compiled_core
from tilewise.dispatch.mapping import KeyOf, fastest_key_of, key_of

PROBLEM = {"M": 16, "N": 1536, "K": 7168, "layout": "rcr"}


@pytest.fixture(params=["numpy", "c"])
def keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KeyOf:
    """Python's, and the compiled core's where it was built."""
    if request.param == "c" and compiled_core() is None:
        pytest.skip("the compiled core was not built")
    monkeypatch.setenv("TILEWISE_CORE", request.param)
    return fastest_key_of()


@pytest.mark.parametrize("mapping", [PROBLEM, {}, {"M": True}, {"M": 10**30, 7: None}])
def test_both_ways_give_the_same_key(keys: KeyOf, mapping: dict[Any, Any]) -> None:
    key = keys(mapping)
    assert key == key_of(mapping)
    assert hash(key) == hash(key_of(mapping))


@pytest.mark.parametrize(
    "other", [{"M": 16.0}, {"M": np.int64(16)}, {"M": 17}, {"layout": "rrr"}, {"split": 1}], ids=str
)  # fmt: skip
def test_another_value_type_or_name_gives_another_key(keys: KeyOf, other: dict[str, Any]) -> None:
    assert keys(PROBLEM | other) != keys(PROBLEM)


def test_true_is_not_one(keys: KeyOf) -> None:
    assert keys({"M": True}) != keys({"M": 1})


def test_what_cannot_be_hashed_gives_a_key_that_cannot_either(keys: KeyOf) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(keys({"M": [16]}))
