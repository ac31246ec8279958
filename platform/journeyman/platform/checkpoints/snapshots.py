"""Workspace snapshots: captured from a sandbox, restored into one, made from an archive, compared.

In object storage, below the project's id: ``snapshots/<digest>`` (manifests, with the newest small blobs in them) and
``packs/…``. A capture uploads only blobs that the previous snapshot does not have; blobs reach the platform through the
sandbox's agent and are stored under the digest that the platform itself computed.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from journeyman.platform.checkpoints import archive, diff
from journeyman.platform.checkpoints.archive import ArchiveLimits, HardLink
from journeyman.platform.checkpoints.diff import FileChange
from journeyman.platform.checkpoints.manifest import Blobs, Manifest, Piece, held_of
from journeyman.platform.checkpoints.packs import PackReader, PackWriter
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.object_store import ObjectNotFound, ObjectStore
from journeyman.platform.sandboxes.errors import SnapshotRefused
from journeyman.platform.sandboxes.port import FileChunk, Sandbox, TreeEntry

__all__ = ["FileChange", "Manifest", "Snapshot", "SnapshotStore", "TreeEntry"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_BYTES = 8 * 1024 * 1024 * 1024
_CACHED_ENTRIES = 60_000
_ENTRY_BYTES = 500
"""What an entry takes in memory, roughly."""
_AT_ONCE = 100
"""Entries of a manifest that is made in less time than a thread takes to start on it."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that was taken. ``bytes``: of all its files; ``new_bytes``: what had to be uploaded for it."""

    digest: str
    changed: bool
    files: int
    bytes: int
    new_bytes: int
    skipped: tuple[str, ...] = ()
    """Paths that a snapshot cannot hold: sockets, FIFOs, what could not be read."""


