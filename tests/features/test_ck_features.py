"""Features of CK Tile's kernels."""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewise.features import _ck_features as ck_features
from tilewise.kernels.ck import STRATEGIES


def test_strategies_have_their_place_and_other_texts_a_number_of_their_own() -> None:
    texts = [*STRATEGIES, "", "Butterfly", "tree"]
    inputs: Any = SimpleNamespace(column=lambda name, default: texts if name == "streamk_reduction_strategy" else [])
    (feature,) = (f for f in ck_features.STREAMK_FEATURES if f.name == "streamk_reduction")
    other = 4 + zlib.crc32(b"Butterfly") % 2**20
    assert np.array_equal(feature.compute(inputs), [1.0, 2.0, 3.0, 0.0, other, 3.0])
