"""The problems of a holdout: recorded lists are read as they were written or not at all, and a later one lacks none."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from registry.promotion.ways import KEY, TARGET
from small_model import table
from synthetic import CONV
from tilewise.data import TargetTable
from tilewise.errors import ConfigError, DataError
from tilewise.registry import Version
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry._versions import create_version
from tilewise.registry.promotion import Override
from tilewise.registry.promotion import _holdout_problems as holdout_problems
from tilewise.registry.promotion._holdout_problems import (
    COUNT_TAG,
    DIGEST_TAG,
    RATES_TAG,
    HoldoutProblems,
    RecordedHoldout,
    _record,
    recorded_holdout,
    require_problems,
    waived_holdout,
)
from tilewise.registry.promotion._logged_files import HOLDOUT_FILE, text_digest

HOLDOUT = TargetTable.of(table(), TARGET).holdout(0.18)
FIRST = "1,256,32,1,112,112,3,3,1,1,1,1,1,1,1,1,1,0,1"  # the key of the first problem
VERSION = Version(CONV, 1, None, "", {}, 0)
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


class TestOfATable:
    """A record is compared with tables of later versions, so the digest of a problem stays as it is."""

    def test_a_problem_is_known_by_op_sizes_and_layout(self) -> None:
        of_all = HoldoutProblems.of(HOLDOUT)
        first = next(iter(of_all.kernels))
        assert first == hashlib.sha256(f"grouped_conv:{FIRST}:".encode()).hexdigest()[:16] == "71d887fdff921196"
        other = TargetTable.of(table().assign(layout="NGCHW"), TARGET).holdout(0.18)
        of_other = hashlib.sha256(f"grouped_conv:{FIRST}:NGCHW".encode()).hexdigest()[:16]
        assert of_other in HoldoutProblems.of(other).kernels
        assert of_all.digest == hashlib.sha256("\n".join(sorted(of_all.kernels)).encode()).hexdigest()

    def test_it_has_the_rates_of_its_valid_kernels(self) -> None:
        of_all = HoldoutProblems.of(HOLDOUT)
        valid = HOLDOUT.rows[HOLDOUT.rows["is_valid"]]
        assert len(of_all.kernels) == len(of_all.rates) == len(of_all.problems) == 8
        for digest, problem in of_all.problems.items():
            rows = valid[(valid[KEY].astype(str) == [str(x) for x in problem.to_dict().values()]).all(axis=1)]
            assert of_all.rates[digest] == dict(zip(rows["kernel_name"], rows["tflops"], strict=True))
            assert of_all.kernels[digest] == len(rows)

    def test_the_order_of_rows_changes_nothing(self) -> None:
        shuffled = TargetTable.of(table().sample(frac=1, random_state=1), TARGET).holdout(0.18)
        assert list(HoldoutProblems.of(shuffled).kernels.items()) == list(HoldoutProblems.of(HOLDOUT).kernels.items())

    @pytest.mark.parametrize(("fastest", "counts"), [(104.9, 0), (105.0, 8)])
    def test_problems_without_spread_are_left_out(self, fastest: float, counts: int) -> None:
        valid = table()[table()["is_valid"]]
        frame = valid.assign(tflops=np.where(valid.duplicated(KEY), 100.0, fastest))
        assert len(HoldoutProblems.of(TargetTable.of(frame, TARGET).holdout(0.18)).kernels) == counts

    @pytest.mark.parametrize("rate", [0.0, -1.0, float("inf")])
    def test_rates_that_are_none_are_counted(self, rate: float) -> None:
        frame = table().assign(tflops=table()["tflops"].where(table()["C"] != 256, rate))
        message = rf"^tflops of a valid measurement must be a positive, finite number, got {rate} in \d+ rows of the "
        with pytest.raises(DataError, match=message + "holdout; read them with read_measurements, which checks them$"):
            HoldoutProblems.of(TargetTable.of(frame, TARGET).holdout(0.18))


def test_too_few_problems_are_refused_with_the_remedy() -> None:
    require_problems(HoldoutProblems(dict.fromkeys("abc", 2)), 3)
    with pytest.raises(DataError) as raised:
        require_problems(HoldoutProblems(dict.fromkeys("ab", 2)), 3)
    assert str(raised.value) == (
        "the gate needs at least 3 holdout problems whose kernels differ in speed by 5% or more, got 2; give data= "
        "with more measurements and the usual holdout.fraction (or a lower gate.min_problems with gate.override.reason)"
    )


class TestLacking:
    BEFORE = HoldoutProblems({"a": 10, "b": 10})

    @pytest.mark.parametrize(("now", "said"), [
        ({"a": 10, "b": 10}, None),
        ({"b": 9, "a": 9, "c": 1}, None),
        ({"a": 9, "b": 9}, None),
        ({"a": 9, "b": 8}, "their measured kernels fell from 20 to 17"),
        ({"a": 9, "b": 8, "c": 99}, "their measured kernels fell from 20 to 17"),
        ({"a": 99}, "1 of these 2 are missing"),
        ({}, "2 of these 2 are missing"),
    ])  # fmt: skip
    def test_of_a_recorded_list(self, now: dict[str, int], said: str | None) -> None:
        record = RecordedHoldout(VERSION, 2, self.BEFORE.digest, self.BEFORE)
        assert record.lacking(HoldoutProblems(now)) == said

    @pytest.mark.parametrize(("now", "said"), [
        ({"a": 1, "b": 1}, None),
        ({"a": 10, "b": 10, "c": 10}, "its 3 problems differ, and the list of production's is lost or damaged"),
    ])  # fmt: skip
    def test_of_a_list_that_is_lost(self, now: dict[str, int], said: str | None) -> None:
        record = RecordedHoldout(VERSION, 2, self.BEFORE.digest, None)
        assert record.lacking(HoldoutProblems(now)) == said

    @pytest.mark.parametrize(("n", "said"), [(1, "1 of these 2 are missing"), (2, None), (3, None)])
    def test_of_a_version_that_recorded_a_number_only(self, n: int, said: str | None) -> None:
        record = RecordedHoldout(VERSION, 2, None, None)
        assert record.lacking(HoldoutProblems(dict.fromkeys("xyz"[:n], 1))) == said


LIST = HoldoutProblems({"d1": 2, "d2": 1}, RATES)
TEXT, DIGEST = LIST.dumps(), LIST.digest


@pytest.mark.parametrize(("listed", "tags", "expected"), [
    (True, {}, (2, DIGEST, True)),
    (True, {DIGEST_TAG: DIGEST, COUNT_TAG: "2", RATES_TAG: text_digest(TEXT)}, (2, DIGEST, True)),
    (True, {DIGEST_TAG: "0", COUNT_TAG: "9"}, (2, "", False)),
    (True, {DIGEST_TAG: DIGEST, COUNT_TAG: "9", RATES_TAG: "0"}, (2, "", False)),
    (False, {DIGEST_TAG: DIGEST, COUNT_TAG: "3"}, (3, DIGEST, False)),
    (False, {DIGEST_TAG: DIGEST, COUNT_TAG: "3", RATES_TAG: "0"}, (3, "", False)),
    (False, {DIGEST_TAG: DIGEST, COUNT_TAG: "many"}, (0, DIGEST, False)),
    (False, {DIGEST_TAG: DIGEST}, (0, DIGEST, False)),
    (False, {COUNT_TAG: "3"}, None),
    (True, {RATES_TAG: "0"}, None),
])  # fmt: skip
def test_a_list_counts_only_as_its_tags_state(
    monkeypatch: pytest.MonkeyPatch, listed: bool, tags: dict[str, str], expected: tuple[int, str, bool] | None
) -> None:
    version = Version(CONV, 1, "run", "", tags, 0)
    file = (version, HOLDOUT_FILE)
    monkeypatch.setattr(holdout_problems, "load_logged", lambda *asked: TEXT if listed and asked == file else "")
    found = _record(version)
    if expected is None:
        assert found is None
    else:
        count, digest, known = expected
        assert found == RecordedHoldout(version, count, digest, LIST if known else None)


class TestRegistered:
    """Versions without a run: the tags alone state how many problems there were, and their digest."""

    NOW = HoldoutProblems({"a": 10, "b": 10})

    @pytest.fixture
    def production(self, registry: str) -> Version:
        """Return the second of two versions, which was judged on three problems; the first was on one."""
        for problems in ("x", "xyz"):
            judged = HoldoutProblems(dict.fromkeys(problems, 2))
            tags = {DIGEST_TAG: judged.digest, COUNT_TAG: str(len(problems))}
            version = create_version(CONV, f"tilewise:/{CONV}", None, None, tags, "")
            head = settle_history(CONV)
            commit_change(head, version.number, "promoted", "", previous=head.production)
        return version

    def test_one_that_falls_short_is_refused_with_the_remedy(self, production: Version) -> None:
        rule = "the holdout must contain the 3 problems that production was judged on"
        lacks = "its 2 problems differ, and the list of production's is lost or damaged"
        with pytest.raises(ConfigError) as raised:
            waived_holdout(self.NOW, recorded_holdout(CONV, production), Override("why"))
        assert str(raised.value) == (
            f"{rule}, but {lacks}; judge on all measurements and with the same holdout.fraction; to insist, set "
            "gate.override.holdout=true and gate.override.reason='...', which everybody will see"
        )
        insisted = Override("why", holdout=True)
        assert waived_holdout(self.NOW, recorded_holdout(CONV, production), insisted) == [f"{rule}, but {lacks}"]
        assert (
            waived_holdout(HoldoutProblems(dict.fromkeys("xyz", 9)), recorded_holdout(CONV, production), Override())
            == []
        )

    def test_without_a_production_the_newest_one_binds(self, production: Version) -> None:
        record = recorded_holdout(CONV, None)
        assert record is not None
        assert (record.version.number, record.count, record.problems) == (2, 3, None)
        assert recorded_holdout("gemm_universal_bf16_sm90", None) is None
        assert waived_holdout(self.NOW, None, Override()) == []

    def test_an_older_production_binds_by_its_own(self, production: Version) -> None:
        older = Version(CONV, 1, None, "", {}, 0)
        record = recorded_holdout(CONV, older)
        assert record is not None
        assert (record.version.number, record.count) == (1, 1)
