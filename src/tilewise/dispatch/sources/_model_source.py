"""Models fetched from the registry, with the last good local copy as a fallback while the registry is unavailable.

The local copies live below ``TILEWISE_CACHE`` (default ``~/.cache/tilewise``)::

    models/<registry>/<target>/<content hash>/   the model's folder
    models/<registry>/<target>/<alias>.json      the contents and versions that the alias named, see _alias_notes.py
    models/<registry>/<target>/lock              held by the process that downloads, while others wait for its copy

A copy is complete and verified before it is renamed into place, so a reader never sees a partial one.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from tilewise.dispatch.sources._alias_notes import HASH, AliasNote, read_notes, write_notes
from tilewise.dispatch.sources._cache_folders import cache_folder, compiled_folder
from tilewise.dispatch.sources._deadline import call_within
from tilewise.dispatch.sources._refusals import RefusedVersionError, may_replace, require_standing
from tilewise.dispatch.sources._shared_answers import SharedAnswers
from tilewise.errors import ArtefactError, RegistryUnavailableError, TilewiseError, UnknownTargetError
from tilewise.files import locked, replace_folder
from tilewise.model import TrainedModel, load_artefact, write_files
from tilewise.registry import (
    PRODUCTION,
    Version,
    download_version,
    find_by_alias,
    find_by_hash,
    find_by_number,
    hide_password,
    holds_registry,
    is_missing_store,
    list_aliases,
    list_targets,
    load_downloaded,
    prepare_reader,
    registry_session,
    resolve_tracking_uri,
)

ANSWER_S, DOWNLOAD_S = 20.0, 120.0  # deadlines for finding a version, and for fetching its files
TURN_S = DOWNLOAD_S  # to wait for another process of the host that fetches them

_log = logging.getLogger(__name__)
_POLL_S = 0.02  # between looks whether another process has downloaded

_Identity: TypeAlias = tuple[str | None, int | None]  # content hash and version


@dataclass(frozen=True)
class FetchedModel:
    """A loaded model of the registry.

    Attributes:
        model: the model.
        folder: of its local copy.
        version: its number in the registry.
        from_registry: whether the registry confirmed the version; False for a last good copy.
        registered_ms: when the version was registered, in ms since 1970; 0: unknown.
    """

    model: TrainedModel
    folder: Path
    version: int
    from_registry: bool
    registered_ms: int = 0


_answers = SharedAnswers[FetchedModel]()


def fetch_model(target: str, alias: str = PRODUCTION, *, uri: str | None = None) -> FetchedModel:
    """Load the model that an alias names; its files come from the local copy if that has the same content.

    Args:
        target: the target's name.
        alias: ``production``, ``candidate`` or ``previous``, or a version's number.
        uri: of the registry; see :func:`tilewise.registry.resolve_tracking_uri`.

    Raises:
        UnknownTargetError: the registry has no such model or alias.
        RegistryUnavailableError: the registry is unavailable, and there is no local copy.
        ArtefactError: the registry's files are damaged or got past the gate, and there is no older copy that did not.
    """
    resolved = resolve_tracking_uri(uri)
    copies = LocalCopies.of(resolved, target)
    if is_missing_store(resolved):
        missing = f"there is no registry at {hide_password(resolved)}; train and promote a model of {target}"
        return _last_good(copies, alias, UnknownTargetError(missing))
    try:
        fetched = _fetch(copies, target, alias, resolved)
    except RefusedVersionError as e:
        return _serve_copy(copies, alias, e, _not_refused(copies, alias, resolved, e.version))
    except (RegistryUnavailableError, ArtefactError) as e:
        return _last_good(copies, alias, e)
    assert fetched is not None  # there was no other to compare with
    return fetched


def fetch_newer_model(
    target: str, alias: str, *, uri: str | None = None, than: _Identity
) -> FetchedModel | None:  # fmt: skip
    """Load the model that an alias names, or return None if it is the one in use; then nothing is downloaded.

    Args:
        target: the target's name.
        alias: an alias, or a version's number.
        uri: of the registry; see :func:`tilewise.registry.resolve_tracking_uri`.
        than: content hash and version of the model in use.

    Raises:
        UnknownTargetError: the registry has no such model or alias.
        RegistryUnavailableError: the registry is unavailable.
        ArtefactError: the registry's files are damaged, or got past the gate.
    """
    resolved = resolve_tracking_uri(uri)
    if is_missing_store(resolved):
        raise RegistryUnavailableError(f"there is no registry at {hide_password(resolved)}; train and promote a model")
    return _fetch(LocalCopies.of(resolved, target), target, alias, resolved, than)


def fetch_model_by_hash(target: str, content_hash: str, *, uri: str | None = None) -> FetchedModel | None:
    """Load the newest version with this content, whatever its alias; return None if the registry has none.

    Raises:
        RegistryUnavailableError: the registry is unavailable.
        ArtefactError: the registry's files are damaged.
    """
    resolved = resolve_tracking_uri(uri)
    if is_missing_store(resolved):
        return None
    copies = LocalCopies.of(resolved, target)
    with registry_session(resolved):
        found = find_by_hash(target, content_hash)
        return (copies.load(found[-1]) or copies.download(found[-1])) if found else None


def last_good_copy(target: str, alias: str = PRODUCTION, *, uri: str | None = None) -> FetchedModel | None:
    """Load the last good local copy without asking the registry; return None without one."""
    return LocalCopies.of(resolve_tracking_uri(uri), target).last_good(alias)


def _fetch(
    copies: LocalCopies, target: str, alias: str, uri: str, than: _Identity = (None, None)
) -> FetchedModel | None:  # fmt: skip
    """Load the version that the alias names now, from its local copy or the registry; return None if it is `than`.

    Threads that ask for the same at once share the requests and the loaded model.
    """

    def look(known: FetchedModel | None) -> FetchedModel | None:
        return _look(copies, target, alias, uri, than, known)

    if holds_registry():  # those who look for others may wait for this thread
        return look(None)
    return _answers.ask((copies.folder, uri, alias, than), look)


def _look(
    copies: LocalCopies, target: str, alias: str, uri: str, than: _Identity, known: FetchedModel | None
) -> FetchedModel | None:  # fmt: skip
    """Do what :func:`_fetch` says; `known` was found, checked and loaded while the caller waited."""
    verified = (None, None) if known is None else (known.model.content_hash, known.version)

    def find() -> Version | None:
        version = _version_named(target, alias)
        identity = (version.content_hash, version.number)
        if identity == than:
            return None
        if identity != verified:
            require_standing(version, alias)
        return version

    prepare_reader(uri)
    version = call_within(ANSWER_S, uri, find, f"the version of {target} with alias {alias} cannot be read")
    if version is None:
        return None
    if (version.content_hash, version.number) == verified:
        return known
    fetched = copies.load(version) or _download_once(copies, version, uri)
    copies.note_alias(alias, version)
    return fetched


def _download_once(copies: LocalCopies, version: Version, uri: str) -> FetchedModel:
    """Download a version, or wait until another process of this host has done so; see :meth:`LocalCopies.download`."""
    with copies.turn_to_download(version) as waited:
        if waited and (copy := copies.load(version)) is not None:
            return copy
        return call_within(
            DOWNLOAD_S, uri, partial(copies.download, version), f"{version} cannot be downloaded", patient=True
        )


def _version_named(target: str, alias: str) -> Version:
    version = find_by_number(target, int(alias)) if alias.isdecimal() else find_by_alias(target, alias)
    if version is None:
        raise UnknownTargetError(_unknown(target, alias))
    return version


def _not_refused(copies: LocalCopies, alias: str, uri: str, refused: Version) -> list[AliasNote]:
    """Return the notes of contents that may serve in place of a refused version, and forget the others."""
    notes = copies.notes(alias)

    def find() -> list[AliasNote]:
        return [note for note in notes if may_replace(refused, note)]

    try:
        good = call_within(ANSWER_S, uri, find, f"the history of {refused.target} cannot be read")
    except RegistryUnavailableError:
        good = [note for note in notes[:1] if note.content_hash != refused.content_hash]
    else:
        if good != notes:
            copies.write_notes(alias, good)
    for note in notes:
        if note not in good:
            _log.warning(
                "%s @%s: the local copy of version %d is not used: it was refused too, or the registry does not tell",
                refused.target, alias, note.version,
            )  # fmt: skip
    return good


def _last_good(copies: LocalCopies, alias: str, reason: TilewiseError) -> FetchedModel:
    return _serve_copy(copies, alias, reason, copies.notes(alias)[:1])


def _serve_copy(copies: LocalCopies, alias: str, reason: TilewiseError, notes: Sequence[AliasNote]) -> FetchedModel:
    """Return the first undamaged copy of the notes, or raise the reason why there is need of one."""
    copy = copies.load_noted(notes)
    if copy is None:
        raise reason
    name = copy.model.target.name
    _log.warning("%s @%s: using the last good local copy (version %d): %s", name, alias, copy.version, reason)
    return copy


@dataclass(frozen=True)
class LocalCopies:
    """The local copies of one registry's models of one target."""

    folder: Path

    @classmethod
    def of(cls, uri: str, target: str) -> LocalCopies:
        """Return the copies of a registry; registries share none, as their version numbers mean different models."""
        registry = hashlib.sha256(hide_password(uri).encode()).hexdigest()[:16]
        return cls(cache_folder() / "models" / registry / target)

    def load(self, version: Version) -> FetchedModel | None:
        """Load the copy with this version's content, or return None if it is missing or damaged."""
        found = self._load(version.content_hash, version.number, from_registry=True)
        return None if found is None else replace(found, registered_ms=version.created_ms)

    def download(self, version: Version) -> FetchedModel:
        """Download a version, verify it, and keep a copy.

        Raises:
            ArtefactError: the files are damaged, or differ from those published as this version.
            RegistryUnavailableError: the download failed.
        """
        with tempfile.TemporaryDirectory() as scratch:
            # Compiled before the copy is there, so that those who wait for it need not all compile.
            model = load_downloaded(version, download_version(version, scratch), keep=compiled_folder())
            folder = self.folder / model.content_hash
            try:
                with replace_folder(folder) as fresh:
                    write_files(fresh, model.files)
            except OSError as e:  # a full or read-only disk costs the copy, not the selection
                _log.warning("%s: no local copy could be kept: %s", version, e)
        return FetchedModel(model, folder, version.number, True, version.created_ms)

    @contextmanager
    def turn_to_download(self, version: Version) -> Iterator[bool]:
        """Let processes of this host wait while one of them downloads, until it is done or its time is over.

        Yields:
            Whether this process waited, so that there may be a copy now.
        """
        end, waited = time.monotonic() + TURN_S, False
        with ExitStack() as stack:
            while not (waited and (self.folder / version.content_hash).is_dir()) and time.monotonic() < end:
                try:
                    stack.enter_context(locked(self.folder / "lock", wait=False))
                    break
                except BlockingIOError:
                    waited = True
                    time.sleep(_POLL_S)
                except (OSError, ImportError):  # a cache that cannot be written; or Windows, which has no such locks
                    break
            yield waited

    def note_alias(self, alias: str, version: Version) -> None:
        """Note the content that the alias names, for times when the registry is unavailable or refuses the next."""
        known, note = self.notes(alias), AliasNote(version.content_hash, version.number)
        before = known if alias == PRODUCTION else []  # no other alias stands for contents that were judged
        notes = [note, *(other for other in before if other.content_hash != note.content_hash)]
        if known[:1] != notes[:1]:
            self.write_notes(alias, notes)

    def notes(self, alias: str) -> list[AliasNote]:
        """Return the contents that the alias named, the last first."""
        return read_notes(self._note_file(alias))

    def write_notes(self, alias: str, notes: Sequence[AliasNote]) -> None:
        """Replace the notes of an alias; a cache that cannot be written keeps them."""
        try:
            write_notes(self._note_file(alias), notes)
        except OSError as e:
            _log.warning("%s: the local copies of @%s cannot be noted: %s", self.folder, alias, e)

    def load_noted(self, notes: Sequence[AliasNote]) -> FetchedModel | None:
        """Load the first undamaged copy, or return None."""
        copies = (self._load(note.content_hash, note.version, from_registry=False) for note in notes)
        return next((copy for copy in copies if copy is not None), None)

    def last_good(self, alias: str) -> FetchedModel | None:
        """Load the content that the alias last named, or return None if there is no undamaged copy of it."""
        return self.load_noted(self.notes(alias)[:1])  # one before may have been rolled back

    def _note_file(self, alias: str) -> Path:
        return self.folder / f"{alias}.json"

    def _load(self, content_hash: str, number: int, *, from_registry: bool) -> FetchedModel | None:
        folder = self.folder / content_hash
        if not HASH.fullmatch(content_hash) or not folder.is_dir():
            return None
        try:
            model = load_artefact(folder, keep=compiled_folder())
        except ArtefactError as e:
            _log.warning("local copy %s is damaged: %s", folder, e)
            return None
        if model.content_hash != content_hash:
            _log.warning("local copy %s does not have the content that its name states", folder)
            return None
        return FetchedModel(model, folder, number, from_registry)


def _unknown(target: str, alias: str) -> str:
    known = list_targets()
    if target in known:
        if alias.isdecimal():
            return f"{target} has no version {alias}"
        present = ", ".join(sorted(list_aliases(target))) or "none"
        return f"{target} has no version with alias {alias!r} (it has {present}); train and promote one"
    return f"{target} is not registered; known targets are {', '.join(known) or 'none yet: train and promote one'}"
