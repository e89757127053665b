"""The registry alias that a dispatcher's models come from, and the pool that serves without a model."""

from __future__ import annotations

import hashlib
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tilewise.dispatch._switches import Switches
from tilewise.errors import (
    ArtefactError,
    ConfigError,
    KernelError,
    RegistryUnavailableError,
    TilewiseError,
    UnknownTargetError,
)
from tilewise.kernels import Pool, backend_of_target, borrow_pool, load_pool, pool_path
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.dispatch.sources._model_source import FetchedModel


CANARY = "canary"  # as in tilewise.registry, which is imported only to fetch


@dataclass(frozen=True)
class Origin:
    """An alias of a registered model.

    Attributes:
        target: the target's name.
        alias: an alias, or a version's number.
        uri: of the registry; None for ``MLFLOW_TRACKING_URI``, or else the project's own registry.
        is_canary: whether a canary, where there is one, comes before the alias.
    """

    target: str
    alias: str
    uri: str | None
    is_canary: bool = False

    @classmethod
    def of(cls, target: str, alias: str, uri: str | None, switches: Switches) -> Self:
        """Return the origin of a dispatcher's models, which may be one of the hosts with a canary."""
        key = switches.canary_key or socket.gethostname()
        return cls(target, alias, uri, alias == "production" and in_share(f"{target}/{key}", switches.canary))

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return the aliases whose moves matter."""
        return (CANARY, self.alias) if self.is_canary else (self.alias,)

    def first_model(self, switches: Switches) -> FetchedModel:
        """Load the model to start with, from the registry or the local copy as the switch `network` says.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: no model can be loaded.
        """
        from tilewise.dispatch.sources._model_source import (  # they import the registry
            fetch_model,
            fetch_newer_model,
            last_good_copy,
        )

        if switches.network == "on":
            if self.is_canary:
                with suppress(UnknownTargetError, ArtefactError, RegistryUnavailableError):
                    if (canary := fetch_newer_model(self.target, CANARY, uri=self.uri, than=(None, None))) is not None:
                        return canary
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

        if self.is_canary:
            with suppress(UnknownTargetError, ArtefactError):  # there is no canary, or none that the gate let pass
                return fetch_newer_model(self.target, CANARY, uri=self.uri, than=(content_hash, version))
        return fetch_newer_model(self.target, self.alias, uri=self.uri, than=(content_hash, version))


def in_share(key: str, share: float) -> bool:
    """Return whether a key belongs to a share of all keys: the same in every process, and still in a larger share."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") < share * 2**64


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


def target_or_name(target: str | Target) -> str | Target:
    """Return a target, or its name where only the model in the registry may know its op.

    Raises:
        UnknownTargetError: the name is not that of a target.
    """
    if isinstance(target, str) and Target.may_be_of_own_op(target):
        return target
    return parse_target(target)


def pool_without_model(target: Target, reason: TilewiseError | None = None) -> Pool:
    """Load the pool shipped for a target, or the kernels of the user's libraries where kernels come in libraries.

    An arch without either borrows another arch's kernels that are legal on it.

    Args:
        target: the target.
        reason: why there is no model; a failure raises an error of the same class that repeats its message.

    Raises:
        UnknownTargetError: there is no pool, and no `reason` is given.
    """
    try:
        if pool_path(target).is_file():
            return load_pool(target)
        return borrow_pool(target) if backend_of_target(target).compiled_here else _library_pool(target)
    except (KernelError, ConfigError) as e:
        if reason is None:
            raise UnknownTargetError(str(e)) from e
        raise type(reason)(f"{reason}; and {e}") from e


def _library_pool(target: Target) -> Pool:
    """Return the kernels of the libraries that the environment names, in the order of the files.

    Without libraries, another arch's kernels are borrowed.

    Raises:
        ConfigError: no library is named and no kernel can be borrowed, or a library cannot be used, or none has a
            kernel for the target.
    """
    from tilewise.collect.engines import find_library_kernels  # only targets without a model and a pool need them
    from tilewise.collect.problems import load_problem_set
    from tilewise.kernels.ck import CkLibraries

    try:
        libraries = CkLibraries.find(target.op)
    except ConfigError as no_library:
        try:
            return borrow_pool(target)
        except KernelError as no_pool:
            raise ConfigError(f"{no_pool}; and {no_library}") from no_library
    problems = [item.problem for item in load_problem_set(target.op)]
    return find_library_kernels(target, libraries, problems).pool(target)
