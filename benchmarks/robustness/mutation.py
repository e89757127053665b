"""Small changes of the code that claims rest on (operators, constants, arguments): which does a test notice?

python -m benchmarks.robustness.mutation [--group NAME]... [--sample 100] [--seed 0] [--jobs 2] [--save]

mutmut makes the changes (`pip install mutmut==3.8.1`) in a copy below build/mutation, and runs the group's tests that
reach each. A sample is drawn per module; `--sample 0` takes all. A run that was interrupted goes on where it ended;
after a change of code or tests, remove build/mutation/GROUP. Survivors are printed with their changed lines. Those of
equal_changes.toml do the same as the code, for a stated reason; they count as not noticed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, load, save

ROOT = Path(__file__).parents[2]
BUILD, RESULT = ROOT / "build" / "mutation", RESULTS / "mutation.json"
COPIED = ("src", "tests", "conf", "benchmarks", "data", "docs", "examples")
FILES = ("data.dvc", "dvc.yaml", "dvc.lock", "params.yaml", "hatch_build.py", "pyproject.toml")
EQUAL = Path(__file__).with_name("equal_changes.toml")
PRELOADED = "preloaded.txt"
TIMEOUT_S = 10  # beside the tests' own time; mutmut allows 15 times as much
HEAVY = ("hypothesis", "lightgbm", "mlflow", "numpy", "pandas", "pyarrow.parquet", "pytest")  # seconds to import
# Exit statuses that mutmut records: pytest's own, and those of a mutant that ran out of time or memory.
SURVIVED, UNTESTED, NO_TESTS = 0, 5, 33


@dataclass(frozen=True)
class Group:
    """Modules, and the tests that cover them.

    Attributes:
        modules: below src/tilewise, without ``.py``.
        tests: below tests.
        at_import: the modules call their functions while they are imported, so every change needs a new import.
        long: most of the tests are long ones, which are then run as well.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    at_import: bool = False
    long: bool = False


GROUPS = {
    "gate": Group(
        ("metrics", "data/_splits", *(f"gate/_{n}" for n in ("criteria", "evidence_check", "gate", "slice_checks"))),
        ("test_metrics.py", "data/test_splits.py", "gate"),
    ),
    "thresholds": Group(("gate/_thresholds", "evaluate/_slices"), ("gate", "evaluate/test_slices.py")),
    "labels": Group(("data/_labels",), ("data/test_labels.py",)),
    "artefact": Group(tuple(f"model/_{n}" for n in ("artefact", "artefact_files", "selftest")), ("model",)),
    "schema": Group(("model/_schema",), ("model/test_schema.py", "model/test_artefact.py"), at_import=True),
    "ranking": Group(
        (*(f"model/_{n}" for n in ("ranker", "predictor", "shortlist", "trees")), "dispatch/_selector"),
        ("model", "dispatch/test_dispatcher.py", "dispatch/test_selector.py"),
    ),
    "features": Group(
        tuple(
            f"features/_{n}"
            for n in (
                *("block_inputs", "ck_features", "conv_features", "conv_inputs", "cost_model", "defined_features"),
                *("gemm_features", "shape_distance", "tile_features", "tile_inputs", "tile_terms"),
            )
        ),
        ("features",),
        at_import=True,
    ),
    "rules": Group(("kernels/triton/_rules", "kernels/ck/_ck_rules"), ("kernels",)),
    "fallback": Group(
        ("dispatch/measuring/_fallback", "collect/_journal"),
        ("dispatch/measuring/test_fallback.py", "collect/test_journal.py"),
    ),
    "promotion": Group(
        (
            *(f"registry/_{n}" for n in ("history", "rollback", "gate_standing")),
            *(f"registry/promotion/_{n}" for n in ("promote", "judge", "override", "standing", "holdout_problems")),
            *(f"registry/promotion/_{n}" for n in ("publish", "auto_rollback")),
        ),
        ("registry/test_history.py", "registry/test_rollback.py", "registry/promotion"),
        long=True,
    ),
}


