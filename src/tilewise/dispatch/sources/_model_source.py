"""Models fetched from the registry, with the last good local copy as a fallback while the registry is unavailable.

The local copies live below ``TILEWISE_CACHE`` (default ``~/.cache/tilewise``)::

    models/<registry>/<target>/<content hash>/   the model's folder
    models/<registry>/<target>/<alias>.json      the content and version that the alias last named
    models/<registry>/<target>/lock              held by the process that downloads, while others wait for its copy

A copy is complete and verified before it is renamed into place, so a reader never sees a partial one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tilewise.dispatch.sources._cache_folders import cache_folder, compiled_folder
from tilewise.dispatch.sources._deadline import call_within
from tilewise.dispatch.sources._shared_answers import SharedAnswers
from tilewise.errors import ArtefactError, RegistryUnavailableError, TilewiseError, UnknownTargetError
from tilewise.files import locked, replace_folder, write_text
from tilewise.model import TrainedModel, load_artefact, write_files
from tilewise.registry import (
    CANARY,
    PRODUCTION,
    Version,
    download_version,
    find_by_alias,
    find_by_hash,
    find_by_number,
    gate_standing,
    hide_password,
    holds_registry,
    is_canary,
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
_HASH = re.compile("[0-9a-f]{64}")  # the hash names a folder, so any other text is refused
_MAX_NOTE_BYTES = 4096  # a note takes 100 bytes
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


class _AliasNote(NamedTuple):
    """The content and version that an alias last named."""

    content_hash: str
    version: int


def fetch_model(target: str, alias: str = PRODUCTION, *, uri: str | None = None) -> FetchedModel:
    """Load the model that an alias names; its files come from the local copy if that has the same content.

    Args:
        target: the target's name.
        alias: ``production``, ``candidate`` or ``previous``, or a version's number.
        uri: of the registry; see :func:`tilewise.registry.resolve_tracking_uri`.

    Raises:
        UnknownTargetError: the registry has no such model or alias.
        RegistryUnavailableError: the registry is unavailable, and there is no local copy.
        ArtefactError: the registry's files are damaged or got past the gate, and there is no older copy.
    """
    resolved = resolve_tracking_uri(uri)
    copies = LocalCopies.of(resolved, target)
    if is_missing_store(resolved):
        missing = f"there is no registry at {hide_password(resolved)}; train and promote a model of {target}"
        return _last_good(copies, alias, UnknownTargetError(missing))
    try:
        fetched = _fetch(copies, target, alias, resolved)
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
            _require_standing(version, alias)
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


def _require_standing(version: Version, alias: str) -> None:
    """Refuse a version that got into production, or became the canary, past the gate.

    Raises:
        ArtefactError: the gate promoted other versions or files, and not these, or these were rolled back.
    """
    if alias == CANARY and not is_canary(version):
        raise ArtefactError(f"{version} is a canary that the gate did not let pass: tilewise promote canary")
    if alias != PRODUCTION:
        return
    standing = gate_standing(version)
    if standing.kind in ("bypassed", "rolled back"):
        raise ArtefactError(
            f"{version} is in production {standing.how}; put back a version that passed: tilewise rollback version=N"
        )
    if standing.kind == "unrecorded":
        _log.warning("%s: nothing shows that it passed the gate: %s", version, standing.reason)


def _last_good(copies: LocalCopies, alias: str, reason: TilewiseError) -> FetchedModel:
    copy = copies.last_good(alias)
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
        """Note the content that the alias names, for times when the registry is unavailable."""
        note = _AliasNote(version.content_hash, version.number)
        try:
            if self._note(alias) != note:
                write_text(self._note_file(alias), json.dumps(note._asdict()) + "\n")
        except OSError as e:
            _log.warning("%s: the local copy cannot be noted: %s", version, e)

    def last_good(self, alias: str) -> FetchedModel | None:
        """Load the content that the alias last named, or return None if there is no undamaged copy of it."""
        note = self._note(alias)
        return None if note is None else self._load(note.content_hash, note.version, from_registry=False)

    def _note_file(self, alias: str) -> Path:
        return self.folder / f"{alias}.json"

    def _note(self, alias: str) -> _AliasNote | None:
        """Return the note of an alias, or None if it is missing or damaged; a damaged note is replaced later."""
        try:
            with self._note_file(alias).open("rb") as file:
                data = file.read(_MAX_NOTE_BYTES + 1)
            values = json.loads(data) if len(data) <= _MAX_NOTE_BYTES else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(values, dict):
            return None
        content_hash, version = values.get("content_hash"), values.get("version")
        if not isinstance(content_hash, str) or not _HASH.fullmatch(content_hash):
            return None
        if not isinstance(version, int) or isinstance(version, bool) or not 0 < version < 1 << 63:
            return None
        return _AliasNote(content_hash, version)

    def _load(self, content_hash: str, number: int, *, from_registry: bool) -> FetchedModel | None:
        folder = self.folder / content_hash
        if not _HASH.fullmatch(content_hash) or not folder.is_dir():
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
