"""The wheel and the sdist, installed with the default dependencies into an environment of their own."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from building import ROOT, build, done, run
from installed import PROBLEM
from small_model import write_model
from tilewise.cli._verbs import VERBS
from tilewise.core import compiled_core
from tilewise.model import load_artefact
from tilewise.ops import GroupedConvProblem

MAX_MB = 120  # NumPy's libraries are most of it

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("wheel")]

# Verbs that start without an extra, as far as an empty folder lets them.
# shadow: of an empty journal; ck: without an action
RUNTIME_VERBS = {"select", "explain", "cache", "ck", "init", "instances", "registry", "shadow"}
ARGUMENTS = {
    "data": ["describe"], "ingest": ["input=x.csv", "output=y.parquet"], "instances": ["list"], "cache": ["list"],
    "compare": ["a=model", "b=model"], "evaluate": ["model_dir=model"], "promote": ["model_dir=model"],
    "search": ["model_dir=model"], "drift": ["input=x.csv"], "shadow": ["report", "input=x.csv"],
    "registry": ["tracking.uri=http://127.0.0.1:9"], "rollback": ["tracking.uri=http://127.0.0.1:9"],
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"), {"TILEWISE_BUILD": "require"})


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment, and return the folder of its programs."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    done([sys.executable, "-m", "venv", folder], ROOT)
    done([folder / "bin" / "pip", "install", "--quiet", wheel], folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "model")


def test_the_wheel_has_the_core_and_the_configuration(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tilewise/conf/config.yaml" in names
    assert len([name for name in names if name.startswith("tilewise/core/_core.")]) == 2  # _core.c and the module
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name


def test_the_runtime_needs_its_few_dependencies_only(environment: Path, model_dir: Path, tmp_path: Path) -> None:
    ranked = done([environment / "python", ROOT / "tests" / "installed.py", model_dir], tmp_path).split()
    model = load_artefact(model_dir)
    assert ranked == [model.pool.names[i] for i in model.rank(GroupedConvProblem(**PROBLEM), 5)]
    text = ",".join(f"{name}:{size}" for name, size in PROBLEM.items())
    selected = done([environment / "tilewise", "select", f"input={model_dir}", f"problem={{{text}}}"], tmp_path)
    assert f'"kernel_name": "{ranked[0]}"' in selected


def test_the_runtime_is_small(environment: Path, tmp_path: Path) -> None:
    packages = done([environment / "pip", "list", "--format=freeze", "--exclude=pip", "--exclude=setuptools"], tmp_path)
    assert len(packages.split()) <= 12, packages
    files = (p for p in (environment.parent / "lib").rglob("*") if p.is_file() and not p.is_symlink())
    assert sum(p.stat().st_size for p in files if "/pip/" not in str(p)) < MAX_MB * 1e6


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_works_or_names_its_extra(verb: str, environment: Path, model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "x.csv").touch()
    shutil.copytree(model_dir, tmp_path / "model")
    finished = run([environment / "tilewise", verb, *ARGUMENTS.get(verb, ())], tmp_path)
    assert "a fault of tilewise" not in finished.stderr
    if verb in RUNTIME_VERBS:
        assert "extra" not in finished.stderr
    else:
        assert finished.returncode == 2, finished.stderr
        (line,) = finished.stderr.strip().splitlines()
        assert "is not installed; this needs the extra '" in line


def test_an_sdist_builds_without_a_compiler_and_says_so_once(
    tmp_path: Path, model_dir: Path, environment: Path
) -> None:
    sdist = build(ROOT, "sdist", tmp_path / "sdist", {})
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.2 lacks
        archive.extractall(tmp_path / "unpacked")
    (source,) = (tmp_path / "unpacked").iterdir()
    wheel = build(source, "wheel", tmp_path / "wheel", {"CC": "no-such-compiler"})
    assert wheel.name.endswith("py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive_:
        archive_.extractall(tmp_path / "site")
    code = f"""
from tilewise.dispatch import Dispatcher
for _ in range(2):
    print(Dispatcher.from_folder({str(model_dir)!r}).select({PROBLEM}).kernel_name)
"""
    finished = run([environment / "python", "-c", code], tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count("the native core was not built") == 1
    model = load_artefact(model_dir)
    best = model.pool.names[model.rank(GroupedConvProblem(**PROBLEM), 1)[0]]
    assert finished.stdout.split() == [best, best]
    assert compiled_core() is not None
