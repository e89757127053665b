"""Where a dispatcher's models come from while it runs, and which pool serves where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.dispatch.switches import Switches
from tilewise.errors import ConfigError, KernelError, RegistryUnavailableError, TilewiseError, UnknownTargetError
from tilewise.kernels.pool import Pool, borrow_pool, load_pool, pool_path
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.dispatch.source import Fetched


@dataclass(frozen=True)
class Origin:
    """An alias of a registry; arguments as for :func:`tilewise.dispatch.source.fetch`."""

    target: str
    alias: str
    uri: str | None

    def first(self, switches: Switches) -> Fetched:
        """The model to begin with.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: there is none.
        """
        from tilewise.dispatch import source  # brings the registry's modules, which a model in a folder does not need

        if switches.network == "on":
            return source.fetch(self.target, self.alias, uri=self.uri)
        kept = source.local(self.target, self.alias, uri=self.uri)
        if kept is None and switches.network == "later":
            return source.fetch(self.target, self.alias, uri=self.uri)
        if kept is None:
            raise RegistryUnavailableError(
                f"network=off forbids the registry, and there is no local copy of {self.target} @{self.alias}"
            )
        return kept

    def newer(self, content_hash: str | None, version: int | None) -> Fetched | None:
        """Another model than this one, or None.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: see :func:`tilewise.dispatch.source.newer`.
        """
        from tilewise.dispatch import source

        return source.newer(self.target, self.alias, uri=self.uri, than=(content_hash, version))


def parse_target(target: str | Target) -> Target:
    """A target, or the one of this name.

    Raises:
        UnknownTargetError: there is no such op or variant.
    """
    if isinstance(target, Target):
        return target
    try:
        return Target.parse(target)
    except ConfigError as e:
        raise UnknownTargetError(str(e)) from e


def pool_without_model(target: Target, reason: TilewiseError | None = None) -> tuple[Target, Pool]:
    """The pool that is shipped for a target; for an arch without one, another arch's kernels that are legal on it.

    Args:
        target: the target.
        reason: why there is no model, for the message.

    Raises:
        UnknownTargetError: none is shipped; of the kind of `reason` where that is given.
    """
    try:
        return target, borrow_pool(target) if not pool_path(target).is_file() else load_pool(target)
    except (KernelError, ConfigError) as e:
        if reason is None:
            raise UnknownTargetError(str(e)) from e
        raise type(reason)(f"{reason}; and {e}") from e
