"""`tilewise instances`: output, files and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernels.ck.lines import FORWARD, FORWARD_V3, KINDS
from tilewise.cli._verbs import VERBS
from tilewise.cli.main import main

SWEEP = {
    "variant": "forward",
    "trait_config": {
        "data_type": {"values": ["bf16"]},
        "pipeline": {"values": ["compv3", "compv4", "compv5"]},
        "ndim_spatial": {"values": [2]},
    },
}
FILTER = "c.tile_n >= 128 and c.pipeline == 'compv5'"


@pytest.fixture(autouse=True)
def _in_a_folder_with_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.json").write_text(json.dumps(SWEEP))
    Path("nhwgc_bf16.conf").write_text("# old\n" + "".join(f"{line}\n" for line in KINDS.values()) + "rubbish\n")


def run(*words: str) -> int:
    return main(["instances", *words])


@pytest.mark.long
def test_a_sweep_is_expanded_filtered_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("count", "input=sweep.json", "arch=gfx950") == 0
    count = int(capsys.readouterr().out)
    assert run("expand", "input=sweep.json", "arch=gfx950", f"filter={FILTER}", "output=out.json") == 0
    out = capsys.readouterr().out
    document = json.loads(Path("out.json").read_text())
    kept = len(document["instances"])
    assert out == f"out.json: {kept} of {count} instances\n"
    assert 0 < kept < count
    assert {i["pipeline"] for i in document["instances"]} == {"compv5"}
    assert min(i["tile_n"] for i in document["instances"]) >= 128
    assert run("list", "input=out.json") == 0
    assert len(capsys.readouterr().out.splitlines()) == kept


def test_an_old_file_is_converted_and_its_faults_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", "input=nhwgc_bf16.conf", "output=new.json") == 0
    told = capsys.readouterr()
    assert told.out == f"new.json: {len(KINDS)} instances\n"
    assert f"nhwgc_bf16.conf:{len(KINDS) + 2}: skipped: unknown kind of line" in told.err
    assert f"nhwgc_bf16.conf: {len(KINDS)} instances, 1 lines skipped" in told.err
    assert run("compare", "a=nhwgc_bf16.conf", "b=new.json") == 0
    assert capsys.readouterr().out == f"equal; compared by instance: {len(KINDS)} in both\n"


def test_differences_are_printed_and_fail(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.conf").write_text(f"{FORWARD}\n{FORWARD_V3}\n")
    Path("b.conf").write_text(f"{FORWARD}\n")
    assert run("compare", "a=a.conf", "b=b.conf") == 1
    told = capsys.readouterr()
    assert told.out.startswith("- grouped_conv_forward_bf16_2d_128x128x32_compv4_intrawave_dsb[")
    assert "a.conf and b.conf differ; compared by instance: 1 in both, 1 only in a (-), 0 only in b (+)" in told.err
    assert run("compare", "a=a.conf", "b=b.conf", "filter=c.pipeline == 'compv1'") == 0


@pytest.mark.long
def test_text_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "input=nhwgc_bf16.conf", "output=all.txt") == 0
    assert run("export", "input=all.txt", "output=all.json") == 0
    assert run("compare", "a=all.txt", "b=all.json") == 0
    capsys.readouterr()
    assert run("export", "input=all.json") == 0
    assert capsys.readouterr().out == Path("all.json").read_text()


def test_without_input_the_shipped_pool_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "target=gemm_universal_bf16_sm90", "filter=c.split_k == 1 and c.pipeline == 'persistent'") == 0
    names = capsys.readouterr().out.splitlines()
    assert names
    assert all(name.startswith("gemm_universal_bf16_") and "_persistent_" in name for name in names)


@pytest.mark.long
def test_a_sweep_of_matrix_products_takes_its_type_from_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, object] = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "warp_m": 2, "warp_n": 2, "warp_k": 1}
    sizes |= {"warp_tile_m": 32, "warp_tile_n": 32, "warp_tile_k": 16}
    traits: dict[str, object] = {
        "pipeline": "compv3",
        "scheduler": "intrawave",
        "epilogue": "cshuffle",
        "persistent": False,
    }
    traits |= dict.fromkeys(("pad_m", "pad_n", "pad_k"), False)
    parts = {"tile_config": sizes, "trait_config": traits}
    document = {name: {n: {"values": [v]} for n, v in values.items()} for name, values in parts.items()}
    Path("gemm.json").write_text(json.dumps(document))
    command = ["expand", "input=gemm.json", "arch=gfx950", "filter=c.gemm_layout == 'rrr'"]
    flags = "False_False_False_False"
    for dtype in ("fp8", "bf16"):
        assert run(*command, f"dtype={dtype}") == 0
        name = f"gemm_universal_{dtype}_rrr_compv3_cshuffle_intrawave_{flags}_128x128x128_2x2x1_32x32x16"
        assert capsys.readouterr().out.splitlines() == [name]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "instances needs an action, one of expand, list"),
        (["explode"], "instances: unexpected 'explode'"),
        (["expand"], "input: missing; instances expand reads a file"),
        (["expand", "input=sweep.json"], "a sweep needs an arch with CK Tile kernels, got sm90"),
        (["expand", "input=nhwgc_bf16.conf"], "instances expand takes a trait JSON; this is a source of kind conf"),
        (["convert", "input=sweep.json", "arch=gfx942"], "instances convert takes a .conf of the old profiler"),
        (["filter", "input=sweep.json", "arch=gfx942"], "filter: missing; give an expression"),
        (
            ["filter", "input=nhwgc_bf16.conf", "filter=c.dtype == 'fp64'"],
            "the filter matches none of 11 instances; nothing is written",
        ),
        (["list", "filter=c.tile_q == 1"], "filter: column 1: c has no 'tile_q'"),
        (["list", "input=missing.json"], "missing.json: this is neither a file nor a target's name"),
        (["compare", "a=sweep.json"], "a and b: both sources are needed"),
        (
            ["export", "input=grouped_conv_forward_bf16_sm90", "output=x.json"],
            "kernels of other backends than CK Tile have no instance form",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tilewise: error: ")
    assert message in error


def test_the_actions_are_declared() -> None:
    from tilewise.cli.measuring.instances import ACTIONS

    assert VERBS["instances"].actions == ACTIONS


@pytest.mark.long
def test_the_builders_strings_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("arch=gfx950", "filter=not c.store_immediate and c.tile_m == 64")
    assert run("expand", "input=sweep.json", *words, "output=out.conf") == 0
    assert run("expand", "input=sweep.json", *words, "output=out.txt") == 0
    assert Path("out.conf").read_text().startswith("GroupedConvolutionForwardKernel<2,Default,NHWGC,")
    assert run("compare", "a=out.conf", "b=out.txt", "arch=gfx950") == 0
    assert "equal; compared by" in capsys.readouterr().out
