"""Command lines of MIOpenDriver are problems, each once; any other line is refused with its number and reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import conv_problems, without_idle_depth
from tilewise.collect import Item
from tilewise.collect.problems import load_problem_set
from tilewise.collect.problems._miopen_driver import _DEPTHS, _SIZES, parse_driver_lines
from tilewise.errors import DataError
from tilewise.ops import GroupedConvProblem

LINE = (
    "MIOpenDriver conv -n 32 -c 64 -H 56 -W 28 -k 128 -y 3 -x 1 -p 1 -q 0 -u 2 -v 1 -l 1 -j 1 -m conv -g 2 -F 1 -t 1 "
    "--in_layout NHWC"
)
PROBLEM = GroupedConvProblem(32, 64, 128, 2, 56, 28, 3, 1, stride_h=2, pad_h=1)
# As newer versions of MIOpen log a 2D problem, depth included
LONG = (
    "./bin/MIOpenDriver convbfp16 --batchsize 4 --spatial_dim 2 --pad_h 0 --pad_w 0 --pad_d 0 --conv_stride_h 1 "
    "--conv_stride_w 1 --conv_stride_d 0 --dilation_h 1 --dilation_w 1 --dilation_d 0 --group_count 1 --mode conv "
    "--pad_mode default --trans_output_pad_h 0 --trans_output_pad_w 0 --trans_output_pad_d 0 --out_layout NCHW "
    "--in_layout NCHW --fil_layout NCHW --in_d 1 --in_h 14 --in_w 14 --fil_d 1 --fil_h 1 --fil_w 1 --in_channels 1344 "
    "--out_channels 192 --forw 1"
)


def problems(*lines: str) -> list[GroupedConvProblem]:
    items = parse_driver_lines("\n".join(lines), "net.log")
    assert {item.origin for item in items} == {"net"}
    return [item.problem for item in items if isinstance(item.problem, GroupedConvProblem)]


def test_each_problem_comes_once_in_order() -> None:
    backward = LINE.replace("conv -n", "convfp16 -n").replace("-F 1", "-F 2").replace("NHWC", "NCHW")
    logged = f"MIOpen(HIP): Command [LogCmdConvolution] ./bin/{backward}"
    assert problems("# my net", "", LONG, LINE, logged, LONG) == [
        GroupedConvProblem(4, 1344, 192, 1, 14, 14, 1, 1),
        PROBLEM,
    ]


def test_options_that_are_missing_have_the_drivers_default() -> None:
    assert problems("MIOpenDriver conv") == [GroupedConvProblem(100, 3, 32, 1, 32, 32, 3, 3)]
    (deep,) = problems("MIOpenDriver conv --spatial_dim 3 -n 1")
    assert deep == GroupedConvProblem(1, 3, 32, 1, 32, 32, 3, 3, Di=32, Z=3)


def test_the_last_of_two_options_counts() -> None:
    assert problems(f"{LINE} -n 8 --in_w 30 -W 28") == [GroupedConvProblem.from_dict(PROBLEM.to_dict() | {"N": 8})]


@given(problem=conv_problems(), spell=st.booleans(), verb=st.sampled_from(["conv", "convfp16", "convbfp16"]))
def test_a_problem_survives_its_command_line(problem: GroupedConvProblem, spell: bool, verb: str) -> None:
    problem = without_idle_depth(problem)
    sizes = _SIZES | _DEPTHS if problem.ndim == 3 else _SIZES
    options = [
        f"{f'--{word}' if spell else f'-{letter}'} {getattr(problem, name)}"
        for (letter, word), (name, _) in sizes.items()
    ]
    assert problems(f"MIOpenDriver {verb} -_ {problem.ndim} {' '.join(options)}") == [problem]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            LINE,
            "hello",
            "must be a command line such as MIOpenDriver conv .*, got 'hello'; take .* grep 'MIOpenDriver conv'",
        ),
        ("conv -n", "bnorm -n", "must be a command line such as MIOpenDriver conv"),
        ("conv -n", "convtranspose -n", "must be a command line such as MIOpenDriver conv"),
        ("-n 32", "-N 32", "'-N' is not an option of MIOpenDriver conv; each must be followed by its value"),
        ("-n 32", "-n", "'64' is not an option of MIOpenDriver conv"),
        (" NHWC", "", "--in_layout must be followed by its value"),
        (" NHWC", " 'NHWC", "the options cannot be split into words: No closing quotation"),
        ("-n 32", "-n many", r"-n \(--batchsize\) must be a whole number, got 'many'"),
        ("-n 32", "-n 1e3", r"-n \(--batchsize\) must be a whole number, got '1e3'"),
        ("-n 32", "-n 0", "N: must be at least 1, got 0"),
        ("-g 2", "-g 3", "C: must be divisible by G = 3, got 64"),
        ("-H 56", "-H -56", "Hi: must be at least 1, got -56"),
        ("-m conv", "-m trans", r"-m \(--mode\) must be conv, got 'trans'"),
        ("-m conv", "-z same", r"-z \(--pad_mode\) must be default or conv, got 'same'"),
        ("-m conv", "-Z 1", r"-Z \(--tensor_vect\) must be 0, got '1'"),
        ("-m conv", "--spatial_dim 1", r"-_ \(--spatial_dim\) must be 2 or 3, got '1'"),
    ],
)
def test_a_line_that_is_no_problem_is_refused(before: str, after: str, message: str) -> None:
    broken = LINE.replace(before, after, 1)
    assert broken != LINE
    with pytest.raises(DataError, match=rf"net\.log, line 3: {message}"):
        problems("# a comment", LINE, broken)


def test_a_file_without_problems_is_refused() -> None:
    with pytest.raises(DataError, match=r"net\.log: no problems; expected lines such as MIOpenDriver conv"):
        problems("# a comment", "")


@given(st.text(alphabet="-nckHWyxpquvljmgF_zZ 0123456789'\"\\!@#$^\n", max_size=80))
def test_any_options_are_problems_or_a_clear_error(text: str) -> None:
    message = ""
    try:
        assert problems(f"MIOpenDriver conv {text}")
    except DataError as e:
        message = str(e)
    assert message == "" or re.match(r"net\.log, line [0-9]+: .", message)


@pytest.mark.parametrize("name", ["net.txt", "net.log"])
def test_a_file_is_a_problem_set(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(LINE)
    assert load_problem_set("grouped_conv", str(path)) == (Item(PROBLEM, "net"),)
    with pytest.raises(DataError, match="command lines of MIOpenDriver are problems of grouped_conv, not of gemm"):
        load_problem_set("gemm", str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"net\.log: cannot read the problem set"):
        load_problem_set("grouped_conv", str(tmp_path / "net.log"))
    (tmp_path / "net.log").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"net\.log: cannot read the problem set"):
        load_problem_set("grouped_conv", str(tmp_path / "net.log"))
