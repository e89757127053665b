"""Problem sets: each file equals its generator's output, and every kind lies on both sides of the split."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import conv_problems, gemm_problems
from tilewise.collect import Item
from tilewise.collect.problems import DEFAULT_SETS, SETS, dump_problem_set, load_problem_set, problem_labels
from tilewise.collect.problems import _conv_sets as conv_1
from tilewise.collect.problems import _gemm_sets as gemm
from tilewise.collect.problems._edges import EDGE_SIZES, edge_convs, edge_gemms
from tilewise.collect.problems._kinds import origin_class
from tilewise.collect.problems._llm import projections
from tilewise.collect.problems._networks import LATER_NETWORKS, NETWORKS, conv
from tilewise.collect.problems._problem_files import load_problem_file, parse_problem_set
from tilewise.collect.problems._video_networks import VIDEO_NETWORKS, conv3d
from tilewise.data import holdout_mask
from tilewise.errors import ConfigError, DataError
from tilewise.ops import OPS, GemmProblem, GroupedConvProblem, definition_of

FRACTION = 0.18  # of conf/config.yaml
CONV_SETS = ("grouped_conv-1", "grouped_conv-2")
GEMM_SETS = ("gemm-1", "gemm-2")


@cache
def items_of(*names: str) -> tuple[Item, ...]:
    return load_problem_set(SETS[names[0]].op, names)


@cache
def held_out(*names: str) -> np.ndarray:
    keys = np.array([i.problem.group_key for i in items_of(*names)])
    return np.asarray(holdout_mask(SETS[names[0]].op, keys, FRACTION))


def shapes(*names: str) -> tuple[int, int]:
    """Return the number of distinct group keys of training and of validation."""
    keys = np.array([i.problem.group_key for i in items_of(*names)])
    held = held_out(*names)
    return len(np.unique(keys[~held], axis=0)), len(np.unique(keys[held], axis=0))


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_a_file_equals_the_output_of_its_generator(name: str) -> None:
    assert SETS[name].path.read_bytes().decode() == SETS[name].text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("grouped_conv-1", "2bb3fe90010780be88762352a66bdf349a0573c835c0ab004a28ace7d6590068"),
        ("grouped_conv-2", "b6700349813a07374d60e80d5fedb8d409eb6e2ecfc0224089de5300755ebd5b"),
        ("grouped_conv-3", "58d1e741d51bceb621ad3fc8f6df50c2adea070c59f9e8b1c5e72a315c87b573"),
        ("grouped_conv-4", "63f7a5bd390804921d0983c54ed123d089dd7e63e876d1d3982e1d73d0b07c38"),
        ("grouped_conv-5", "3d5e22707a86679d1a19b9457525a6a14556eca4822e2e8a536c29f8bebc666d"),
        ("grouped_conv-6", "58131f06e0ffbcc700efb2eecd6297c083df38aba81ee912c5700c7a1bee1850"),
        ("gemm-1", "391069e9fff94701de9027a4852d1d2222040ed323c5b585a33038c71a8889ae"),
        ("gemm-2", "d696ce49437bbbe81d32cf1bf21f0200bc4466c73ebc3f84a88b4fd13cd7e414"),
        ("gemm-3", "55fc03319043745c91813597b424f950c96672ac5a3286db3df0b59a7eaf1245"),
        ("gemm-4", "65ba08b4a1a72bcc5d67f011fc231fabaad17856f9b5c22126e45df94b35b73e"),
        ("gemm-5", "8e51d5082df8e7a6fc51934460b90dbc8941671188dc27bce68c62364763989d"),
        ("gemm-6", "eac687148b0be5eedbcebaea8b2b9bba8c3280464caa3dca15a19afd36fd5abf"),
    ],
)
def test_a_set_that_was_measured_does_not_change(name: str, digest: str) -> None:
    """Do not change a digest: another choice of problems is another set, with the next number."""
    lines = [f"{i.origin} {i.problem.stated()}" for i in items_of(name)]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == digest


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_each_problem_occurs_once_and_can_be_measured(name: str) -> None:
    problems = [i.problem for i in items_of(name)]
    assert len(set(problems)) == len(problems)
    for p in problems:
        assert gemm.measurable(p) if isinstance(p, GemmProblem) else conv_1.measurable(p)


def test_no_file_lies_beside_those_of_the_sets() -> None:
    assert {p.name for p in SETS["gemm-1"].path.parent.iterdir()} == {s.path.name for s in SETS.values()}


def test_every_op_has_a_default_set() -> None:
    assert set(DEFAULT_SETS) == {op for op in OPS if definition_of(op) is None}
    assert load_problem_set("gemm") == items_of("gemm-1")


def test_several_sets_follow_one_another() -> None:
    assert items_of(*CONV_SETS) == items_of(CONV_SETS[0]) + items_of(CONV_SETS[1])
    assert len({i.problem for i in items_of(*CONV_SETS)}) == len(items_of(*CONV_SETS))


@pytest.mark.parametrize(("op", "name"), [("gemm", "grouped_conv-1"), ("grouped_conv", "gemm-1")])
def test_an_unknown_set_is_refused(op: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' is not a problem set of {op}; known are {op}-1.* \.csv"):
        load_problem_set(op, name)


def test_a_file_of_the_user_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('# what I run\r\n\r\norigin, N,M,K\r\nmine,8,16,32\r\n\r\n"a, b",1,2,3\r\n', newline="")
    assert load_problem_set("gemm", str(path)) == (
        Item(GemmProblem(16, 8, 32), "mine"),
        Item(GemmProblem(2, 1, 3), "a, b"),
    )


@given(st.lists(gemm_problems(), unique=True, min_size=1, max_size=5))
def test_gemms_survive_their_text(problems: list[GemmProblem]) -> None:
    items = tuple(Item(p, f"it's, no. {i}") for i, p in enumerate(problems))
    assert parse_problem_set(dump_problem_set("gemm", items, "about\n\nthis"), "gemm", "text") == items


@given(st.lists(conv_problems(), unique=True, min_size=1, max_size=5))
def test_convolutions_survive_their_text(problems: list[GroupedConvProblem]) -> None:
    items = tuple(Item(p, 'a "quoted" origin') for p in problems)
    assert parse_problem_set(dump_problem_set("grouped_conv", items, "about"), "grouped_conv", "text") == items


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"mine\.csv: no problems"),
        ("# only a comment\norigin,M,N,K\n", r"mine\.csv: no problems"),
        ("origin,M,N,C\nx,1,2,3\n", r"mine\.csv, line 1: 'C' is not a column of gemm problems; known are origin, M, N"),
        ("origin,M,N,M,K\nx,1,2,3,4\n", r"mine\.csv, line 1: column M occurs 2 times, it must occur once"),
        ("# why\norigin,M,N\nx,1,2\n", r"mine\.csv, line 2: gemm problems need the column K"),
        ("M,N,K\n1,2,3\n", r"mine\.csv, line 1: gemm problems need the column origin"),
        ("origin,M,N,K\nx,1,2\n", r"mine\.csv, line 2: fewer values"),
        ("origin,M,N,K\nx,1,2,3,4\n", r"mine\.csv, line 2: more values"),
        ("origin,M,N,K\nx,1,2,3\ny,1,2,big\n", r"mine\.csv, line 3: K must be a whole number, got 'big'"),
        ("origin,M,N,K\nx,1,0,3\n", r"mine\.csv, line 2: N: must be at least 1, got 0"),
        ("origin,M,N,K,layout\nx,1,2,3,rcc\n", r"mine\.csv, line 2: layout: must be one of rcr"),
        ("origin,M,N,K\n ,1,2,3\n", r"mine\.csv, line 2: origin must not be empty"),
        (
            "origin,M,N,K\nx,1,2,3\n\ny,1,2,3\n",
            r"mine\.csv, line 4: line 2 has this problem already; remove one of them",
        ),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_problem_file(path, "gemm")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: cannot read"):
        load_problem_file(tmp_path / "none.csv", "gemm")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.csv: cannot read"):
        load_problem_file(tmp_path / "binary.csv", "gemm")


# --- their problems ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "training", "validation"),
    [(CONV_SETS, 1508, 300), (("gemm-1",), 350, 80), (GEMM_SETS, 700, 150), (("grouped_conv-1",), 1372, 300)],
)
def test_there_are_enough_shapes(names: tuple[str, ...], training: int, validation: int) -> None:
    of_training, of_validation = shapes(*names)
    assert of_training >= training
    assert of_validation >= validation


@pytest.mark.parametrize(
    "names", [("grouped_conv-1",), ("grouped_conv-2",), CONV_SETS, ("gemm-1",), ("gemm-2",), GEMM_SETS]
)
def test_validation_is_as_varied_as_training(names: tuple[str, ...]) -> None:
    """Each label's share in validation lies within 2.6 standard deviations of the holdout's, and none is missing."""
    held, of_item = held_out(*names), [problem_labels(i) for i in items_of(*names)]
    everywhere = Counter(label for found in of_item for label in found)
    validating = Counter(label for found, h in zip(of_item, held, strict=True) if h for label in found)
    for label, count in everywhere.items():
        if count >= 20:
            deviation = (count * FRACTION * (1 - FRACTION)) ** 0.5
            assert abs(validating[label] - count * FRACTION) < 2.6 * deviation, label
            assert validating[label] > 0, label


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
def test_a_run_cut_short_is_a_sample(name: str) -> None:
    """Every larger label has its share in the first quarter of the set."""
    of_item = [problem_labels(i) for i in items_of(name)]
    first = Counter(label for found in of_item[: len(of_item) // 4] for label in found)
    for label, count in Counter(label for found in of_item for label in found).items():
        if count >= 60:
            assert 0.1 < first[label] / count < 0.42, label


@pytest.mark.parametrize(
    ("many", "before"),
    [
        ("grouped_conv-3", CONV_SETS),
        ("grouped_conv-4", (*CONV_SETS, "grouped_conv-3")),
        ("gemm-3", GEMM_SETS),
        ("gemm-4", (*GEMM_SETS, "gemm-3")),
    ],
)
def test_the_later_sets_have_many_new_problems_to_learn_from(many: str, before: tuple[str, ...]) -> None:
    known = {i.problem.group_key for i in items_of(*before)}
    new = {key for i in items_of(many) if (key := i.problem.group_key) not in known}
    assert len(new) > 0.9 * len(known)
    common = Counter(label for i in items_of(before[1]) for label in problem_labels(i) if label != "origin: edge")
    assert {label for i in items_of(many) for label in problem_labels(i)} >= {
        label for label, n in common.items() if n > 50
    }


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SETS if not name.endswith("-1")])
def test_a_set_shares_no_problem_with_earlier_sets(name: str) -> None:
    op, number = name.split("-")
    before = items_of(*(f"{op}-{n}" for n in range(1, int(number))))
    assert not {i.problem for i in items_of(name)} & {i.problem for i in before}


def test_the_convolutions_are_of_every_kind() -> None:
    found = Counter(label for i in items_of(*CONV_SETS) for label in problem_labels(i))
    assert found["kind: 3D"] >= 60
    assert found["kind: grouped, width no multiple of 8"] >= 150
    assert found["kind: depthwise"] >= 400
    problems = [i.problem for i in items_of(*CONV_SETS) if isinstance(i.problem, GroupedConvProblem)]
    assert {1, 2, 4, 8, 16, 32, 64, 128} <= {p.N for p in problems}
    assert {1, 2, 4, 8, 16, 32} <= {p.G for p in problems}
    assert {3, 5, 7, 9} <= {p.Y for p in problems if p.G == p.C}
    assert any(p.G == p.C > 1 and p.K > p.C for p in problems)
    assert any(p.ndim == 3 and p.G > 1 for p in problems)
    assert any(p.K >= 8 * p.C for p in problems)
    assert any(p.C >= 8 * p.K for p in problems)
    assert set(NETWORKS) <= {i.origin for i in items_of("grouped_conv-1")}
    later = {i.origin.partition("@")[0] for i in items_of("grouped_conv-2")}
    assert set(LATER_NETWORKS) | set(VIDEO_NETWORKS) <= later


def test_the_second_set_of_convolutions_costs_less_than_the_first() -> None:
    first, second = (np.mean([i.problem.flops for i in items_of(name)]) for name in CONV_SETS)
    assert second < first


def test_the_matrix_products_are_of_every_kind() -> None:
    problems = [i.problem for i in items_of("gemm-1") if isinstance(i.problem, GemmProblem)]
    of_models = {i.problem.group_key for i in items_of("gemm-1") if origin_class(i.origin) == "model"}
    assert len(of_models) >= 200
    models = {i.origin.partition("-")[0].rstrip("0123456789.") for i in items_of("gemm-1")}
    assert {"deepseek", "llama", "qwen", "mixtral"} <= models
    assert {1, 33, 100, 1000, 3000, 20480} <= {p.M for p in problems}
    assert {p.M for p in problems if p.M == p.N == p.K} >= {128, 8192}
    layouts = Counter(p.layout for p in problems)
    assert min(layouts.values()) >= 15
    assert layouts["rcr"] > len(problems) * 0.7
    assert len({p.group_key for p in problems}) < len(problems)  # some shapes in two layouts, which share a fold


def test_the_second_set_of_matrix_products_has_kinds_that_the_first_lacks() -> None:
    first, second = ([i.problem for i in items_of(name) if isinstance(i.problem, GemmProblem)] for name in GEMM_SETS)
    assert not {p.group_key for p in first} & {p.group_key for p in second}
    layouts = Counter(p.layout for p in second)
    assert layouts["rcr"] < len(second) / 2
    assert min(layouts.values()) >= 40
    assert sum(p.K % 32 > 0 for p in second) >= 45
    assert sum(16 <= min(p.M, p.N) <= 64 for p in second) >= 60


def test_edges_have_the_sizes_they_are_named_for() -> None:
    assert {1, 2, 3, 5, 7, 13, 17, 31, 127, 257, 509, 1021} <= set(EDGE_SIZES)  # 1, primes
    assert {33, 65, 129, 193, 257, 513, 1025} <= set(EDGE_SIZES)  # one past a tile
    gemms, convs = list(edge_gemms()), list(edge_convs())
    for axis in ("M", "N", "K"):
        assert {getattr(p, axis) for p in gemms} >= set(EDGE_SIZES)
    assert len(set(gemms)) == len(gemms)
    assert len(set(convs)) == len(convs)
    assert max(p.flops for p in (*gemms, *convs)) < 5e10
    assert any(p.output_sizes == (1, 1, 1) and p.Y > 1 for p in convs)
    assert any(p.stride_h > p.Y for p in convs)
    assert {1, 2, 3, 5, 7, 13, 17} <= {p.C for p in convs}


# --- their sources ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_more_gradients_than_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_DRAWS", 20)
    assert len(list(gemm.llm_backward_items(30, "few-{}"))) == 60
    with pytest.raises(ValueError, match=r"5000 gradients \(dgrad\) were asked for, and \d+ found"):
        list(gemm.llm_backward_items(5000, "many-{}"))


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        ("resnet50", conv(56, 64, 64, 3)),
        ("resnet50", conv(56, 128, 128, 3, stride=2)),
        ("resnet50", conv(7, 512, 2048)),
        ("resnext50", conv(56, 128, 128, 3, groups=32)),
        ("mobilenet_v2", conv(112, 96, 96, 3, stride=2, groups=96)),
        ("efficientnet_b0", conv(56, 144, 144, 5, stride=2, groups=144)),
        ("convnext_tiny", conv(14, 384, 384, 7, groups=384)),
        ("vgg16", conv(28, 512, 512, 3)),
        ("inception_v3", conv(17, 128, 192, (7, 1))),
        ("stable_diffusion_unet", conv(16, 2560, 1280, 3)),
        ("regnet_x_600mf", conv(28, 96, 96, 3, groups=4)),
        ("shufflenet_v1_g3", conv(14, 480, 120, groups=3)),
        ("c3d", conv3d(4, 14, 512, 512, (3, 3))),
        ("r2plus1d_18", conv3d(16, 56, 144, 64, (3, 1))),
        ("x3d_m", conv3d(16, 28, 108, 108, (3, 3), groups=108)),
        ("resnext3d_101", conv3d(8, 28, 128, 128, (3, 3), groups=32)),
    ],
)
def test_networks_have_their_known_layers(network: str, layer: GroupedConvProblem) -> None:
    assert layer in list((NETWORKS | LATER_NETWORKS | VIDEO_NETWORKS)[network]())


def test_resnet50_costs_what_its_paper_says() -> None:
    """The distinct layers, each once: between the stem alone and the 4.1 G multiply-adds of the whole network."""
    assert 1.5e9 < sum(p.flops for p in NETWORKS["resnet50"]()) / 2 < 4.1e9


@pytest.mark.parametrize(
    ("origin", "shape"),
    [
        ("deepseek-v3/q_a", (1536, 7168)),
        ("deepseek-v3/q_b", (24576, 1536)),
        ("deepseek-v3/kv_a", (576, 7168)),
        ("deepseek-v3/kv_b", (32768, 512)),
        ("deepseek-v3/o", (7168, 16384)),
        ("deepseek-v3/expert_gate_up", (4096, 7168)),
        ("deepseek-v3/expert_down", (7168, 2048)),
        ("llama3-8b/qkv", (6144, 4096)),
        ("llama3-70b/gate_up", (57344, 8192)),
        ("llama3-405b-tp8/down", (16384, 6656)),
        ("qwen2.5-7b/qkv", (4608, 3584)),
        ("qwen3-235b-a22b/o", (4096, 8192)),
        ("mixtral-8x22b/down", (6144, 16384)),
    ],
)
def test_models_have_their_known_projections(origin: str, shape: tuple[int, int]) -> None:
    assert {p.origin: (p.N, p.K) for p in projections()}[origin] == shape


def test_the_projections_of_llama3_8b_are_its_parameters() -> None:
    """32 layers, the vocabulary and the embedding of equal size have 8.03 billion parameters, norms aside."""
    sizes = {p.name: p.N * p.K for p in projections() if p.model == "llama3-8b"}
    vocabulary = sizes.pop("vocabulary")
    assert 32 * sum(sizes.values()) + 2 * vocabulary == pytest.approx(8.03e9, rel=1e-3)
