"""Write the generated pages: Python from the faces, commands from verbs and conf/, cards from results, the notebook.

MkDocs runs this at each build (``gen-files``), so the pages cannot differ from the code, and no page is committed.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import mkdocs_gen_files
import yaml

from tilewise.cli._verbs import VERBS

sys.path.insert(0, str(Path(__file__).parents[2]))  # MkDocs runs this file by its path
sys.path.insert(0, str(Path(__file__).parent))
import notebook
from benchmarks.leaderboard.cards import cards_page, dataset_page

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
# Faces that users of the library call, in the order of the data's way through them.
FACES = tuple(
    f"tilewise{package}"
    for package in (
        "", ".dispatch", ".torch", ".torch.inductor", ".autotuning", ".model", ".ops", ".kernels", ".features", ".data",
        ".collect", ".campaigns", ".train", ".evaluate", ".publish", ".gate", ".registry",
    )
)  # fmt: skip
COPIES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
_ENTRY = "## `{name}`\n\n::: {path}\n    options:\n      show_root_heading: false\n      heading_level: 3"


def face_members(face: str) -> dict[str, str]:
    """Return where each public name of a package is defined, read from its ``__init__`` without importing it."""
    tree = _parsed(f"{face}.__init__")
    members: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(face):
            members |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {name: path for name, path in sorted(members.items()) if not name.startswith("_")}


def is_documented(path: str) -> bool:
    """Return whether a name is a class or a function with a docstring; constants are explained where they are used."""
    module, name = path.rsplit(".", 1)
    if not _file(module).exists():  # a package that hands the name on
        return False
    return any(
        isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and ast.get_docstring(node)
        for node in _parsed(module).body
    )


def _file(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


def _parsed(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text())


def python_page(face: str) -> str:
    """Return the page of one face: its contract, then its classes and functions."""
    parts = [f"# `{face}`", ast.get_docstring(_parsed(f"{face}.__init__")) or ""]
    members = face_members(face).items()
    parts += [_ENTRY.format(name=name, path=path) for name, path in members if is_documented(path)]
    return "\n\n".join(parts) + "\n"


def verbs_page() -> str:
    """Return the page of the command line: each verb with its help."""
    usage = "`tilewise VERB [ACTION] [KEY=VALUE ...]`. The text of each verb is that of `tilewise VERB --help`."
    parts = ["# Command line", usage]
    for name, verb in VERBS.items():
        module = importlib.import_module(f"tilewise.cli.{verb.package}.{name}")
        parts += [f"## `tilewise {name}`", f"```text\n{module.__doc__}\n```"]
        parts.append(f"Reads: {', '.join(f'`{key}`' for key in verb.reads)} ([settings](settings.md)).")
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Return the page of all settings: the files of conf/ as they are, whose comments explain the values."""
    conf = ROOT / "conf"
    parts = ["# Settings", "The files of `conf/`. [Configuration](../configuration.md) explains how they compose."]
    parts.append(f"## `config.yaml`\n\n{_yaml(conf / 'config.yaml')}")
    for group in sorted(path for path in conf.iterdir() if path.is_dir() and path.name != "tuned"):
        parts.append(f"## `{group.name}`")
        parts += [f"`{group.name}={file.stem}`\n\n{_yaml(file)}" for file in sorted(group.glob("*.yaml"))]
    return "\n\n".join(parts) + "\n"


def _yaml(file: Path) -> str:
    """Return a file as a block of code; one that does not parse fails the build."""
    yaml.safe_load(file.read_text())
    return f"```yaml\n{file.read_text()}```"


def _copy(source: str) -> str:
    """Return a page of the top folder with its links as the site has them."""
    text = (ROOT / source).read_text().replace("](docs/", "](")
    for file, page in COPIES.items():
        text = text.replace(f"]({file}", f"]({page}")
    return text


def main() -> None:
    """Write all pages into MkDocs' virtual folder."""
    pages = {f"reference/python/{face}.md": python_page(face) for face in FACES}
    pages |= {"reference/model-cards.md": cards_page(), "reference/dataset-card.md": dataset_page()}
    pages |= {"reference/command-line.md": verbs_page(), "reference/settings.md": settings_page()}
    pages |= {page: _copy(source) for source, page in COPIES.items()}
    for path, text in pages.items():
        with mkdocs_gen_files.open(path, "w") as file:
            file.write(text)
    notebook.write_page(ROOT / "docs" / "notebooks" / "train.ipynb", "train-in-a-notebook.md")


main()