def mutate(name: str, sample: int, seed: int, jobs: int) -> list[dict[str, Any]]:
    """Test changes of one group; return a row per module."""
    folder, group = BUILD / name, GROUPS[name]
    _copy(folder, group)
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(jobs)]
    if not (folder / "mutants" / "mutmut-stats.json").is_file():  # make the changes, and learn which tests reach them
        subprocess.run([*command, "no such change"], cwd=folder, capture_output=True, check=False)
        if group.at_import:
            _spread(folder / "mutants" / "mutmut-stats.json")
    drawn = {module: _drawn(folder, module, sample, seed) for module in group.modules}
    if names := [n for module in drawn for n in drawn[module] if _results(folder, module)[n] is None]:
        subprocess.run([*command, *names], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return [_row(name, folder, module, sample, seed) for module in group.modules]


def _copy(folder: Path, group: Group) -> None:
    """Copy everything that the tests need, and configure mutmut for the group; nothing if that was done."""
    if (folder / "pyproject.toml").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for part in COPIED:
        if (ROOT / part).is_dir():  # data is pulled on demand
            shutil.copytree(ROOT / part, folder / part, dirs_exist_ok=True)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    settings = {
        "source_paths": [f"src/tilewise/{module}.py" for module in group.modules],
        "pytest_add_cli_args": ["-m", "not servers" if group.long else "not long", "-p", "no:cacheprovider"],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in group.tests],
        "also_copy": [*COPIED, *FILES],
        "process_isolation": "forkserver",  # a fork of a process that ran tests would find their results cached
        "forkserver_warmup": "import" if group.at_import else "collect",
        "preload_modules_file": PRELOADED,
        "timeout_constant": TIMEOUT_S,
    }
    (folder / PRELOADED).write_text("\n".join(HEAVY))
    text = "\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    with (folder / "pyproject.toml").open("a") as file:
        file.write(text)


def _spread(stats: Path) -> None:
    """Let all tests try the functions that run while a module is imported, which mutmut records for the first test."""
    found = json.loads(stats.read_text())
    every = list(found["duration_by_test"])
    reached = found["tests_by_mangled_function_name"]
    found["tests_by_mangled_function_name"] = {n: every if every[0] in tests else tests for n, tests in reached.items()}
    stats.write_text(json.dumps(found))


def _results(folder: Path, module: str) -> dict[str, int | None]:
    meta = json.loads((folder / f"mutants/src/tilewise/{module}.py.meta").read_text())
    found: dict[str, int | None] = meta["exit_code_by_key"]
    return found


def _drawn(folder: Path, module: str, sample: int, seed: int) -> list[str]:
    names = sorted(_results(folder, module))
    if not sample or len(names) <= sample:
        return names
    return random.Random(f"{module}-{seed}").sample(names, sample)


def _row(group: str, folder: Path, module: str, sample: int, seed: int) -> dict[str, Any]:
    results = _results(folder, module)
    drawn = _drawn(folder, module, sample, seed)
    alive = sorted(n for n in drawn if results[n] in (SURVIVED, UNTESTED, NO_TESTS, None))
    equal = {entry["change"] for entry in tomllib.loads(EQUAL.read_text())["equal"] if entry["module"] == module}
    changes = {re.sub(r"^tilewise\.[\w.]*?x_?ǁ?", "", n): _changed_lines(folder, n) for n in alive}
    same = [name for name, lines in changes.items() if equal.intersection(lines)]
    for name in changes.keys() - same:
        print(module, name, *changes[name], sep="\n    ")
    row = {"module": module, "group": group, "changes": len(results), "tried": len(drawn)}
    row |= {"noticed": len(drawn) - len(alive), "equal": same, "survivors": sorted(changes.keys() - same)}
    return row | {"seed": seed}


def _changed_lines(folder: Path, name: str) -> list[str]:
    """Return the lines that a change puts in the place of others; a line that it leaves out begins with a minus."""
    command = [str(Path(sys.executable).with_name("mutmut")), "show", name]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    lines = [line for line in shown.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
    return [line[1:].strip() for line in lines if line[0] == "+"] or [f"- {line[1:].strip()}" for line in lines]


def keep(rows: list[dict[str, Any]]) -> None:
    """Replace the rows of the same modules and seeds in the result file."""
    known = {(r["module"], r["seed"]): r for r in load(RESULT)["modules"]} if RESULT.is_file() else {}
    known |= {(row["module"], row["seed"]): row for row in rows}
    command = "python -m benchmarks.robustness.mutation --group NAME --sample N --seed SEED --save"
    save(RESULT, {"command": command, "modules": [known[key] for key in sorted(known)]})


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", action="append", choices=list(GROUPS))
    parser.add_argument("--sample", type=int, default=100, help="changes of each module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", action="store_true", help=f"keep the counts in {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    for name in args.group or GROUPS:
        rows = mutate(name, args.sample, args.seed, args.jobs)
        for row in rows:
            print(f"{row['module']}: {row['noticed']} of {row['tried']} noticed, {len(row['equal'])} equal ones not")
        if args.save:
            keep(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
