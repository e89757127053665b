"""Show that changed sources compute the same results, and accept them in dvc.lock without training.

python -m tilewise.cli.same             compare with the committed lock; accept the sources if all is equal
python -m tilewise.cli.same --record    after `dvc repro`: record the fingerprints of the new models

DVC stages depend on the bytes of the sources. For each target of params.yaml, the stages prepare, settings and evaluate
are repeated and compared with the checksums in dvc.lock; training is compared by the fingerprints in
reports/TARGET/fingerprints.json. Differences are printed, `make repro` is needed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import yaml

from tilewise.cli._fingerprints import fingerprints
from tilewise.cli.compose import compose, to_text
from tilewise.cli.main import reporting_errors
from tilewise.data import read_measurements
from tilewise.data.quality import prepare_files, write_prepared
from tilewise.errors import ConfigError
from tilewise.evaluate import evaluate, write_evaluation_report
from tilewise.files import write_text
from tilewise.model import load_artefact
from tilewise.ops import Target

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

LOCK = Path("dvc.lock")
PARAMS = Path("params.yaml")
STAGES = ("prepare", "settings", "train", "evaluate")
SOURCES = ("src/", "conf/")  # comments in conf/ may change; the comparison covers its values
WITH_REVISION = ("train_manifest.json", "selftest.json")
MADE_HERE = ("build/", "models/")  # outputs of earlier stages; they are compared themselves


class _Dependency(Protocol):
    """The part of DVC's stage dependency that this module uses."""

    def_path: str

    def status(self) -> dict[str, str]: ...
    def save(self) -> None: ...


@dataclass(frozen=True)
class _Locked:
    """The outputs of a target's stages: MD5 by path, from dvc.lock."""

    target: str
    md5: Mapping[str, str]

    @classmethod
    def read(cls, target: str) -> _Locked:
        """Read dvc.lock.

        Raises:
            ConfigError: the lock is missing, or lacks a stage of `target`.
        """
        try:
            stages = yaml.safe_load(LOCK.read_text())["stages"]
            entries = [out for stage in STAGES for out in stages[f"{stage}@{target}"]["outs"]]
        except (OSError, KeyError, TypeError, yaml.YAMLError) as e:
            raise ConfigError(f"{LOCK} has no complete entry for {target} ({e!r}); `make repro` writes it") from e
        return cls(target, {entry["path"]: entry["md5"] for entry in entries})

    @property
    def model(self) -> Path:
        """The folder of the target's model."""
        return Path("models") / self.target

    @property
    def fingerprints(self) -> Path:
        """The file of the target's fingerprints."""
        return Path(f"reports/{self.target}/fingerprints.json")


def differences(target: str) -> list[str]:
    """Repeat the quick stages of `target` with the current sources and return the names that differ from dvc.lock.

    Raises:
        ConfigError: dvc.lock or the fingerprints are missing, or belong to different models.
        DataError: the measurements cannot be used.
        ArtefactError: the model cannot be loaded.
    """
    locked = _Locked.read(target)
    recorded = _read_fingerprints(locked)
    outputs, frame = _outputs(target)
    found = fingerprints(_config(target), frame, Target.parse(target), Path("models") / target)
    return [
        *(f"{target}: {path}" for path, md5 in outputs.items() if locked.md5[path] != md5),
        *(f"{target}: {name}" for name, digest in found.items() if recorded.get(name) != digest),
    ]


def record(target: str) -> Path:
    """Write the fingerprints of `target` and the digest of their model; return the file's path."""
    locked = _Locked.read(target)
    _, frame = _prepared(target)
    found = fingerprints(_config(target), frame, Target.parse(target), Path("models") / target)
    write_text(locked.fingerprints, json.dumps({"model": model_digest(locked.model), **found}, indent=1) + "\n")
    return locked.fingerprints


