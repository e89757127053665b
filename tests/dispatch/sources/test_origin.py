"""All processes agree on the hosts that a canary serves, and a larger share keeps those of a smaller one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.dispatch import Switches
from tilewise.dispatch.sources import Origin
from tilewise.dispatch.sources._origin import in_share

TARGET = "gemm_universal_bf16_sm90"


@pytest.mark.long
@given(st.text(max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_the_hosts_of_a_smaller_one(key: str, a: float, b: float) -> None:
    assert in_share(key, min(a, b)) <= in_share(key, max(a, b))
    assert not in_share(key, 0.0)
    assert in_share(key, 1.0)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_share_is_that_of_the_hosts(share: float) -> None:
    count = sum(in_share(f"{TARGET}/host-{i}", share) for i in range(20_000))
    assert count / 20_000 == pytest.approx(share, rel=0.15)


def test_the_key_decides_and_not_the_host() -> None:
    chosen = {
        (name, Origin.of(TARGET, "production", None, Switches(canary=0.5, canary_key=name)).is_canary)
        for name in map(str, range(20))
        for _ in range(2)
    }
    assert len(chosen) == 20
    assert len({is_canary for _, is_canary in chosen}) == 2


def test_other_aliases_have_no_canary() -> None:
    assert Origin.of(TARGET, "candidate", None, Switches(canary=1.0)).aliases == ("candidate",)
    assert Origin.of(TARGET, "production", None, Switches(canary=1.0)).aliases == ("canary", "production")
