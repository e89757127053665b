"""The recorded list of holdout problems is read as it was written, or not at all."""

from __future__ import annotations

import pytest

from tilewise.registry.promotion._holdout_problems import HoldoutProblems

RATES = {"d1": {"kernel_a": 100.5, "kernel_b": 7.25}, "d2": {"kernel_b": 3.0}}


def test_a_list_survives_its_text() -> None:
    written = HoldoutProblems({"d1": 2, "d2": 1}, RATES)
    read = HoldoutProblems.loads(written.dumps())
    assert read is not None
    assert (read.kernels, read.rates, read.digest) == (written.kernels, written.rates, written.digest)


def test_a_list_of_an_older_version_has_counts_only() -> None:
    read = HoldoutProblems.loads('{"d1": 2, "d2": 1}')
    assert read is not None
    assert (read.kernels, read.rates) == ({"d1": 2, "d2": 1}, {})


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "[" * 3000, '{"d1": "many"}', '{"d1": Infinity}', '{"\\ud800": 1}',
        '{"names": ["a"], "rates": {"d1": [[Infinity, 1.0]]}}',
        '{"names": ["a"], "rates": {"d1": [[1, 1.0]]}}',
        '{"names": ["a"], "rates": {"d1": [[0, -1.0]]}}',
        '{"names": ["a"], "rates": {"d1": [[0, NaN]]}}',
        '{"names": ["\\ud800"], "rates": {"d1": [[0, 1.0]]}}',
    ],
)  # fmt: skip
def test_a_damaged_list_is_refused(text: str) -> None:
    assert HoldoutProblems.loads(text) is None
