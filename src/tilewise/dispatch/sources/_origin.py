"""The registry alias that a dispatcher's models come from, and the pool that serves without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.dispatch._switches import Switches
from tilewise.errors import ConfigError, KernelError, RegistryUnavailableError, TilewiseError, UnknownTargetError
from tilewise.kernels import Pool, borrow_pool, load_pool, pool_path
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.dispatch.sources._model_source import FetchedModel


@dataclass(frozen=True)
class Origin:
    """An alias of a registered model.

    Attributes:
        target: the target's name.
        alias: an alias, or a version's number.
        uri: of the registry; None for ``MLFLOW_TRACKING_URI``, or else the project's own registry.
    """

    target: str
    alias: str
    uri: str | None

    def first_model(self, switches: Switches) -> FetchedModel:
        """Load the model to start with, from the registry or the local copy as the switch `network` says.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: no model can be loaded.
        """
        from tilewise.dispatch.sources._model_source import fetch_model, last_good_copy  # they import the registry

        if switches.network == "on":
            return fetch_model(self.target, self.alias, uri=self.uri)
        copy = last_good_copy(self.target, self.alias, uri=self.uri)
        if copy is None and switches.network == "later":
            return fetch_model(self.target, self.alias, uri=self.uri)
        if copy is None:
            raise RegistryUnavailableError(
                f"network=off forbids the registry, and there is no local copy of {self.target} @{self.alias}; "
                "start once with network=on"
            )
        return copy

    def newer_model(self, content_hash: str | None, version: int | None) -> FetchedModel | None:
        """Load the model that the alias names now, or return None if it is still the one given.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: the registry has no such model, is
                unavailable, or its files are damaged.
        """
        from tilewise.dispatch.sources._model_source import fetch_newer_model

        return fetch_newer_model(self.target, self.alias, uri=self.uri, than=(content_hash, version))


def parse_target(target: str | Target) -> Target:
    """Return a target, given itself or its name.

    Raises:
        UnknownTargetError: the name has no known op or variant.
    """
    if isinstance(target, Target):
        return target
    try:
        return Target.parse(target)
    except ConfigError as e:
        raise UnknownTargetError(str(e)) from e


def pool_without_model(target: Target, reason: TilewiseError | None = None) -> Pool:
    """Load the pool shipped for a target; an arch without one borrows another arch's kernels that are legal on it.

    Args:
        target: the target.
        reason: why there is no model; a failure raises an error of the same class that repeats its message.

    Raises:
        UnknownTargetError: no pool is shipped, and no `reason` is given.
    """
    try:
        return load_pool(target) if pool_path(target).is_file() else borrow_pool(target)
    except (KernelError, ConfigError) as e:
        if reason is None:
            raise UnknownTargetError(str(e)) from e
        raise type(reason)(f"{reason}; and {e}") from e
