"""The model beside production: from an alias or a version of the registry, or from a folder."""

from __future__ import annotations

import os
from pathlib import Path

from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.measuring import Measurer
from tilewise.dispatch.sources import FetchedModel, Origin
from tilewise.errors import ConfigError
from tilewise.model import load_artefact
from tilewise.ops import Target


class Challenger:
    """The model that the switch `shadow` names.

    Args: see :class:`tilewise.dispatch.shadowing.Shadow`.
    """

    def __init__(self, target: Target, switches: Switches, origin: Origin | None, measurer: Measurer) -> None:
        name = switches.shadow
        self._target, self._switches, self._measurer = target, switches, measurer
        self._folder = Path(name) if os.sep in name or Path(name).is_dir() else None
        if origin is not None and origin.is_canary and name in origin.aliases:
            # A host with the canary compares it with production, and the others the other way round.
            name = origin.alias
        self._origin = Origin(target.name, name, None if origin is None else origin.uri)

    def newest(self, current: Generation | None) -> Generation:
        """Return the model as it is now: `current`, if that is up to date.

        Raises:
            UnknownTargetError: the registry has no such alias or version.
            RegistryUnavailableError: the registry is unavailable, and there is no local copy.
            ArtefactError: the files are damaged.
            ConfigError: the model belongs to another target.
        """
        if self._folder is not None:
            if current is not None:
                return current
            model = load_artefact(self._folder)
            return self._generation(Deployment(model.target, model.pool, model))
        fetched = self._origin.first_model(self._switches) if current is None else self._newer(current)
        if fetched is None:
            assert current is not None
            return current
        return self._generation(Deployment.of(fetched))

    def _newer(self, current: Generation) -> FetchedModel | None:
        if self._switches.network == "off":
            return None
        return self._origin.newer_model(current.content_hash, current.version)

    def _generation(self, deployment: Deployment) -> Generation:
        if deployment.target != self._target:
            raise ConfigError(
                f"it is a model of {deployment.target.name}, not of {self._target.name}; name one of the same target"
            )
        return Generation(deployment, self._switches, self._measurer)
