"""Hydra's view of a project: its folder of settings, and ops that are known without a file in it."""

from __future__ import annotations

from collections.abc import Mapping

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from tilewise.conf_files import conf_file, project_conf_dir
from tilewise.ops import OPS, VARIANT, definition_of, find_definition


def add_project() -> None:
    """Let Hydra find what the project adds: its folder of settings, and ops that are known without a file in it."""
    Plugins.instance().register(_ProjectConf)
    stored = ConfigStore.instance()
    for name in OPS:
        definition = definition_of(name)
        if definition is not None and conf_file("op", name) is None:
            stored.store(name, definition.to_dict(), group="op", package="op")
        elif definition is not None:
            stored.repo.get("op", {}).pop(f"{name}.yaml", None)  # from before the file was written


class _ProjectConf(SearchPathPlugin):
    """Hydra's search path with the project's folder before that of tilewise, whose files it overrides."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        project = project_conf_dir()
        if project is not None:
            search_path.prepend("project", f"file://{project.resolve()}")


def variant_of_own_op(started: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the choice of the only variant of an op of the user's own, where none is chosen."""
    op = chosen.get("op", started.get("op", ""))
    return {} if "variant" in chosen or not op or find_definition(op) is None else {"variant": VARIANT}