class SnapshotStore:
    """Snapshots of all projects in an object store. Keeps a few manifests in memory; safe to share between tasks."""

    def __init__(self, store: ObjectStore, *, archive_limits: ArchiveLimits | None = None) -> None:
        self._store = store
        self._archive_limits = archive_limits or ArchiveLimits()
        self._cache: OrderedDict[tuple[str, str], Manifest] = OrderedDict()
        self._cached_entries = 0

    async def capture(self, sandbox: Sandbox, project_id: str, previous: str | None) -> Snapshot:
        """Snapshot a sandbox's ``/workspace`` and ``/artifacts``.

        ``previous`` names the snapshot to build on: what it has is not uploaded again, and an unchanged workspace
        costs no write and keeps its digest. Files that change meanwhile are in the snapshot as they were when read.
        """
        base = await self.manifest(project_id, previous) if previous is not None else None
        scan = await sandbox.scan(previous)
        skipped = tuple(scan.skipped)
        if base is not None and not scan.complete and not scan.entries and not scan.removed:
            return Snapshot(base.digest, changed=False, files=base.files, bytes=base.size, new_bytes=0, skipped=skipped)
        entries: dict[str, TreeEntry] = {} if scan.complete or base is None else dict(base.by_path)
        for path in scan.removed:
            entries.pop(path, None)
        entries.update((entry.path, entry) for entry in scan.entries)
        known: dict[str, tuple[Piece, ...]] = dict(base.blobs) if base is not None else {}
        writer = PackWriter(self._store, project_id)
        changed, missing = await self._collect(sandbox, dict(scan.contents), entries, known, writer)
        carried = _still_named(base.held, entries.values()) if base is not None and base.held else {}
        known.update(await writer.finish(carried))
        manifest = await _off_loop_if_large(len(entries), _manifest, entries.values(), known)
        # If saving fails, the sandbox remembers a state that no later capture builds on, and tells the next one everything.
        marking = asyncio.create_task(sandbox.mark(scan.scan_id, manifest.digest, changed, missing))
        try:
            if base is None or manifest.digest != base.digest:
                # Not beside the pack: it may take the place of the same snapshot's older manifest, whose pack is there.
                await self._save(project_id, manifest)
            await marking
        finally:
            marking.cancel()
            await asyncio.gather(marking, return_exceptions=True)
        return _snapshot(manifest, previous, writer, skipped)

    async def _collect(
        self,
        sandbox: Sandbox,
        came: dict[str, bytes],
        entries: dict[str, TreeEntry],
        known: Blobs,
        writer: PackWriter,
    ) -> tuple[list[TreeEntry], list[str]]:
        """Take what is not known into the writer; corrects the entries of files that were changed after the scan.

        ``came``: contents that the scan brought along, each of which is taken once.
        """
        changed: list[TreeEntry] = []
        missing: list[str] = []
        have = set(known)
        received = 0
        while True:
            # One path for each content; a copy is read itself if the first turns out to have changed.
            wanted: dict[str, str] = {}
            for entry in entries.values():
                if entry.kind == "file" and entry.size and entry.sha256 not in have:
                    wanted.setdefault(entry.sha256, entry.path)
            if not wanted:
                return changed, missing
            async for chunk in _contents_of(sandbox, list(wanted.values()), came):
                received += len(chunk.data)
                if received > MAX_BYTES:
                    raise SnapshotRefused(f"the files of the workspace hold more than {MAX_BYTES} bytes")
                if chunk.missing:
                    entries.pop(chunk.path, None)
                    missing.append(chunk.path)
                    continue
                await writer.add(chunk.data)
                if chunk.last:
                    sha256, size = await writer.end_blob()
                    have.add(sha256)
                    said = entries[chunk.path]
                    if sha256 != said.sha256 or size != said.size:
                        entries[chunk.path] = replace(said, sha256=sha256, size=size)
                        changed.append(entries[chunk.path])

    async def restore(self, sandbox: Sandbox, project_id: str, digest: str) -> None:
        """Make a sandbox's ``/workspace`` and ``/artifacts`` hold exactly what the snapshot does."""
        manifest = await self.manifest(project_id, digest)
        await sandbox.replace_tree(manifest.entries, self._contents(project_id, manifest, manifest.entries), digest)

    async def manifest(self, project_id: str, digest: str) -> Manifest:
        """Raises :class:`NotFound`."""
        if not _DIGEST.fullmatch(digest):
            raise NotFound(f"There is no snapshot {digest[:100]!a}.", code="snapshot_not_found")
        key = (project_id, digest)
        cached = self._cache.get(key)
        if cached is not None:
            self._cache.move_to_end(key)
            return cached
        try:
            data = await self._store.get(_key(project_id, digest))
        except ObjectNotFound:
            raise NotFound(f"There is no snapshot {digest[:100]}.", code="snapshot_not_found") from None
        manifest = await asyncio.to_thread(Manifest.decode, data, digest)
        self._keep(project_id, manifest)
        return manifest

    async def read(self, project_id: str, digest: str, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file of a snapshot, by its path in it (``workspace/…``). Raises :class:`NotFound`."""
        manifest = await self.manifest(project_id, digest)
        entry = manifest.by_path.get(path.lstrip("/"))
        if entry is None or entry.kind != "file":
            raise NotFound(f"The snapshot has no file {path[:300]!a}.", code="file_not_found")
        length = max(0, entry.size - start) if length is None else length
        return await PackReader(self._store, project_id).read(manifest.blobs.get(entry.sha256, ()), start, length)

    async def from_archive(self, project_id: str, data: bytes | Path) -> Snapshot:
        """A snapshot whose ``/workspace`` holds what a tar (plain, gzip, bzip2, xz) or zip archive does.

        Raises :class:`~journeyman.platform.kit.errors.InvalidInput` naming the first member that is refused.
        """
        events = archive.unpack(data, self._archive_limits)
        writer = PackWriter(self._store, project_id)
        entries: dict[str, TreeEntry] = {}
        while batch := await asyncio.to_thread(archive.take, events):
            for event in batch:
                if isinstance(event, bytes):
                    await writer.add(event)
                    continue
                if isinstance(event, HardLink):
                    entry = replace(entries[event.target], path=event.path)
                elif event.kind == "file":
                    sha256, size = await writer.end_blob()
                    entry = replace(event, sha256=sha256, size=size)
                else:
                    entry = event
                entries[entry.path] = entry
        blobs = await writer.finish({})
        manifest = await asyncio.to_thread(_manifest, entries.values(), blobs)
        await self._save(project_id, manifest)
        return _snapshot(manifest, None, writer, ())

    async def to_archive(self, project_id: str, digest: str, root: str = "workspace") -> bytes:
        """A tar.gz of one snapshot root, the same bytes for the same snapshot; paths are relative to the root."""
        manifest = await self.manifest(project_id, digest)
        entries = [entry for entry in manifest.entries if entry.path.startswith(root + "/")]
        packer = archive.Packer(root, entries)
        pending: dict[str, list[bytes]] = {}
        async for path, data in self._contents(project_id, manifest, entries):
            pending.setdefault(path, []).append(data)
            if sum(map(len, pending[path])) >= manifest.by_path[path].size:
                await asyncio.to_thread(packer.add_file, path, b"".join(pending.pop(path)))
        return await asyncio.to_thread(packer.finish)

    async def diff(self, project_id: str, a: str | None, b: str) -> list[FileChange]:
        """What leads from one snapshot (``None``: an empty one) to another, by path; see :mod:`.diff`."""
        new = await self.manifest(project_id, b)
        old = await self.manifest(project_id, a) if a is not None else Manifest((), {})
        pairs = diff.changed_pairs(old.by_path, new.by_path)
        texts: dict[str, bytes] = {}
        for manifest, entries in ((old, [p.old for p in pairs if p.old]), (new, [p.new for p in pairs if p.new])):
            needed = [entry for entry in entries if entry.kind == "file" and entry.sha256 not in texts]
            small = [entry for entry in needed if entry.size <= diff.MAX_TEXT]
            texts |= await self.read_blobs(project_id, manifest.blobs, small)
        return await asyncio.to_thread(diff.changes, pairs, texts)

    async def read_blobs(self, project_id: str, blobs: Blobs, entries: Iterable[TreeEntry]) -> dict[str, bytes]:
        """Whole contents of files, by SHA-256: for files that fit into memory together."""
        wanted = {entry.sha256: entry for entry in entries if entry.kind == "file"}
        parts: dict[str, list[bytes]] = {sha256: [] for sha256 in wanted}
        places = [(sha256, sha256, blobs[sha256]) for sha256, entry in wanted.items() if entry.size]
        async for sha256, data in PackReader(self._store, project_id).stream(places):
            parts[sha256].append(data)
        return {sha256: b"".join(data) for sha256, data in parts.items()}

    async def assemble(
        self,
        project_id: str,
        entries: Iterable[TreeEntry],
        known: Blobs,
        new: Mapping[str, bytes],
        *,
        previous: str,
    ) -> Snapshot:
        """Store a snapshot made of entries whose contents are ``known`` in this project, or ``new`` (by SHA-256)."""
        writer = PackWriter(self._store, project_id)
        for data in new.values():
            await writer.add(data)
            await writer.end_blob()
        entries = list(entries)
        held = _still_named(held_of(known), [entry for entry in entries if entry.sha256 not in new])
        blobs = {**known, **await writer.finish(held)}
        manifest = await asyncio.to_thread(_manifest, entries, blobs)
        await self._save(project_id, manifest)
        return _snapshot(manifest, previous, writer, ())

    def _contents(
        self, project_id: str, manifest: Manifest, entries: Iterable[TreeEntry]
    ) -> AsyncIterator[tuple[str, bytes]]:
        blobs = [
            (entry.path, entry.sha256, manifest.blobs[entry.sha256])
            for entry in entries
            if entry.kind == "file" and entry.size
        ]
        return PackReader(self._store, project_id).stream(blobs)

    async def _save(self, project_id: str, manifest: Manifest) -> None:
        encoded = await _off_loop_if_large(len(manifest.entries), manifest.encode)
        await self._store.put(_key(project_id, manifest.digest), encoded)
        self._keep(project_id, manifest)

    def _keep(self, project_id: str, manifest: Manifest) -> None:
        key = (project_id, manifest.digest)
        former = self._cache.pop(key, None)
        self._cached_entries += _weight(manifest) - (_weight(former) if former else 0)
        self._cache[key] = manifest
        while self._cached_entries > _CACHED_ENTRIES and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            self._cached_entries -= _weight(oldest)


async def _off_loop_if_large(entries: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The work's result; done on a thread of its own when there are so many entries that the event loop would wait."""
    if entries <= _AT_ONCE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def _contents_of(sandbox: Sandbox, paths: Sequence[str], came: dict[str, bytes]) -> AsyncIterator[FileChunk]:
    """Contents of files of a scan: first those that came with it, then those that must be asked for."""
    rest: list[str] = []
    for path in paths:
        data = came.pop(path, None)
        if data is None:
            rest.append(path)
        else:
            yield FileChunk(path, 0, data, last=True)
    if rest:
        async for chunk in sandbox.read_blobs(rest):
            yield chunk


def _still_named(held: Blobs, entries: Iterable[TreeEntry]) -> Blobs:
    """Those of the blobs that these entries name: others are of files that are gone, and are left behind."""
    named = {entry.sha256 for entry in entries}
    return {sha256: pieces for sha256, pieces in held.items() if sha256 in named}


def _weight(manifest: Manifest) -> int:
    """What a manifest takes of the cache, in entries."""
    return len(manifest.entries) + sum(len(p.data) for pieces in manifest.held.values() for p in pieces) // _ENTRY_BYTES


def _manifest(entries: Iterable[TreeEntry], blobs: Blobs) -> Manifest:
    """With its digest computed, and what it holds: that takes long enough to be kept off the event loop."""
    manifest = Manifest.of(entries, blobs)
    assert manifest.digest
    assert manifest.held is not None
    return manifest


def _key(project_id: str, digest: str) -> str:
    return f"{project_id}/snapshots/{digest}"


def _snapshot(manifest: Manifest, previous: str | None, writer: PackWriter, skipped: tuple[str, ...]) -> Snapshot:
    return Snapshot(
        digest=manifest.digest,
        changed=manifest.digest != previous,
        files=manifest.files,
        bytes=manifest.size,
        new_bytes=writer.uploaded_bytes,
        skipped=skipped,
    )
