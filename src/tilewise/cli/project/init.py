"""Lay out a project around an op of your own: settings, a DVC pipeline, an MLproject and a README.

tilewise init op=NAME [out=FOLDER] [dtype=bf16 arch=sm90]            an op of conf/op, or of an installed package
tilewise init input=DEFINITION.yaml [out=FOLDER]                     an op of a file

Files that exist are kept. `git init`, `dvc init` and `dvc repro` then train, judge and publish a model of the tables in
data/TARGET. docs/your-own-kernels.md explains definitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.cli._console import plain_console, write_result
from tilewise.cli.compose import params_text
from tilewise.cli.project.own_ops import definition_text
from tilewise.conf_files import PROJECT
from tilewise.errors import ConfigError
from tilewise.files import create_bytes
from tilewise.ops import OpDefinition, Target, definition_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

_TEMPLATES = Path(__file__).parent / "templates"
# Template -> file of the project.
# A file named dvc.yaml would be a pipeline of the repository that it lies in.
_FILES = {"stages.yaml": "dvc.yaml", "MLproject": "MLproject", "README.md": "README.md", "gitignore": ".gitignore"}


def run(cfg: DictConfig) -> None:
    """Write the files that ``cfg.out`` lacks.

    Raises:
        ConfigError: no op of the user's own is named.
        OSError: the folder cannot be written.
    """
    target, folder = Target.parse(cfg.target), Path(cfg.out or ".")
    definition = definition_of(target.op)
    if definition is None:
        raise ConfigError(
            f"init needs op=NAME of an op of your own, or input=DEFINITION.yaml; {target.op} is built in. "
            "`tilewise ingest` makes a definition from a table"
        )
    written, kept = [], []
    contents = list(_contents(target, definition))
    (folder / "data" / target.name).mkdir(parents=True, exist_ok=True)
    for name, text in contents:
        try:
            create_bytes(folder / name, text.encode())
            written.append(name)
        except FileExistsError:
            kept.append(name)
    console = plain_console()
    console.print(f"{folder}: wrote {', '.join(written) or 'no file'}", soft_wrap=True, highlight=False)
    if kept:
        console.print(f"kept, since they exist: {', '.join(kept)}", soft_wrap=True, highlight=False)
    console.print(
        f"next: measurements in data/{target.name} (tilewise ingest), git init, dvc init, dvc repro", soft_wrap=True
    )
    write_result({"folder": str(folder), "definition": cfg.input, "written": written, "kept": kept})


def _contents(target: Target, definition: OpDefinition) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of a project."""
    yield f"{PROJECT}/op/{definition.name}.yaml", definition_text(definition)
    yield "params.yaml", params_text([f"target={target.name}"])
    values = {"op": target.op, "target": target.name, "dtype": target.dtype, "arch": target.arch}
    for template, name in _FILES.items():
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"{{{{{key}}}}}", value)
        yield name, text
