"""The verb select with a model's folder: one problem, a file of them, and a list of kernels."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from small_model import write_model
from tilewise.cli.main import main
from tilewise.dispatch import Dispatcher, Switches
from tilewise.model import Predictor
from tilewise.ops import GroupedConvProblem

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
POINT = GroupedConvProblem(N=1, C=64, K=128, G=1, Hi=28, Wi=28, Y=1, X=1)
SIZES = "problem={N:8,C:64,K:64,G:1,Hi:28,Wi:28,Y:3,X:3,pad_h:1,pad_w:1}"
CSV = """# a comment
origin,N,C,K,G,Hi,Wi,Y,X,pad_h,pad_w,dtype
net,8,64,64,1,28,28,3,3,1,1,bf16
net,1,64,128,1,28,28,1,1,,,
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nothing listens there


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model", trees=10)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["select", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_model_dir_names_a_folder_and_the_answer_has_all_figures(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, f"model_dir={folder}", SIZES.replace("}", ",dtype:bf16}"))
    (best,) = Predictor.load(folder).rank(PLAIN, top_k=1)
    assert found["kernel_name"] == best.kernel_name
    for name, value in best.figures().items():
        assert found[f"predicted_{name}"] == found["ranking"][0][f"predicted_{name}"] == value


@pytest.mark.long
@pytest.mark.parametrize("source", ["problems.csv", "problems.json", "listed.json"])
def test_a_file_of_problems_gives_a_row_each(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    dicts = [PLAIN.to_dict(), POINT.stated()]
    texts = {"problems.csv": CSV, "problems.json": json.dumps(dicts), "listed.json": json.dumps({"problems": dicts})}
    Path(source).write_text(texts[source])
    found = answer(capsys, f"model_dir={folder}", f"problems={source}")
    with Dispatcher.from_folder(folder, switches=Switches()) as dispatcher:
        expected = [dispatcher.select(p).kernel_name for p in (PLAIN, POINT)]
    assert [row["kernel_name"] for row in found["selections"]] == expected
    assert [row["problem"] for row in found["selections"]] == [PLAIN.to_dict(), POINT.to_dict()]
    assert main(["select", f"model_dir={folder}", f"problems={source}", "output=out.csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert [(row["N"], row["kernel_name"]) for row in rows] == [("8", expected[0]), ("1", expected[1])]
    assert float(rows[0]["predicted_latency_ms"]) == found["selections"][0]["predicted_latency_ms"]


@pytest.mark.long
def test_what_was_written_can_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text(CSV)
    found = answer(capsys, f"model_dir={folder}", "problems=in.csv", "output=out.json")
    assert json.loads(Path("out.json").read_text()) == found


def test_given_kernels_are_ranked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = Predictor.load(folder)
    names = [*predictor.model.pool.names[:4], "64x32x32_flat_w4_s2_g1_k1"]
    Path("kernels.txt").write_text("# these\n" + "\n".join(names))
    expected = [p.kernel_name for p in predictor.rank(PLAIN, names)]
    for stated in (f"kernels=[{','.join(names)}]", "kernels=kernels.txt"):
        found = answer(capsys, f"model_dir={folder}", SIZES, stated)
        assert [row["kernel_name"] for row in found["ranking"]] == expected
        assert len(found["unsupported"]) == len(names) - len(expected)
    Path("in.csv").write_text(CSV)
    many = answer(capsys, f"model_dir={folder}", "problems=in.csv", "kernels=kernels.txt")
    assert many["selections"][0]["kernel_name"] == expected[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N,C\n1\n", "in.csv, line 2: 1 values, but the header has 2 columns"),
        ("N,C,K,G,Hi,Wi,Y,X\n1,2,3,4,5,6,7,x\n", "in.csv, line 2: X: must be an integer, got 'x'"),
        ("N,C,K,G,Hi,Wi,Y,X,dtype\n8,64,64,1,28,28,1,1,fp16\n", "in.csv, line 2: dtype: must be bf16"),
        ("# nothing\n", "in.csv: no problems"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(
    folder: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("in.csv").write_text(text)
    assert main(["select", f"model_dir={folder}", "problems=in.csv"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([SIZES, "problems=in.csv"], "problem and problems: give one of them"),
        ([SIZES, "output=out.csv"], "CSV is for problems=FILE"),
        ([SIZES, "kernels=nowhere.txt"], "kernels=nowhere.txt: neither a list such as [NAME,NAME] nor a readable file"),
        ([SIZES, "kernels=[nonsense]"], "'nonsense' names no kernel of grouped_conv_forward_bf16_sm90"),
        (["problems=nowhere.csv"], "problems=nowhere.csv: no such file"),
    ],
)
def test_mistakes_are_named(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.csv").write_text(CSV)
    assert main(["select", f"model_dir={folder}", *words]) == 2
    assert message in capsys.readouterr().err
