"""Write the generated reference pages: the Python API from the faces, the command line from the verbs and conf/.

MkDocs runs this at each build (``gen-files``), so the pages cannot differ from the code, and no page is committed.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import mkdocs_gen_files
import yaml

from tilewise.cli._verbs import VERBS

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
# Faces that users of the library call, in the order of the data's way through them.
FACES = (
    "tilewise", "tilewise.dispatch", "tilewise.torch", "tilewise.autotuning", "tilewise.model", "tilewise.ops",
    "tilewise.kernels", "tilewise.features", "tilewise.data", "tilewise.collect", "tilewise.campaigns", "tilewise.train",
    "tilewise.evaluate", "tilewise.gate", "tilewise.registry",
)  # fmt: skip


def face_members(face: str) -> dict[str, str]:
    """Return where each public name of a package is defined, read from its ``__init__`` without importing it."""
    tree = ast.parse((SOURCES / Path(*face.split(".")) / "__init__.py").read_text())
    members: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(face):
            members |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return {name: path for name, path in sorted(members.items()) if not name.startswith("_")}


def is_documented(path: str) -> bool:
    """Return whether a name is a class or a function with a docstring; constants are explained where they are used."""
    module, name = path.rsplit(".", 1)
    tree = ast.parse((SOURCES / Path(*module.split("."))).with_suffix(".py").read_text())
    return any(
        isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name and ast.get_docstring(node)
        for node in tree.body
    )


def python_page(face: str) -> str:
    """Return the page of one face: its contract, then its classes and functions."""
    tree = ast.parse((SOURCES / Path(*face.split(".")) / "__init__.py").read_text())
    parts = [f"# `{face}`", ast.get_docstring(tree) or ""]
    for name, path in face_members(face).items():
        if (SOURCES / Path(*path.split(".")[:-1])).with_suffix(".py").exists() and is_documented(path):
            parts.append(
                f"## `{name}`\n\n::: {path}\n    options:\n      show_root_heading: false\n      heading_level: 3"
            )
    return "\n\n".join(parts) + "\n"


def verbs_page() -> str:
    """Return the page of the command line: each verb with its help."""
    parts = [
        "# Command line",
        "`tilewise VERB [ACTION] [KEY=VALUE ...]`. The text of each verb is that of `tilewise VERB --help`.",
    ]
    for name, verb in VERBS.items():
        module = importlib.import_module(f"tilewise.cli.{verb.package}.{name}")
        parts.append(
            f"## `tilewise {name}`\n\n{verb.summary[0].upper()}{verb.summary[1:]}.\n\n```text\n{module.__doc__}\n```"
        )
        keys = ", ".join(f"[`{key}`](settings.md)" if "." not in key else f"`{key}`" for key in verb.reads)
        parts.append(f"Reads: {keys}.")
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Return the page of all settings: the files of conf/ as they are, whose comments explain the values."""
    parts = [
        "# Settings",
        "The files of `conf/`, which Hydra composes. [Configuration](../configuration.md) explains overrides.",
    ]
    parts.append(f"## `config.yaml`\n\n```yaml\n{(ROOT / 'conf' / 'config.yaml').read_text()}```")
    for group in sorted(path for path in (ROOT / "conf").iterdir() if path.is_dir() and path.name != "tuned"):
        parts.append(f"## `{group.name}`")
        for file in sorted(group.glob("*.yaml")):
            yaml.safe_load(file.read_text())  # a file that does not parse fails the build
            parts.append(f"`{group.name}={file.stem}`\n\n```yaml\n{file.read_text()}```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write all pages into MkDocs' virtual folder."""
    pages = {f"reference/python/{face}.md": python_page(face) for face in FACES}
    pages |= {"reference/command-line.md": verbs_page(), "reference/settings.md": settings_page()}
    for source, page in (("CONTRIBUTING.md", "contributing.md"), ("CHANGELOG.md", "changes.md")):
        pages[page] = (
            (ROOT / source).read_text().replace("](docs/", "](").replace("](CONTRIBUTING.md", "](contributing.md")
        )
    for path, text in pages.items():
        with mkdocs_gen_files.open(path, "w") as file:
            file.write(text)


main()