def accept(target: str) -> None:
    """Accept the current sources in dvc.lock, for all stages of `target`.

    Raises:
        ConfigError: data, configuration or parameters have changed, not only sources.
    """
    from dvc.repo import Repo

    with Repo() as repo, repo.lock:
        stages = [stage for name in STAGES for stage in repo.stage.collect(f"{name}@{target}")]
        others = sorted({name for stage in stages for name in _changed_inputs(stage.deps)})
        if others:
            raise ConfigError(f"{target}: not only sources have changed, but {', '.join(others)}; `make repro` is due")
        for stage in stages:
            for dependency in stage.deps:
                if not dependency.def_path.startswith(MADE_HERE):
                    dependency.save()
            stage.dump(update_pipeline=False)


def _changed_inputs(dependencies: list[_Dependency]) -> Iterator[str]:
    for dependency in dependencies:
        if not dependency.def_path.startswith((*SOURCES, *MADE_HERE)) and dependency.status():
            yield dependency.def_path


def model_digest(folder: Path) -> str:
    """Return a digest of a model's files, without the two that name the revision it was trained at.

    Raises:
        ConfigError: the folder is missing.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is missing; `make repro` trains it, `dvc pull train@{folder.name}` fetches it")
    files = [file for file in sorted(folder.iterdir()) if file.name not in WITH_REVISION]
    return _md5("".join(f"{_md5(file.read_bytes())} {file.name}\n" for file in files).encode())


def _read_fingerprints(locked: _Locked) -> dict[str, str]:
    try:
        values: dict[str, str] = json.loads(locked.fingerprints.read_text())
    except (OSError, ValueError) as e:
        raise ConfigError(f"{locked.fingerprints} cannot be read ({e}); `make fingerprints` writes it") from e
    if values.get("model") != model_digest(locked.model):
        raise ConfigError(
            f"{locked.fingerprints} belongs to another model than {locked.model}; see `make fingerprints`"
        )
    return values


def _config(target: str) -> DictConfig:
    return compose([f"params={PARAMS}", f"target={target}"])


def _outputs(target: str) -> tuple[dict[str, str], pd.DataFrame]:
    """Compute the outputs of the quick stages; return their MD5 by path, and the prepared measurements."""
    cfg = _config(target)
    prepared, frame = _prepared(target)
    settings = to_text(cfg.model).encode()
    md5 = {f"build/prepared/{target}.parquet": prepared, f"build/settings/{target}.yaml": _md5(settings)}
    model = load_artefact(Path("models") / target)
    with tempfile.TemporaryDirectory() as folder:
        write_evaluation_report(
            Path(folder), evaluate(model, frame, float(cfg.holdout.fraction) or None), model.cv_metrics
        )
        for name in ("metrics.json", "predictions.parquet", "summary.json"):
            md5[f"reports/{target}/{name}"] = _md5((Path(folder) / name).read_bytes())
    return md5, frame


def _prepared(name: str) -> tuple[str, pd.DataFrame]:
    """Prepare the measurements of a target; return the MD5 of the stage's file, and its table."""
    target, source = Target.parse(name), Path("data") / name
    prepared = prepare_files(source, target)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.parquet"
        write_prepared(file, prepared)
        return _md5(file.read_bytes()), read_measurements(file, target)  # training and evaluation read the file, too


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()  # the hash that DVC uses


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.cli.same", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="record fingerprints instead of comparing them")
    parser.add_argument("targets", nargs="*", help="names of targets; default: those of params.yaml")
    args = parser.parse_args(argv)
    targets = args.targets or list(compose([f"params={PARAMS}"]).targets)
    if args.record:
        for target in targets:
            print(f"recorded: {record(target)}")
        return 0
    different = [line for target in targets for line in differences(target)]
    if different:
        print("\n".join(["these differ from dvc.lock:", *different, "`make repro` is due"]))
        return 1
    for target in targets:
        accept(target)
    print(f"{len(targets)} of {len(targets)} targets compute the same; {LOCK} holds the current sources")
    return 0


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))
