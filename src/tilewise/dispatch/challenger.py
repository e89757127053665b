"""Where the model beside production comes from: an alias or a version of the registry, or a folder."""

from __future__ import annotations

import os
from pathlib import Path

from tilewise.dispatch.generation import Generation
from tilewise.dispatch.measure import Measurer
from tilewise.dispatch.origin import Origin
from tilewise.dispatch.source import Fetched
from tilewise.dispatch.switches import Switches
from tilewise.errors import ConfigError
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import Target


class Challenger:
    """What the switch `shadow` names; arguments as for :class:`tilewise.dispatch.shadow.Shadow`."""

    def __init__(self, target: Target, switches: Switches, origin: Origin | None, measurer: Measurer) -> None:
        named = switches.shadow
        self._target, self._switches, self._measurer = target, switches, measurer
        self._folder = Path(named) if os.sep in named or Path(named).is_dir() else None
        self._origin = Origin(target.name, named, None if origin is None else origin.uri)

    def newest(self, present: Generation | None) -> Generation:
        """The model as it is now; `present` where that is still the one.

        Raises:
            UnknownTargetError: the registry has no such alias or version.
            RegistryUnavailableError: it is away, and there is no local copy.
            ArtefactError: the files are not sound.
            ConfigError: it is a model of another target.
        """
        if self._folder is not None:
            return present or self._generation(load_artefact(self._folder), None)
        fetched = self._origin.first(self._switches) if present is None else self._newer(present)
        if fetched is None:
            assert present is not None
            return present
        return self._generation(fetched.model, fetched.version)

    def _newer(self, present: Generation) -> Fetched | None:
        if self._switches.network == "off":
            return None
        return self._origin.newer(present.content_hash, present.version)

    def _generation(self, model: TrainedModel, version: int | None) -> Generation:
        if model.target != self._target:
            raise ConfigError(f"it is a model of {model.target.name}, not of {self._target.name}")
        return Generation(model.target, model.pool, model, version, self._switches, self._measurer)
