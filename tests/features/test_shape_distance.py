"""Log2 shape distances: 1 is a factor of two in one dimension."""

from __future__ import annotations

import numpy as np
import pytest

from tilewise.features import nearest_shape_distances


@pytest.mark.parametrize(
    ("key", "distance"),
    [
        ((64, 64, 1), 0),
        ((128, 64, 1), 1),
        ((64, 16, 1), 2),
        ((128, 128, 1), 2**0.5),
        ((64, 64, 0), 1),  # no padding counts as half of it
        ((1000, 64, 1), np.log2(1024 / 1000)),  # the other known one is nearer
    ],
)
def test_a_distance_of_one_is_a_factor_of_two_in_one_dimension(key: tuple[int, ...], distance: float) -> None:
    known = [(64, 64, 1), (1024, 64, 1)]
    assert nearest_shape_distances([key], known) == pytest.approx([distance])
