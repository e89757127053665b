"""Where a dispatcher's model comes from: the registry, or the last good local copy while the registry is away.

The local copy lives below ``TILEWISE_CACHE`` (default ``~/.cache/tilewise``)::

    models/<registry>/<target>/<content hash>/   the model's folder
    models/<registry>/<target>/<alias>.json      which of them the alias last named

A copy is complete and verified before it is renamed into place, so a reader never meets half of one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tilewise.dispatch.folder import cache_folder, compiled_folder
from tilewise.errors import ArtefactError, RegistryUnavailableError, TilewiseError, UnknownTargetError
from tilewise.files import replace_folder, write_text
from tilewise.model.artefact import load_artefact
from tilewise.model.files import write_files
from tilewise.model.trained import TrainedModel
from tilewise.registry import versions
from tilewise.registry.tracking import is_missing, reading, resolve_uri, session, shown
from tilewise.registry.versions import Version

_log = logging.getLogger(__name__)
_HASH = re.compile("[0-9a-f]{64}")  # becomes the name of a folder, so nothing else will do


@dataclass(frozen=True)
class Fetched:
    """A loaded model, where its files are, and which version it is in the registry."""

    model: TrainedModel
    folder: Path
    version: int
    from_registry: bool


def fetch(target: str, alias: str = versions.PRODUCTION, *, uri: str | None = None) -> Fetched:
    """The model that `alias` names: asked of the registry, its files from the local copy where they are the same.

    Args:
        target: name of the target.
        alias: ``production``, ``candidate`` or ``previous``; or a version's number.
        uri: of the registry; see :func:`tilewise.registry.tracking.resolve_uri`.

    Raises:
        UnknownTargetError: the registry has no such model, or no such alias of it.
        RegistryUnavailableError: the registry is away and there is no local copy.
        ArtefactError: the registry's files are not sound and there is no older copy.
    """
    resolved = resolve_uri(uri)
    shelf = Shelf.of(resolved, target)
    if is_missing(resolved):
        missing = f"there is no registry yet at {shown(resolved)}; train and promote a model of {target}"
        return _last_good(shelf, alias, UnknownTargetError(missing))
    try:
        return _take(shelf, target, alias, resolved)
    except (RegistryUnavailableError, ArtefactError) as e:
        return _last_good(shelf, alias, e)


def newer(
    target: str, alias: str, *, uri: str | None = None, than: tuple[str | None, int | None]
) -> Fetched | None:  # fmt: skip
    """The model that `alias` names, or None where that is `than` (content hash, version): a cheap question then.

    Raises:
        UnknownTargetError: the registry has no such model, or no such alias of it.
        RegistryUnavailableError: the registry is away.
        ArtefactError: the registry's files are not sound.
    """
    resolved = resolve_uri(uri)
    if is_missing(resolved):
        raise RegistryUnavailableError(f"there is no registry at {shown(resolved)}")
    with reading(resolved):  # asked again and again, beside an application that may log to a server of its own
        version = _named(target, alias)
    if than == (version.content_hash, version.number):
        return None
    return _take(Shelf.of(resolved, target), target, alias, resolved)


def by_hash(target: str, content_hash: str, *, uri: str | None = None) -> Fetched | None:
    """The newest version with this content, whatever its alias; None where the registry has none.

    Raises:
        RegistryUnavailableError: the registry is away.
        ArtefactError: the registry's files are not sound.
    """
    resolved = resolve_uri(uri)
    if is_missing(resolved):
        return None
    shelf = Shelf.of(resolved, target)
    with session(resolved):
        found = versions.by_hash(target, content_hash)
        return (shelf.take(found[-1]) or shelf.put(found[-1])) if found else None


def local(target: str, alias: str = versions.PRODUCTION, *, uri: str | None = None) -> Fetched | None:
    """The last good local copy, without a word to the registry; None where there is none."""
    return Shelf.of(resolve_uri(uri), target).last_good(alias)


def _take(shelf: Shelf, target: str, alias: str, uri: str) -> Fetched:
    """What the alias names now, from the shelf or the registry."""
    with session(uri):
        version = _named(target, alias)
        fetched = shelf.take(version) or shelf.put(version)
    shelf.remember(alias, version)
    return fetched


def _named(target: str, alias: str) -> Version:
    version = versions.by_number(target, int(alias)) if alias.isdecimal() else versions.by_alias(target, alias)
    if version is None:
        raise UnknownTargetError(_unknown(target, alias))
    return version


def _last_good(shelf: Shelf, alias: str, reason: TilewiseError) -> Fetched:
    kept = shelf.last_good(alias)
    if kept is None:
        raise reason
    name = kept.model.target.name
    _log.warning("%s @%s: using the last good local copy (version %d): %s", name, alias, kept.version, reason)
    return kept


@dataclass(frozen=True)
class Shelf:
    """The local copies of one registry's models of one target."""

    folder: Path

    @classmethod
    def of(cls, uri: str, target: str) -> Shelf:
        """The shelf for a registry; two registries never share one, as their version numbers mean different models."""
        registry = hashlib.sha256(shown(uri).encode()).hexdigest()[:16]
        return cls(cache_folder() / "models" / registry / target)

    def take(self, version: Version) -> Fetched | None:
        """The copy of this very content, or None where there is none or it is damaged."""
        return self._load(version.content_hash, version.number, from_registry=True)

    def put(self, version: Version) -> Fetched:
        """Download a version, verify it, and keep it.

        Raises:
            ArtefactError: the files are not sound, or not those that were published as this version.
            RegistryUnavailableError: the download failed.
        """
        with tempfile.TemporaryDirectory() as scratch:
            model = versions.load_verified(version, versions.download(version, scratch))
            folder = self.folder / model.content_hash
            try:
                with replace_folder(folder) as fresh:
                    write_files(fresh, model.files)
            except OSError as e:  # a full or read-only disk costs the copy, not the selection
                _log.warning("%s: no local copy could be kept: %s", version, e)
        return Fetched(model, folder, version.number, from_registry=True)

    def remember(self, alias: str, version: Version) -> None:
        """Note which content the alias names, for times when the registry is away."""
        entry = {"content_hash": version.content_hash, "version": version.number}
        try:
            if self._entry(alias) != entry:
                write_text(self._pointer(alias), json.dumps(entry) + "\n")
        except OSError as e:
            _log.warning("%s: the local copy cannot be noted: %s", version, e)

    def last_good(self, alias: str) -> Fetched | None:
        """What the alias last named, or None where there is no sound copy of it."""
        entry = self._entry(alias)
        if entry is None:
            return None
        return self._load(str(entry["content_hash"]), int(str(entry["version"])), from_registry=False)

    def _pointer(self, alias: str) -> Path:
        return self.folder / f"{alias}.json"

    def _entry(self, alias: str) -> dict[str, object] | None:
        try:
            entry = json.loads(self._pointer(alias).read_text())
            return {"content_hash": str(entry["content_hash"]), "version": int(entry["version"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _load(self, content_hash: str, number: int, *, from_registry: bool) -> Fetched | None:
        folder = self.folder / content_hash
        if not _HASH.fullmatch(content_hash) or not folder.is_dir():
            return None
        try:
            model = load_artefact(folder, keep=compiled_folder())
        except ArtefactError as e:
            _log.warning("local copy %s is damaged: %s", folder, e)
            return None
        if model.content_hash != content_hash:
            _log.warning("local copy %s is not what its name says", folder)
            return None
        return Fetched(model, folder, number, from_registry)


def _unknown(target: str, alias: str) -> str:
    known = versions.targets()
    if target in known:
        if alias.isdecimal():
            return f"{target} has no version {alias}"
        have = ", ".join(sorted(versions.aliases(target))) or "none"
        return f"{target} has no version with alias {alias!r} (it has {have}); train and promote one"
    return f"{target} is not registered; known targets are {', '.join(known) or 'none yet: train and promote one'}"
